//! What a scenario comes to: lines of expected and observed, or the reason why there are none.

use std::fmt;
use std::time::Duration;

/// Why a scenario has no report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Something did not hold, or could not be looked at.
    Failed(String),
    /// It cannot run here; the reason, for the table.
    Skipped(String),
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

impl Stop {
    pub(crate) fn failed(what: impl Into<String>) -> Stop {
        Stop::Failed(what.into())
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Failed(why) => f.write_str(why),
            Stop::Skipped(reason) => write!(f, "skipped: {reason}"),
            Stop::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Names the operation in an error that does not.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Stop>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Stop> {
        self.map_err(|error| Stop::Failed(format!("{what}: {error}")))
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) expected: String,
    pub(crate) observed: String,
    pub(crate) holds: bool,
}

/// All that a scenario looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) lines: Vec<Line>,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        what: &str,
        expected: impl fmt::Display,
        observed: impl fmt::Display,
        holds: bool,
    ) {
        self.lines.push(Line {
            what: what.to_owned(),
            expected: expected.to_string(),
            observed: observed.to_string(),
            holds,
        });
    }

    /// Something that must be exactly so.
    pub(crate) fn is<T: PartialEq + fmt::Display>(&mut self, what: &str, expected: T, observed: T) {
        let holds = expected == observed;
        self.add(what, expected, observed, holds);
    }

    /// A time that was predicted. `called` is what the calls that surround it may add.
    pub(crate) fn within(&mut self, what: &str, window: Window, took: Took, called: Duration) {
        let holds = took.at_most >= window.at_least && took.at_least <= window.at_most + called;
        self.add(what, window, took, holds);
    }

    pub(crate) fn holds(&self) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| line.holds)
    }
}

/// Between these two, says the arithmetic of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) at_least: Duration,
    pub(crate) at_most: Duration,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} s", self.at_least.as_secs_f64(), self.at_most.as_secs_f64())
    }
}

/// How long something took: from the end of what set it off, and from its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Took {
    pub(crate) at_least: Duration,
    pub(crate) at_most: Duration,
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.at_least.as_secs_f64(), self.at_most.as_secs_f64());
        if format!("{least:.1}") == format!("{most:.1}") {
            return write!(f, "{most:.1} s");
        }
        write!(f, "{least:.1} to {most:.1} s")
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
