//! The mistakes in code that keep a worker's liveness from starting. What the environment or
//! the file system does wrong is logged instead: it must not keep a worker from working.

use std::fmt;
use std::string::String;

/// A mistake in the settings made in code. Opaque: ask the `is_*` predicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    said: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tick,
    Grace,
    Consumers,
    Slot,
    Processes,
    Jobs,
    #[cfg(feature = "serve")]
    Serve,
}

impl Error {
    pub(crate) fn new(kind: Kind, said: String) -> Error {
        Error { kind, said }
    }

    /// The tick is zero, or not below `TICKMARK_MAX_AGE`.
    #[must_use]
    pub fn is_tick(&self) -> bool {
        self.kind == Kind::Tick
    }

    /// A grace is zero, or longer than the clock can hold (584 years); or recovering is healthy
    /// for ever on a connection that may give up.
    #[must_use]
    pub fn is_grace(&self) -> bool {
        self.kind == Kind::Grace
    }

    /// The number of consumers is missing, zero, or above `u32::MAX`.
    #[must_use]
    pub fn is_consumers(&self) -> bool {
        self.kind == Kind::Consumers
    }

    /// The slot is above 4095, or not below the number of processes that was set beside it.
    #[must_use]
    pub fn is_slot(&self) -> bool {
        self.kind == Kind::Slot
    }

    /// The number of processes is zero or above 4096.
    #[must_use]
    pub fn is_processes(&self) -> bool {
        self.kind == Kind::Processes
    }

    /// The concurrency of jobs is zero or above 65,536, or their deadline is zero or longer
    /// than the clock can hold.
    #[must_use]
    pub fn is_jobs(&self) -> bool {
        self.kind == Kind::Jobs
    }

    /// The port to serve on is 0.
    #[cfg(feature = "serve")]
    #[must_use]
    pub fn is_serve(&self) -> bool {
        self.kind == Kind::Serve
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Error {}
