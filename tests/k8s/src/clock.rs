//! The times that a manifest asks for, and what the documents' arithmetic makes of them
//! (docs/KUBERNETES.md, "The budgets").

use std::time::Duration;

use serde_json::Value;

use crate::answer::{Stop, Window};

/// Which times the scenarios use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Seconds in place of minutes: `manifests/short.yaml`.
    Short,
    /// What the documents recommend.
    Full,
}

impl Pace {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pace::Short => "short",
            Pace::Full => "full",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) tick: Duration,
    pub(crate) max_age: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) termination_grace: Duration,
    pub(crate) startup: Probing,
    pub(crate) liveness: Probing,
}

/// How often the kubelet asks, and how many failures in a row it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probing {
    pub(crate) period: Duration,
    pub(crate) failures: u32,
    /// When the kubelet gives up on an answer.
    pub(crate) timeout: Duration,
}

impl Clock {
    /// Of a deployment, or whatever else has a pod's template.
    pub(crate) fn of(object: &Value) -> Result<Clock, Stop> {
        let spec = &object["spec"]["template"]["spec"];
        let worker = &spec["containers"][0];
        let missing = |what: &str| Stop::Failed(format!("the manifest has no {what}"));
        let variable = |name: &str| {
            let variables = worker["env"].as_array();
            let found = variables.into_iter().flatten().find(|one| one["name"] == name);
            found
                .and_then(|one| one["value"].as_str()?.parse().ok())
                .map(Duration::from_secs)
                .ok_or_else(|| missing(name))
        };
        let probing = |name: &str| {
            let number = |key: &str| {
                worker[name][key].as_u64().ok_or_else(|| missing(&format!("{name}.{key}")))
            };
            Ok::<_, Stop>(Probing {
                period: Duration::from_secs(number("periodSeconds")?),
                failures: u32::try_from(number("failureThreshold")?).unwrap_or(u32::MAX),
                timeout: Duration::from_secs(number("timeoutSeconds")?),
            })
        };
        Ok(Clock {
            tick: variable("TICKMARK_TICK")?,
            max_age: variable("TICKMARK_MAX_AGE")?,
            shutdown_grace: variable("TICKMARK_SHUTDOWN_GRACE")?,
            termination_grace: spec["terminationGracePeriodSeconds"]
                .as_u64()
                .map(Duration::from_secs)
                .ok_or_else(|| missing("terminationGracePeriodSeconds"))?,
            startup: probing("startupProbe")?,
            liveness: probing("livenessProbe")?,
        })
    }

    /// From the loss of a consumer until the probe is red.
    pub(crate) fn red(&self) -> Window {
        Window { at_least: self.max_age.saturating_sub(self.tick), at_most: self.max_age }
    }

    /// From the loss of a consumer until the kubelet ends the container.
    pub(crate) fn kill(&self) -> Window {
        let Probing { period, failures, .. } = self.liveness;
        let red = self.red();
        Window {
            at_least: red.at_least + period * failures.saturating_sub(1),
            at_most: red.at_most + period * failures,
        }
    }

    /// From the moment in which a process that is asked itself answers no more until the kubelet ends
    /// the container. It asks again after a period, or at once where the last time took longer.
    pub(crate) fn unanswered_kill(&self) -> Window {
        let Probing { period, failures, timeout } = self.liveness;
        let at_least = period.max(timeout) * failures.saturating_sub(1) + timeout;
        Window { at_least, at_most: period + at_least }
    }

    /// From a SIGTERM that did not come from the kubelet until the probe is red, if the drain is
    /// stuck.
    pub(crate) fn stuck_drain_red(&self) -> Window {
        self.red().later_by(self.shutdown_grace)
    }

    /// The same until the kubelet ends the container.
    pub(crate) fn stuck_drain_kill(&self) -> Window {
        self.kill().later_by(self.shutdown_grace)
    }

    /// From the container's start until the kubelet ends it, if nothing ever starts in it.
    pub(crate) fn startup_kill(&self) -> Window {
        let Probing { period, failures, .. } = self.startup;
        Window { at_least: period * failures.saturating_sub(1), at_most: period * failures }
    }

    /// From the last consumer's subscription until the kubelet has seen it: a tick, a period.
    pub(crate) fn start(&self) -> Duration {
        self.tick + self.startup.period
    }
}

impl Window {
    fn later_by(self, time: Duration) -> Window {
        Window { at_least: self.at_least + time, at_most: self.at_most + time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{self, Probe};

    fn whole(window: Window) -> (u64, u64) {
        (window.at_least.as_secs(), window.at_most.as_secs())
    }

    /// The table in docs/KUBERNETES.md.
    #[test]
    fn the_recommended_manifest_gives_the_documents_numbers() {
        let clock = Clock::of(&manifest::worker(Pace::Full, Probe::EXEC)).unwrap();
        assert_eq!(whole(clock.kill()), (55, 75));
        assert_eq!(whole(clock.stuck_drain_kill()), (115, 135));
        assert_eq!(clock.stuck_drain_red().at_most.as_secs(), 105);
        assert_eq!(clock.startup_kill().at_most.as_secs(), 120);
        let document = include_str!("../../../docs/KUBERNETES.md");
        assert_eq!(whole(clock.unanswered_kill()), (25, 35));
        for number in
            ["25 to 35 s", "= **75 s**", "= **55 s**", "= **120 s**", "60 to 105 s", "= **135 s**"]
        {
            assert!(document.contains(number), "the table has no {number}");
        }
    }

    #[test]
    fn the_short_clock_takes_seconds() {
        let clock = Clock::of(&manifest::worker(Pace::Short, Probe::EXEC)).unwrap();
        assert_eq!((clock.tick.as_secs(), clock.max_age.as_secs()), (1, 5));
        assert!(clock.kill().at_most < Duration::from_secs(15));
        assert!(clock.shutdown_grace >= clock.termination_grace);
    }
}
