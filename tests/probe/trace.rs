//! One run of the probe under strace, call by call.

use std::fs;
use std::process::{Command, Stdio};

use crate::inherited;
use crate::marks::Marks;
use crate::site::Site;

/// A system call as strace writes it: `openat(3, "expected", O_RDONLY) = 4`.
pub(crate) struct Call {
    line: String,
}

impl Call {
    pub(crate) fn name(&self) -> &str {
        self.line.split('(').next().unwrap_or_default()
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.line.contains(text)
    }

    /// Its arguments as numbers, where they are.
    pub(crate) fn numbers(&self) -> Vec<i32> {
        let inside = self.line.split_once('(').map_or("", |(_, rest)| rest);
        let inside = inside.rsplit_once(')').map_or("", |(inside, _)| inside);
        inside.split(", ").filter_map(|argument| argument.parse().ok()).collect()
    }

    /// What it returned, where it is a number that is no error.
    pub(crate) fn returned(&self) -> Option<i32> {
        let value = self.line.rsplit_once(" = ")?.1.split(' ').next()?;
        value.parse().ok().filter(|&value: &i32| value >= 0)
    }
}

/// Every call from execve to the exit, both included.
pub(crate) fn healthy(site: &Site, slots: u32) -> Vec<Call> {
    let marks = Marks::healthy(site, slots);
    let log = site.fresh("trace".as_ref());
    let mut command = Command::new("strace");
    inherited::only_standard_streams(&mut command);
    let output = command
        .args(["-f", "-o"])
        .arg(&log)
        .arg(site.program())
        .arg("--dir")
        .arg(marks.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .stdin(Stdio::null())
        .output()
        .expect("strace runs");
    let trace = fs::read_to_string(log).expect("a trace");
    assert!(output.status.success(), "{output:?}\n{trace}");
    trace
        .lines()
        .map(|line| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' '))
        .filter(|line| line.contains('(') && !line.starts_with("+++") && !line.starts_with("---"))
        .map(|line| Call { line: line.to_owned() })
        .collect()
}

/// For a failure's message.
pub(crate) fn lines(calls: &[Call]) -> String {
    calls.iter().map(|call| call.line.as_str()).collect::<Vec<_>>().join("\n")
}
