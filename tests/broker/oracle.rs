//! What the verdict must be, and when, given what was done: one rule for each situation. It knows the
//! deeds and the clock, and nothing of marks, connections or lapin.

use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::worker::LATE;

/// What may happen to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Situation {
    Quiet,
    QueueDeleted,
    BrokerKilled,
    BrokerDownForSevenMaxAges,
    WrongPassword,
    AckTimeout,
    PacketsDropped,
    WithoutItsChannels,
    SigtermWithALongJob,
    SigtermWithAJobThatNeverEnds,
    ProcessKilled,
}

impl Situation {
    pub(crate) const ALL: [Situation; 11] = [
        Situation::Quiet,
        Situation::QueueDeleted,
        Situation::BrokerKilled,
        Situation::BrokerDownForSevenMaxAges,
        Situation::WrongPassword,
        Situation::AckTimeout,
        Situation::PacketsDropped,
        Situation::WithoutItsChannels,
        Situation::SigtermWithALongJob,
        Situation::SigtermWithAJobThatNeverEnds,
        Situation::ProcessKilled,
    ];

    pub(crate) fn named(name: &str) -> Option<Situation> {
        Situation::ALL.into_iter().find(|situation| format!("{situation:?}") == name)
    }

    /// The rules: whether the worker stops leaving marks.
    fn ends_the_marks(self) -> bool {
        match self {
            Situation::Quiet
            // Nothing that a restart would cure.
            | Situation::BrokerKilled
            | Situation::BrokerDownForSevenMaxAges
            | Situation::PacketsDropped
            // On purpose, and within the grace.
            | Situation::SigtermWithALongJob => false,
            Situation::QueueDeleted
            | Situation::AckTimeout
            | Situation::WithoutItsChannels
            | Situation::SigtermWithAJobThatNeverEnds
            // No process, or none that gets in.
            | Situation::WrongPassword
            | Situation::ProcessKilled => true,
        }
    }
}

/// The verdict from an instant on; `None` while it may be either.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Instant,
    healthy: Option<bool>,
}

pub(crate) struct Oracle {
    max_age: Duration,
    /// Told the opposite of one rule, it must disagree with the worker.
    wrong: Option<Situation>,
    /// In the order of time.
    spans: Mutex<Vec<Span>>,
}

impl Oracle {
    /// Knows nothing until a worker has started.
    pub(crate) fn new(max_age: Duration, wrong: Option<Situation>) -> Oracle {
        let spans = vec![Span { from: Instant::now(), healthy: None }];
        Oracle { max_age, wrong, spans: Mutex::new(spans) }
    }

    /// A healthy worker got into a situation whose last mark, if it is one that ends them, was or
    /// will be left in this time. Returns when a verdict that turns must have turned.
    pub(crate) fn done(&self, situation: Situation, last_mark: RangeInclusive<Instant>) -> Instant {
        let stale_from = *last_mark.start() + self.max_age - LATE;
        let stale_by = *last_mark.end() + self.max_age + LATE;
        if situation.ends_the_marks() != (self.wrong == Some(situation)) {
            self.push(Span { from: stale_from, healthy: None });
            self.push(Span { from: stale_by, healthy: Some(false) });
        }
        stale_by
    }

    /// A process starts: its predecessor's mark decides, or already its own.
    pub(crate) fn starting(&self) {
        self.forget_the_future();
        self.push(Span { from: Instant::now(), healthy: None });
    }

    /// Whatever was, it is over.
    pub(crate) fn healthy_from(&self, from: Instant) {
        self.forget_the_future();
        self.push(Span { from, healthy: Some(true) });
    }

    /// What it must have been if it was one thing from `asked` to `answered`.
    pub(crate) fn during(&self, asked: Instant, answered: Instant) -> Option<bool> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let last = spans.iter().rposition(|span| span.from <= asked)?;
        let turned = spans[last + 1..].iter().any(|span| span.from <= answered);
        if turned { None } else { spans[last].healthy }
    }

    fn push(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let ordered = spans.last().is_none_or(|last| last.from <= span.from);
        assert!(ordered, "the oracle was told too soon: {span:?} after {:?}", spans.last());
        spans.push(span);
    }

    fn forget_the_future(&self) {
        let now = Instant::now();
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).retain(|span| span.from <= now);
    }
}
