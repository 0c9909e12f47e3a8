//! What a run of the probe came to, and the lines it is held against.

use std::fmt::{self, Display};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use crate::marks::Marks;
use crate::site::Site;

pub(crate) const UNSUPPORTED: &str =
    "unsupported PID topology: pod must not set shareProcessNamespace or hostPID";
pub(crate) const PREVIOUS: &str =
    "heartbeat belongs to a previous container: worker has not started yet";
pub(crate) const DAMAGED: &str = "worker-0 unreadable (damaged)";
pub(crate) const ONE_HEALTHY: &str = "1 process(es) healthy";
pub(crate) const NEWER: &str = "written by a newer tickmark (format 2)";

/// The line of a directory in which no worker has started.
pub(crate) fn not_started(dir: impl Display) -> String {
    format!(
        "no {dir}/expected: worker has not started yet (is tickmark started before the consumers?)"
    )
}

#[derive(PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, signal, stdout, stderr } = self;
        write!(f, "status {status:?} signal {signal:?}\n  stdout {stdout:?}\n  stderr {stderr:?}")
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("the probe runs");
        Self {
            status: output.status.code(),
            signal: output.status.signal(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8 on standard output"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8 on standard error"),
        }
    }

    /// Exactly this exit status and this one line, and nothing on standard error.
    #[track_caller]
    pub(crate) fn is(&self, status: i32, line: impl Display) {
        self.is_output(status, &format!("{line}\n"));
    }

    /// Exactly this, line ends included.
    #[track_caller]
    pub(crate) fn is_output(&self, status: i32, stdout: &str) {
        let due = Self {
            status: Some(status),
            signal: None,
            stdout: stdout.to_owned(),
            stderr: String::new(),
        };
        assert!(*self == due, "the probe answered\n{self:?}\nwhere due was\n{due:?}");
    }
}

/// The plain call's exit status and line.
#[track_caller]
pub(crate) fn answers(site: &Site, marks: &Marks, status: i32, line: impl Display) {
    Answer::of(&mut site.probe(marks)).is(status, line);
}
