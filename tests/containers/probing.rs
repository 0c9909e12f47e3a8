//! Probing a container: what the probe answers now, and what it must come to answer.

use std::time::{Duration, Instant};

use crate::container::{Answer, Container};
use crate::marks::Marks;
use crate::site::patience;

pub(crate) const UNSUPPORTED: &str =
    "unsupported PID topology: pod must not set shareProcessNamespace or hostPID";
pub(crate) const PREVIOUS: &str =
    "heartbeat belongs to a previous container: worker has not started yet";
pub(crate) const ONE_HEALTHY: &str = "1 process(es) healthy";

/// A probe of one container: the program and what differs from the worker's environment.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'a> {
    pub(crate) program: &'a str,
    pub(crate) changes: &'a [(&'a str, &'a str)],
}

impl<'a> Probe<'a> {
    pub(crate) fn new(program: &'a str) -> Self {
        Self { program, changes: &[] }
    }

    pub(crate) fn with(self, changes: &'a [(&'a str, &'a str)]) -> Self {
        Self { changes, ..self }
    }

    pub(crate) fn ask(&self, container: &Container) -> Answer {
        // A busy machine may keep a probe waiting for longer than its own 3 s.
        container.exec(&[self.program, "--timeout", "60"], self.changes)
    }

    /// Asks until the answer is this one; panics with all that is known when it never is.
    pub(crate) fn until(&self, container: &Container, marks: &Marks, status: i32, line: &str) {
        let wanted = Answer { status: Some(status), line: line.to_owned() };
        let started = Instant::now();
        loop {
            let answer = self.ask(container);
            if answer == wanted {
                return;
            }
            assert!(
                started.elapsed() < patience(),
                "the probe never said {wanted:?}; last {answer:?}\nmarks {:?}\nlog\n{}",
                marks.listing(),
                container.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asks again and again for a while, and the answer must always be this one.
    pub(crate) fn stays(&self, container: &Container, period: Duration, status: i32, line: &str) {
        self.always(container, period, line, |answer| {
            answer.status == Some(status) && answer.line == line
        });
    }

    /// The same for any of the answers about marks that another container left.
    pub(crate) fn rejects(&self, container: &Container, period: Duration) {
        self.always(container, period, PREVIOUS, rejects_a_previous_container);
    }

    fn always(
        &self,
        container: &Container,
        period: Duration,
        due: &str,
        is_due: impl Fn(&Answer) -> bool,
    ) {
        let started = Instant::now();
        while started.elapsed() < period {
            let answer = self.ask(container);
            assert!(
                is_due(&answer),
                "the probe said {answer:?} where {due:?} was due\nlog\n{}",
                container.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Says whether this is an answer about marks that another container left, and no other.
pub(crate) fn rejects_a_previous_container(answer: &Answer) -> bool {
    let per_slot = |part: &str| {
        part.starts_with("worker-") && part.ends_with(" belongs to a previous container")
    };
    answer.status == Some(1) && (answer.line == PREVIOUS || answer.line.split("; ").all(per_slot))
}

/// Waits for a line of the worker's log that holds every one of the words; returns it.
pub(crate) fn wait_for_log(container: &Container, words: &[&str]) -> String {
    let started = Instant::now();
    loop {
        let log = container.log();
        let found = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
        if let Some(line) = found {
            return line.to_owned();
        }
        assert!(started.elapsed() < patience(), "no {words:?} in\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
