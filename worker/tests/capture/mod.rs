//! Log lines as a test sees them, and a worker whose clock is the test's.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use tickmark::procfs::Inspection;
use tickmark::protocol::{Detail, Generation, Now, Pid1, State, Topology};
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
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// What was logged since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
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
        self.0.lock().unwrap().push(line);
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

pub(crate) fn inspection(state: State, pid1: Pid1, detail: Detail, evidence: Generation) -> Inspection {
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
