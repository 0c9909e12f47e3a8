//! The arithmetic of docs/KUBERNETES.md: tick, maximum age, grace, and what the kubelet allows.

use super::{Asked, Findings, LIVENESS, Member, STARTUP};
use crate::lint_manifest::finding::Level;

pub(super) fn check(member: &Member<'_>, findings: &mut Findings<'_>) {
    tick(member, findings);
    grace(member, findings);
    startup_budget(member, findings);
}

fn tick(member: &Member<'_>, findings: &mut Findings<'_>) {
    let settings = &member.settings;
    let (Some(tick), Some(max_age)) = (settings.tick.value, settings.max_age.value) else {
        return;
    };
    let path =
        if settings.tick.variable.is_some() { &settings.tick } else { &settings.max_age }.path();
    let fix = format!(
        "at most {} s for a max_age of {max_age} s, or a max_age of {} s or more",
        (max_age / 3).max(1),
        tick.saturating_mul(3)
    );
    if tick >= max_age {
        let used =
            if max_age > 10 { "10 s".to_owned() } else { format!("{} s", max_age as f64 / 2.0) };
        findings.of(
            (Level::Error, "tick"),
            member,
            &path,
            format!(
                "a tick of {tick} s is not below the max_age of {max_age} s: the worker logs a WARN and ticks \
                 every {used} instead"
            ),
            fix,
        );
    } else if tick.saturating_mul(2) > max_age {
        findings.of(
            (Level::Error, "tick"),
            member,
            &path,
            format!(
                "with a tick of {tick} s and a max_age of {max_age} s, one tick that is missed is a mark that \
                 is stale"
            ),
            fix,
        );
    } else if tick.saturating_mul(3) > max_age {
        findings.of(
            (Level::Warning, "tick"),
            member,
            &path,
            format!(
                "with a tick of {tick} s and a max_age of {max_age} s, two ticks that are missed in a row are \
                 a mark that is stale"
            ),
            fix,
        );
    }
}

/// What is wrong is a grace below the kubelet's: a drain that the kubelet still allows is called stuck.
/// The other way round nothing is, since the kubelet kills at its own deadline.
fn grace(member: &Member<'_>, findings: &mut Findings<'_>) {
    let settings = &member.settings;
    let Some(grace) = settings.shutdown_grace.value else {
        return;
    };
    let spec = &findings.workload.spec;
    let given = spec.termination_grace_period_seconds;
    let allowed = given.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(30);
    if grace >= allowed {
        return;
    }
    let from = if given.is_some() { "" } else { " (the default)" };
    let fix = format!(
        "set TICKMARK_SHUTDOWN_GRACE to {allowed} or more, or lower terminationGracePeriodSeconds to {grace}"
    );
    let path = settings.shutdown_grace.path();
    let (Some(max_age), Some(tick)) = (settings.max_age.value, settings.tick.value) else {
        findings.of(
            (Level::Warning, "shutdown-grace"),
            member,
            &path,
            format!(
                "a drain of more than {grace} s is called stuck, while the kubelet allows {allowed} s{from}"
            ),
            fix,
        );
        return;
    };
    // The last refresh may lie a tick before the end of the grace.
    let stale = grace.saturating_sub(tick).saturating_add(max_age);
    if stale >= allowed {
        findings.of(
            (Level::Warning, "shutdown-grace"),
            member,
            &path,
            format!(
                "the kubelet allows {allowed} s{from}, and a proper drain that takes more than {grace} s of them \
                 logs the ERROR `shutdown grace of {grace}s is over`"
            ),
            fix,
        );
        return;
    }
    let killed = member.probe(LIVENESS).and_then(|asked| {
        let own = u64::try_from(asked.probe.termination_grace_period_seconds?).ok()?;
        let acts = stale + asked.period() * (asked.failures() - 1);
        Some(acts + own).filter(|&end| end < allowed)
    });
    if let Some(end) = killed {
        findings.of(
            (Level::Error, "shutdown-grace"),
            member,
            &path,
            format!(
                "after a SIGTERM that is not the kubelet's, a drain is red from {stale} s on and may be killed \
                 after {end} s, with the jobs in it; terminationGracePeriodSeconds allows {allowed} s{from}"
            ),
            fix,
        );
    } else {
        findings.of(
            (Level::Warning, "shutdown-grace"),
            member,
            &path,
            format!(
                "a proper drain is red from {stale} s on, while the kubelet allows {allowed} s{from}: after a \
                 SIGTERM that is not the kubelet's, it is taken for stuck and terminated a second time"
            ),
            fix,
        );
    }
}

/// The first mark comes up to a tick after the last consumer has subscribed.
fn startup_budget(member: &Member<'_>, findings: &mut Findings<'_>) {
    let Some(startup) = member.probe(STARTUP).filter(|asked| asked.reads_marks()) else {
        return;
    };
    let Some(tick) = member.settings.tick.value else {
        return;
    };
    let budget = budget(startup);
    if budget <= tick {
        findings.of(
            (Level::Error, "startup-budget"),
            member,
            STARTUP,
            format!(
                "the startup probe gives up after {budget} s, and the first mark may come {tick} s after the \
                 last consumer has subscribed: a worker that starts properly is restarted, again and again"
            ),
            "raise failureThreshold: periodSeconds × failureThreshold is all the time there is for \
             connecting, subscribing and one tick, and for a broker outage at start",
        );
    }
}

/// Seconds until the kubelet acts on a probe that never passes.
pub(super) fn budget(asked: &Asked<'_>) -> u64 {
    asked.delay() + asked.period() * asked.failures()
}
