//! Log lines as a test sees them, and a worker whose clock is the test's.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tickmark::procfs::Inspection;
use tickmark::protocol::{
    AnyMark, Detail, Generation, Mark, MarkFile, Now, Pid1, Slot, State, Topology,
};
use tickmark::{Builder, ConsumerState, Error, Liveness, Monitor, Registration};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

pub(crate) const SECOND: u64 = 1_000_000_000;
/// When the tests begin: nonzero, so that a forgotten subtraction shows.
pub(crate) const START: u64 = 1_000 * SECOND;

/// The lines logged on this thread, `LEVEL text`.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Lines {
    /// What was logged since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.0.lock().unwrap())
    }

    /// Waits until a line ends so; five seconds at most.
    pub(crate) fn wait_for(&self, end: &str) {
        self.wait_until(|lines| lines.iter().any(|line| line.ends_with(end)));
    }

    /// Waits until the lines are so; five seconds at most.
    pub(crate) fn wait_until(&self, hold: impl Fn(&[String]) -> bool) {
        let limit = Duration::from_secs(5);
        let lines = self.0.0.lock().unwrap();
        let (lines, waited) =
            self.0.1.wait_timeout_while(lines, limit, |lines| !hold(lines)).unwrap();
        assert!(!waited.timed_out(), "{lines:?}");
    }

    /// The lines that say `part`, so far.
    pub(crate) fn about(&self, part: &str) -> Vec<String> {
        let lines = self.0.0.lock().unwrap();
        lines.iter().filter(|line| line.contains(part)).cloned().collect()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        let line = format!("{} {}", event.metadata().level(), message.0);
        self.0.0.lock().unwrap().push(line);
        self.0.1.notify_all();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A directory that is removed with its guard; on tmpfs, where marks belong, if there is one.
pub(crate) fn directory() -> std::io::Result<tempfile::TempDir> {
    let shared_memory = Path::new("/dev/shm");
    if shared_memory.is_dir() { tempfile::tempdir_in(shared_memory) } else { tempfile::tempdir() }
}

/// Catches this thread's lines until the guard is dropped.
pub(crate) fn capture() -> (Lines, DefaultGuard) {
    let lines = Lines::default();
    let guard = tracing::subscriber::set_default(lines.clone());
    (lines, guard)
}

/// A consumer whose state a test turns.
#[derive(Clone)]
pub(crate) struct Switch(Arc<AtomicU8>);

impl Switch {
    pub(crate) fn new(state: ConsumerState) -> Switch {
        let switch = Switch(Arc::new(AtomicU8::new(0)));
        switch.turn(state);
        switch
    }

    pub(crate) fn turn(&self, state: ConsumerState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }
}

impl tickmark::Consumer for Switch {
    fn state(&self) -> ConsumerState {
        match self.0.load(Ordering::Relaxed) {
            0 => ConsumerState::Consuming,
            1 => ConsumerState::Recovering,
            _ => ConsumerState::Stopped,
        }
    }
}

/// A liveness whose ticks come when the test says.
pub(crate) struct Worker {
    pub(crate) liveness: Liveness,
    pub(crate) monitor: Monitor,
    pub(crate) now_ns: u64,
}

impl Worker {
    pub(crate) fn start(builder: Builder) -> Worker {
        Worker::start_at(builder, START)
    }

    pub(crate) fn start_at(builder: Builder, now_ns: u64) -> Worker {
        let (liveness, monitor) = builder.start_without_thread().unwrap();
        let mut worker = Worker { liveness, monitor: monitor.expect("a slot"), now_ns };
        worker.tick_here();
        worker
    }

    pub(crate) fn tick_here(&mut self) {
        self.monitor.tick(Now {
            monotonic_ns: self.now_ns,
            realtime_ns: 1_700_000_000_000_000_000 + self.now_ns as i64,
        });
    }

    /// Lets `seconds` pass, then ticks once.
    pub(crate) fn tick_after(&mut self, seconds: u64) {
        self.now_ns += seconds * SECOND;
        self.tick_here();
    }

    pub(crate) fn register(&self, name: &str, switch: &Switch) -> Registration {
        self.liveness.register(name, switch.clone())
    }
}

/// A container that can tell itself from others.
pub(crate) fn container(id: u64) -> Inspection {
    inspection(
        State::Verified,
        Pid1::Here,
        Detail::None,
        Generation {
            boot_id: Some([7; 16]),
            mount_namespace_id: Some(id),
            ..Generation::default()
        },
    )
}

pub(crate) fn inspection(
    state: State,
    pid1: Pid1,
    detail: Detail,
    evidence: Generation,
) -> Inspection {
    let generation = match state {
        State::Unsafe | State::Unavailable | State::NonLinux => None,
        _ => Some(evidence.clone()),
    };
    Inspection { topology: Topology { state, pid1, detail }, generation, evidence }
}

/// Two consumers, the defaults, marks in `dir`.
pub(crate) fn builder(dir: &Path) -> Builder {
    builder_with(dir, &[])
}

pub(crate) fn builder_with(dir: &Path, variables: &[(&str, &str)]) -> Builder {
    let dir = dir.to_str().unwrap();
    Liveness::builder()
        .consumers(2)
        .environment([("TICKMARK_DIR", dir)].into_iter().chain(variables.iter().copied()))
        .inspection(container(1))
}

pub(crate) fn mistake(builder: Builder) -> Error {
    builder.start_without_thread().map(|_| ()).unwrap_err()
}

/// A worker with two consuming consumers that has ticked twice.
pub(crate) fn healthy(builder: tickmark::Builder) -> (Worker, [Registration; 2]) {
    let mut worker = Worker::start(builder);
    let consuming = Switch::new(ConsumerState::Consuming);
    let registered = ["orders", "mails"].map(|name| worker.register(name, &consuming));
    worker.tick_after(10);
    (worker, registered)
}

pub(crate) fn mark(dir: &Path) -> Mark {
    match MarkFile::decode(Slot::FIRST, &fs::read(dir.join("worker-0")).unwrap()) {
        Ok(AnyMark::Binary(mark)) => mark,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn errors(lines: &Lines) -> Vec<String> {
    lines.take().into_iter().filter(|line| line.starts_with("ERROR")).collect()
}

#[track_caller]
pub(crate) fn assert_one_error(lines: &Lines, parts: &[&str]) {
    let said = errors(lines);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("cannot publish: "), "{said:?}");
    assert!(parts.iter().all(|part| said[0].contains(part)), "{said:?}");
}
