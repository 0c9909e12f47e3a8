//! The same verdict and what it rests on as OpenMetrics. Of a slot whose mark is not good, what the mark
//! said is not told: it was true when the slot was last healthy, and a number that no longer moves would
//! read as one that is well. Only what has to be is told still: it is a setting.
//!
//! Source: OpenMetrics 1.0. Gauges alone, so that who reads Prometheus' older text format reads it too.

use std::fmt;
use std::io::Write as _;
use std::vec::Vec;

use tickmark_protocol::{
    AnyMark, Attempt, Decoded, FORMAT_VERSION, Generation, Mark, Phase, Problem, Read, Slot, State,
    classify,
};

use crate::marks::{Directory, FileName};
use crate::observe::{Seen, age_ns};
use crate::procfs::Evidence;
use crate::settings::Settings;

/// What one request collects; its room is kept for the next.
#[derive(Default)]
pub(super) struct Metrics {
    declared: Option<u32>,
    slots: Vec<SlotSeen>,
}

struct SlotSeen {
    slot: Slot,
    healthy: bool,
    age_ns: Option<u64>,
    consumers_expected: Option<u32>,
    mark: Option<Told>,
    starts: u64,
}

/// What a good binary mark says.
struct Told {
    phase: Phase,
    subscribed: u32,
    jobs: u32,
    oldest_job_ms: u64,
}

impl From<&Mark> for Told {
    fn from(mark: &Mark) -> Told {
        Told {
            phase: mark.phase,
            subscribed: mark.consumers_subscribed,
            jobs: mark.jobs_in_flight,
            oldest_job_ms: mark.oldest_job_ms,
        }
    }
}

const STATES: [State; 6] = [
    State::Verified,
    State::VerifiedByUniqueId,
    State::Unsafe,
    State::Unverifiable,
    State::Unavailable,
    State::NonLinux,
];

impl Metrics {
    pub(super) fn begin(&mut self) {
        self.declared = None;
        self.slots.clear();
    }

    pub(super) fn see(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Header { expected: Read::Found(found), .. } => {
                self.declared = Some(found.record.processes);
            }
            Seen::Header { .. } => {}
            Seen::Slot { slot, observation, problem } => {
                let mark = match &observation.mark {
                    Read::Found(AnyMark::Binary(mark)) => Some(mark),
                    _ => None,
                };
                let ours = matches!(problem, None | Some(Problem::Stale { .. }));
                let found = matches!(observation.mark, Read::Found(_));
                self.slots.push(SlotSeen {
                    slot: *slot,
                    healthy: problem.is_none(),
                    age_ns: found.then(|| age_ns(observation)),
                    consumers_expected: mark.filter(|_| ours).map(|mark| mark.consumers_expected),
                    mark: mark.filter(|_| problem.is_none()).map(Told::from),
                    starts: 0,
                });
            }
        }
    }

    pub(super) fn write(&mut self, settings: &Settings<'_>, healthy: bool, out: &mut Vec<u8>) {
        let mut dispose = drop;
        let mut evidence = Evidence::new(settings.launch, &mut dispose);
        evidence.read_all();
        let pid1 = evidence.pid1();
        let own = evidence.held().clone();
        let (format, strict) = (settings.format.value, settings.strict.value);
        let topology = classify(pid1, &own, format, strict, evidence.missing());
        self.count_starts(settings, &own);

        let mut out = Exposition(out);
        out.family("healthy", None, "Whether the verdict is healthy, as /livez says it.");
        out.sample("healthy", u8::from(healthy));
        out.family("max_age_seconds", Some("seconds"), "The age above which a mark is stale.");
        out.sample("max_age_seconds", settings.max_age.value.as_secs());
        out.family("slots_expected", None, "Slots that must each have a good mark.");
        if let Some(declared) = self.declared {
            out.sample("slots_expected", declared);
        }
        self.write_slots(&mut out);
        out.family("topology", None, "1 for the state of the PID topology, as --explain finds it.");
        for state in STATES {
            let held = u8::from(state == topology.state);
            out.labelled("topology", "state", &state, held);
        }
        out.family("build_info", None, "The version of tickmark that answers; always 1.");
        let version = env!("CARGO_PKG_VERSION");
        out.put(format_args!(
            "tickmark_build_info{{version=\"{version}\",format_version=\"{FORMAT_VERSION}\"}} 1\n"
        ));
        out.put(format_args!("# EOF\n"));
    }

    fn write_slots(&self, out: &mut Exposition<'_>) {
        out.slots(self, "slot_healthy", None, "Whether the slot's mark is good.", |slot| {
            Some(u8::from(slot.healthy))
        });
        let help = "How long ago the slot left its mark, on the clock that decides.";
        out.slots(self, "mark_age_seconds", Some("seconds"), help, |slot| {
            slot.age_ns.map(|ns| Seconds { ms: ns / 1_000_000 })
        });
        let help = "Starts of the slot since it was last healthy; 0 while it is.";
        out.slots(self, "starts_since_healthy", None, help, |slot| Some(slot.starts));
        let help = "Consumers that have to be, by the slot's last mark.";
        out.slots(self, "consumers_expected", None, help, |slot| slot.consumers_expected);

        let mut told = |name, unit, help, value: &dyn Fn(&Told) -> Option<Value>| {
            out.slots(self, name, unit, help, |slot| slot.mark.as_ref().and_then(value));
        };
        let help = "Consumers that were consuming or recovering when the mark was left.";
        told("consumers_subscribed", None, help, &|mark| Some(Value::Count(mark.subscribed)));
        let help = "Whether a consumer was recovering when the mark was left.";
        told("recovering", None, help, &|mark| {
            Some(Value::Count(u32::from(mark.phase == Phase::Recovering)))
        });
        let help = "Jobs that were worked on when the mark was left.";
        told("jobs_in_flight", None, help, &|mark| Some(Value::Count(mark.jobs)));
        let help = "The age of the oldest of these jobs; 0 without one.";
        told("oldest_job_age_seconds", Some("seconds"), help, &|mark| {
            Some(Value::Milliseconds(mark.oldest_job_ms))
        });
        let help = "Whether the slot shuts down on purpose.";
        told("draining", None, help, &|mark| {
            Some(Value::Count(u32::from(matches!(mark.phase, Phase::Draining { .. }))))
        });
        let help = "What was left of the shutdown grace; only while draining.";
        told("shutdown_grace_left_seconds", Some("seconds"), help, &|mark| match mark.phase {
            Phase::Draining { left_ms } => Some(Value::Milliseconds(left_ms)),
            Phase::Running | Phase::Recovering => None,
        });
    }

    /// What the slots wrote of their starts; a healthy one has removed its record.
    fn count_starts(&mut self, settings: &Settings<'_>, own: &Generation) {
        let Ok(directory) = Directory::open(settings.dir.value) else { return };
        for slot in &mut self.slots {
            let read: Read<Decoded<Attempt>> =
                directory.read(FileName::Attempt(slot.slot), &mut drop);
            if let Read::Found(found) = read {
                let written = found.record.generation.as_ref();
                let same = written.is_some_and(|written| own.relation(written).is_same());
                if same || !own.identifies() {
                    slot.starts = found.record.starts;
                }
            }
        }
    }
}

/// A number that a mark gives.
enum Value {
    Count(u32),
    Milliseconds(u64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Value::Count(count) => count.fmt(f),
            Value::Milliseconds(ms) => Seconds { ms }.fmt(f),
        }
    }
}

/// Milliseconds as seconds with three places.
struct Seconds {
    ms: u64,
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.ms / 1000, self.ms % 1000)
    }
}

struct Exposition<'a>(&'a mut Vec<u8>);

impl Exposition<'_> {
    fn put(&mut self, text: fmt::Arguments<'_>) {
        let _infallible = self.0.write_fmt(text);
    }

    fn family(&mut self, name: &str, unit: Option<&str>, help: &str) {
        self.put(format_args!("# TYPE tickmark_{name} gauge\n"));
        if let Some(unit) = unit {
            self.put(format_args!("# UNIT tickmark_{name} {unit}\n"));
        }
        self.put(format_args!("# HELP tickmark_{name} {help}\n"));
    }

    fn sample(&mut self, name: &str, value: impl fmt::Display) {
        self.put(format_args!("tickmark_{name} {value}\n"));
    }

    /// `value` needs no escaping.
    fn labelled(
        &mut self,
        name: &str,
        label: &str,
        value: &dyn fmt::Display,
        sample: impl fmt::Display,
    ) {
        self.put(format_args!("tickmark_{name}{{{label}=\"{value}\"}} {sample}\n"));
    }

    fn slots<V: fmt::Display>(
        &mut self,
        metrics: &Metrics,
        name: &str,
        unit: Option<&str>,
        help: &str,
        value: impl Fn(&SlotSeen) -> Option<V>,
    ) {
        self.family(name, unit, help);
        for slot in &metrics.slots {
            if let Some(value) = value(slot) {
                self.labelled(name, "slot", &slot.slot, value);
            }
        }
    }
}
