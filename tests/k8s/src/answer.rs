//! What a scenario comes to: lines of expected and observed, or the reason why there are none.

use std::fmt;
use std::time::Duration;

/// Why a scenario has no report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Something did not hold, or could not be looked at.
    Failed(String),
    /// Something did not come in its time.
    Late(String),
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
            Stop::Failed(why) | Stop::Late(why) => f.write_str(why),
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
    /// It does not hold only in that it came later than it should.
    pub(crate) late: bool,
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
        let (expected, observed) = (expected.to_string(), observed.to_string());
        self.lines.push(Line { what: what.to_owned(), expected, observed, holds, late: false });
    }

    /// Something that must be exactly so.
    pub(crate) fn is<T: PartialEq + fmt::Display>(&mut self, what: &str, expected: T, observed: T) {
        let holds = expected == observed;
        self.add(what, expected, observed, holds);
    }

    /// A time that was predicted. `called` is what the calls that surround it may add.
    pub(crate) fn within(&mut self, what: &str, window: Window, took: Took, called: Duration) {
        let late = took.at_least > window.at_most + called;
        let holds = took.at_most >= window.at_least && !late;
        let (expected, observed) = (window.to_string(), took.to_string());
        self.lines.push(Line { what: what.to_owned(), expected, observed, holds, late });
    }

    pub(crate) fn holds(&self) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| line.holds)
    }

    /// All that does not hold came late.
    pub(crate) fn is_late(&self) -> bool {
        let mut wrong = self.lines.iter().filter(|line| !line.holds).peekable();
        wrong.peek().is_some() && wrong.all(|line| line.late)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_only_what_came_after_its_window_and_what_the_calls_may_add() {
        let second = Duration::from_secs;
        let window = Window { at_least: second(8), at_most: second(11) };
        let report = |at_least, at_most| {
            let mut report = Report::default();
            report.is("restarts", 1, 1);
            let took = Took { at_least: second(at_least), at_most: second(at_most) };
            report.within("gone", window, took, second(2));
            report
        };
        assert!(report(10, 10).holds() && !report(10, 10).is_late());
        assert!(report(13, 14).holds());
        assert!(report(14, 15).is_late());
        // Too early is wrong, on any machine.
        assert!(!report(5, 7).holds() && !report(5, 7).is_late());
        // And so is whatever is wrong beside what is late.
        let mut both = report(14, 15);
        both.is("restarts", 1, 2);
        assert!(!both.is_late());
        assert!(!Report::default().is_late(), "nothing was looked at");
    }
}
