//! The lines a worker logs: events, not the pulse. Each names its slot, so that the lines of
//! several processes in one stream can be told apart.

use std::boxed::Box;
use std::fmt;
use std::time::Duration;

use tracing::{error, info, warn};

/// The target of every line, for filters: `RUST_LOG=tickmark=info`.
const TARGET: &str = "tickmark";

/// Where the lines of one slot go. `S` is a number, or what stands where one was expected.
#[derive(Debug, Clone)]
pub(crate) struct SlotLog<S> {
    slot: S,
}

impl<S: fmt::Display> SlotLog<S> {
    pub(crate) fn new(slot: S) -> SlotLog<S> {
        SlotLog { slot }
    }

    pub(crate) fn info(&self, line: impl fmt::Display) {
        info!(target: TARGET, "[liveness] slot {}: {line}", self.slot);
    }

    pub(crate) fn warn(&self, line: impl fmt::Display) {
        warn!(target: TARGET, "[liveness] slot {}: {line}", self.slot);
    }

    pub(crate) fn error(&self, line: impl fmt::Display) {
        error!(target: TARGET, "[liveness] slot {}: {line}", self.slot);
    }
}

/// A duration as the lines write it: `45s`, `2.5s`.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0.as_secs_f64())
    }
}

/// A span of the monotonic clock to the nearest second: a tick is never quite on time, and
/// `59s` for a grace of 60 would puzzle its reader.
pub(crate) struct RoundSeconds {
    pub(crate) ns: u64,
}

impl fmt::Display for RoundSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.ns.saturating_add(500_000_000) / 1_000_000_000)
    }
}

/// What a panic said, where it said it in words.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> &str {
    if let Some(said) = payload.downcast_ref::<&'static str>() {
        said
    } else if let Some(said) = payload.downcast_ref::<std::string::String>() {
        said
    } else {
        "panic without a message"
    }
}

/// The payload of a caught panic.
pub(crate) type Panic = Box<dyn std::any::Any + Send>;
