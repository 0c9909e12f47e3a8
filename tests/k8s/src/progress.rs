//! What is going on while it goes on, on stderr: one line that is written over on a terminal, and
//! elsewhere a line for each step.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub(crate) struct Progress {
    begun: Instant,
    terminal: bool,
    running: Mutex<BTreeMap<u8, (String, Instant)>>,
}

/// Columns that a line may take where nothing is known of the terminal.
const COLUMNS: usize = 100;

impl Progress {
    pub(crate) fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { begun: Instant::now(), terminal, running: Mutex::default() }
    }

    /// What the scenario waits for now.
    pub(crate) fn step(&self, scenario: u8, what: &str) {
        self.change(|running| {
            running.insert(scenario, (what.to_owned(), Instant::now()));
        });
        if !self.terminal {
            eprintln!("[{:6.1} s] {scenario}: {what}", self.begun.elapsed().as_secs_f64());
        }
    }

    pub(crate) fn done(&self, scenario: u8, answer: &str) {
        self.change(|running| {
            running.remove(&scenario);
        });
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}[{:6.1} s] {scenario}: {answer}", self.begun.elapsed().as_secs_f64());
        self.draw();
    }

    /// Something that is no scenario's.
    pub(crate) fn say(&self, what: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        eprintln!("{clear}[{:6.1} s] {what}", self.begun.elapsed().as_secs_f64());
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u8, (String, Instant)>)) {
        change(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Called now and then, so that the seconds are seen to pass.
    pub(crate) fn draw(&self) {
        if !self.terminal {
            return;
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<String> = running
            .iter()
            .map(|(scenario, (what, since))| {
                format!("{scenario}: {what} {} s", since.elapsed().as_secs())
            })
            .collect();
        let line: String = all.join(" · ").chars().take(COLUMNS).collect();
        let mut stderr = std::io::stderr();
        let _closed = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
    }
}
