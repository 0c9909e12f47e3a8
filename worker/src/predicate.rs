//! Whether the worker is healthy: exactly the expected consumers are registered, each is consuming
//! or recovering, every watched runtime runs, and not every place is held by a job that is
//! overdue. Reads memory only.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
use std::sync::atomic::Ordering;

use crate::jobs::InFlight;
use crate::log::{RoundSeconds, SlotLog, panic_message};
use crate::registry::{ConsumerState, Registered, Role};

/// How many consumers a line names before it only counts them.
const NAMED: usize = 16;

/// What has to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Predicate {
    pub(crate) expected: u32,
    /// How long recovering counts as healthy; `None` is for ever.
    pub(crate) recovery_grace_ns: Option<u64>,
}

/// What one round of questions found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) healthy: bool,
    /// Consumers that were consuming or recovering.
    pub(crate) subscribed: u32,
    /// Whether any was recovering.
    pub(crate) recovering: bool,
}

/// What one consumer answered.
enum Answer {
    Subscribed { recovering: bool },
    Stopped,
    RecoveringTooLong { lasted_ns: u64, grace_ns: u64 },
    Panicked,
}

impl Predicate {
    /// Asks every consumer and runtime, and looks at the jobs. `log` gets the panics; `problems`, if given, what is wrong with
    /// which, and is left alone on a healthy round.
    pub(crate) fn judge(
        &self,
        registered: &[impl AsRef<Registered>],
        jobs: &InFlight,
        now_ns: u64,
        log: &SlotLog<impl fmt::Display>,
        problems: &mut Problems,
    ) -> Judgement {
        problems.clear();
        let (mut consumers, mut subscribed, mut any_recovering) = (0u32, 0u32, false);
        for registered in registered.iter().map(AsRef::as_ref) {
            let counted = registered.role == Role::Consumer;
            consumers = consumers.saturating_add(counted.into());
            match self.ask(registered, now_ns, log) {
                Answer::Subscribed { .. } if !counted => {}
                Answer::Stopped if !counted => {
                    problems.add(format_args!("runtime {} blocked", registered.name));
                }
                Answer::Subscribed { recovering } => {
                    subscribed = subscribed.saturating_add(1);
                    any_recovering |= recovering;
                }
                Answer::Stopped => problems.add(format_args!("{} stopped", registered.name)),
                Answer::RecoveringTooLong { lasted_ns, grace_ns } => problems.add(format_args!(
                    "{} recovering {} > {}",
                    registered.name,
                    RoundSeconds { ns: lasted_ns },
                    RoundSeconds { ns: grace_ns },
                )),
                Answer::Panicked => problems.add(format_args!("{} panicked", registered.name)),
            }
        }
        if consumers != self.expected {
            problems.add(format_args!("{consumers} registered"));
        }
        if let Some(deadline_ns) = jobs.stuck_ns {
            problems.add(format_args!(
                "all {} jobs older than {}",
                jobs.count,
                RoundSeconds { ns: deadline_ns }
            ));
        }
        Judgement { healthy: problems.none(), subscribed, recovering: any_recovering }
    }

    fn ask(
        &self,
        registered: &Registered,
        now_ns: u64,
        log: &SlotLog<impl fmt::Display>,
    ) -> Answer {
        // Unwind safe: nothing of ours is changed by the call.
        let state = match catch_unwind(AssertUnwindSafe(|| registered.consumer.state())) {
            Ok(state) => {
                registered.panicked.store(false, Ordering::Relaxed);
                state
            }
            Err(payload) => {
                if !registered.panicked.swap(true, Ordering::Relaxed) {
                    log.error(format_args!(
                        "consumer {} panicked: {}",
                        registered.name,
                        panic_message(&*payload)
                    ));
                }
                registered.recovering.over();
                return Answer::Panicked;
            }
        };
        if state != ConsumerState::Recovering {
            registered.recovering.over();
        }
        match state {
            ConsumerState::Consuming => Answer::Subscribed { recovering: false },
            ConsumerState::Stopped => Answer::Stopped,
            ConsumerState::Recovering => {
                let lasted_ns = registered.recovering.lasted(now_ns);
                match self.recovery_grace_ns {
                    Some(grace_ns) if lasted_ns > grace_ns => {
                        Answer::RecoveringTooLong { lasted_ns, grace_ns }
                    }
                    _ => Answer::Subscribed { recovering: true },
                }
            }
        }
    }
}

/// What is wrong with which consumer, in words. Kept from tick to tick, so that its room is.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    said: String,
    count: usize,
}

impl Problems {
    fn clear(&mut self) {
        self.said.clear();
        self.count = 0;
    }

    fn add(&mut self, problem: fmt::Arguments<'_>) {
        self.count += 1;
        if self.count <= NAMED {
            let joint = if self.count == 1 { "" } else { "; " };
            let _infallible =
                fmt::Write::write_fmt(&mut self.said, format_args!("{joint}{problem}"));
        }
    }

    fn none(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)?;
        match self.count.saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "; … and {more} more"),
        }
    }
}
