//! Whether the worker is healthy: exactly the expected consumers are registered, each is consuming
//! or recovering, every watched runtime runs, and not every place is held by a job that is
//! overdue. Reads memory only.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
use std::sync::atomic::Ordering;

use tickmark_protocol::CONSUMER_STATES_MAX;

use crate::jobs::InFlight;
use crate::log::{RoundSeconds, SlotLog, panic_message};
use crate::registry::{ConsumerState, Registered, Role};

/// How many consumers a line names before it only counts them.
const NAMED: usize = 16;

/// Characters of a consumer's name in a mark; a longer one is cut.
const NAME_SHOWN: usize = 48;

/// Room for `; ... and 18446744073709551615 more`.
const MORE_ROOM: usize = 36;

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

impl Answer {
    /// As a mark says it of a consumer.
    fn in_words(&self) -> &'static str {
        match self {
            Answer::Subscribed { recovering: false } => "consuming",
            Answer::Subscribed { recovering: true } => "recovering",
            Answer::Stopped => "stopped",
            Answer::RecoveringTooLong { .. } => "recovering too long",
            Answer::Panicked => "panicked",
        }
    }
}

impl Predicate {
    /// Asks every consumer and runtime, and looks at the jobs. `log` gets the panics, `problems` what
    /// is wrong with which (nothing on a healthy round), `states` what each consumer answered.
    pub(crate) fn judge(
        &self,
        registered: &[impl AsRef<Registered>],
        jobs: &InFlight,
        now_ns: u64,
        log: &SlotLog<impl fmt::Display>,
        problems: &mut Problems,
        states: &mut States<'_>,
    ) -> Judgement {
        problems.clear();
        let (mut consumers, mut subscribed, mut any_recovering) = (0u32, 0u32, false);
        for registered in registered.iter().map(AsRef::as_ref) {
            let counted = registered.role == Role::Consumer;
            consumers = consumers.saturating_add(counted.into());
            let answer = self.ask(registered, now_ns, log);
            if counted {
                states.add(&registered.name, answer.in_words());
            }
            match answer {
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
        if let Some(stuck) = jobs.stuck {
            problems.add(format_args!("{stuck}"));
        }
        states.end();
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

/// What each consumer answered, written into a mark: printable ASCII, cut where it is full, and no
/// allocation.
pub(crate) struct States<'m> {
    said: &'m mut Said,
    /// Consumers that found no room.
    more: usize,
}

type Said = heapless::Vec<u8, CONSUMER_STATES_MAX>;

impl<'m> States<'m> {
    /// Writes over what `said` holds.
    pub(crate) fn new(said: &'m mut Said) -> States<'m> {
        said.clear();
        States { said, more: 0 }
    }

    fn add(&mut self, name: &str, state: &str) {
        let before = self.said.len();
        if self.more > 0 || self.try_add(name, state).is_none() {
            self.said.truncate(before);
            self.more += 1;
        }
    }

    /// `None` where it does not fit beside the words that would end a longer list.
    fn try_add(&mut self, name: &str, state: &str) -> Option<()> {
        if !self.said.is_empty() {
            self.said.extend_from_slice(b"; ").ok()?;
        }
        let mut characters = name.chars();
        for character in characters.by_ref().take(NAME_SHOWN) {
            let shown = if matches!(character, ' '..='~') { character as u8 } else { b'?' };
            self.said.push(shown).ok()?;
        }
        if characters.next().is_some() {
            self.said.extend_from_slice(b"...").ok()?;
        }
        self.said.push(b' ').ok()?;
        self.said.extend_from_slice(state.as_bytes()).ok()?;
        (self.said.len() + MORE_ROOM <= CONSUMER_STATES_MAX).then_some(())
    }

    fn end(&mut self) {
        if self.more > 0 {
            let joint = if self.said.is_empty() { "" } else { "; " };
            let _fits =
                fmt::Write::write_fmt(self.said, format_args!("{joint}... and {} more", self.more));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn said(consumers: &[(&str, &str)]) -> String {
        let mut said = Said::new();
        let mut states = States::new(&mut said);
        for (name, state) in consumers {
            states.add(name, state);
        }
        states.end();
        core::str::from_utf8(&said).unwrap().to_string()
    }

    #[test]
    fn each_consumer_is_said_with_its_state() {
        assert_eq!(said(&[]), "");
        assert_eq!(said(&[("orders", "consuming")]), "orders consuming");
        assert_eq!(
            said(&[("orders", "consuming"), ("mails", "recovering")]),
            "orders consuming; mails recovering"
        );
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let many: std::vec::Vec<(&str, &str)> =
            std::iter::repeat_n(("queue", "consuming"), 4096).collect();
        let text = said(&many);
        assert!(text.starts_with("queue consuming; queue consuming; "), "{text}");
        assert!(text.ends_with("; queue consuming; ... and 4087 more"), "{text}");
        assert!(text.len() <= CONSUMER_STATES_MAX);
        for count in 0..20 {
            let text = said(&many[..count]);
            let named = text.matches("queue consuming").count();
            let more = text
                .rsplit_once("... and ")
                .map_or(0, |(_, rest)| rest.strip_suffix(" more").unwrap().parse().unwrap());
            assert_eq!(named + more, count, "{text}");
        }
    }

    #[test]
    fn names_are_short_and_printable() {
        assert_eq!(said(&[("a\nb\u{7f} ü", "stopped")]), "a?b? ? stopped");
        let long = "x".repeat(300);
        let text = said(&[(&long, "consuming"), (&long, "panicked")]);
        let short = "x".repeat(NAME_SHOWN);
        assert_eq!(text, std::format!("{short}... consuming; {short}... panicked"));
    }
}
