//! The consumers a worker registered. A snapshot is one reference count: no lock is held while
//! the application is called, and a tick allocates nothing for it.

use std::boxed::Box;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// What a consumer is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerState {
    /// It would take a job if there were one.
    Consuming,
    /// It lost its broker and is getting back to it by itself. Counts as healthy, so that a
    /// broker outage does not restart the fleet; for ever, or for
    /// [`recovery_grace`](crate::Builder::recovery_grace).
    Recovering,
    /// It takes no jobs.
    Stopped,
}

/// Something whose [`ConsumerState`] can be asked. Every `Fn() -> ConsumerState` is one.
///
/// It is asked from the monitor's thread once a tick, with no lock of this crate held. The
/// answer must come from memory: a call that waits for a socket or for a lock held during work
/// holds up the mark, and a mark that is held up for long enough is stale. A panic counts as
/// stopped.
pub trait Consumer: Send + Sync {
    /// What it is doing now.
    fn state(&self) -> ConsumerState;
}

impl<F: Fn() -> ConsumerState + Send + Sync> Consumer for F {
    fn state(&self) -> ConsumerState {
        self()
    }
}

/// What is asked every tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Counted against the expected number.
    Consumer,
    /// A runtime: not counted, but the worker is not healthy while it is stopped.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only runtimes have it"))]
    Runtime,
}

/// A consumer and what the monitor remembers of it from tick to tick.
pub(crate) struct Registered {
    pub(crate) role: Role,
    pub(crate) name: Box<str>,
    pub(crate) consumer: Box<dyn Consumer>,
    pub(crate) recovering: Since,
    /// Whether its panic has been logged, so that it is not again until it answered.
    pub(crate) panicked: AtomicBool,
}

/// Since when something has lasted, on the monotonic clock. Atomic only because it is shared:
/// nobody but the monitor writes it.
#[derive(Default)]
pub(crate) struct Since(AtomicU64);

impl Since {
    /// Starts at `now` if it has not begun, and returns how long it has lasted.
    pub(crate) fn lasted(&self, now: u64) -> u64 {
        // One is added so that zero can mean "not begun".
        let began = match self.0.load(Ordering::Relaxed) {
            0 => {
                self.0.store(now.saturating_add(1), Ordering::Relaxed);
                now
            }
            began => began - 1,
        };
        now.saturating_sub(began)
    }

    pub(crate) fn over(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Consumers at one moment.
pub(crate) type Snapshot = Arc<[Arc<Registered>]>;

pub(crate) struct Registry {
    consumers: Mutex<Snapshot>,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry { consumers: Mutex::new(Arc::new([])) }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.lock())
    }

    pub(crate) fn register(
        self: &Arc<Self>,
        role: Role,
        name: &str,
        consumer: Box<dyn Consumer>,
    ) -> Registration {
        let registered = Arc::new(Registered {
            role,
            name: name.into(),
            consumer,
            recovering: Since::default(),
            panicked: AtomicBool::new(false),
        });
        self.replace(|old| {
            let mut new = Vec::with_capacity(old.len() + 1);
            new.extend(old.iter().cloned());
            new.push(Arc::clone(&registered));
            new
        });
        Registration { registry: Arc::clone(self), registered }
    }

    fn unregister(&self, gone: &Arc<Registered>) {
        self.replace(|old| old.iter().filter(|one| !Arc::ptr_eq(one, gone)).cloned().collect());
    }

    /// The old snapshot is dropped after the lock: with it may go a consumer, whose drop is
    /// the application's code.
    fn replace(&self, change: impl FnOnce(&[Arc<Registered>]) -> Vec<Arc<Registered>>) {
        let mut consumers = self.lock();
        let new = change(&consumers).into();
        let old = std::mem::replace(&mut *consumers, new);
        drop(consumers);
        drop(old);
    }

    /// A panic of another thread does not make the list wrong: it is replaced whole.
    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A consumer is registered until this is dropped. A tick that is under way may ask it once
/// more after that.
#[must_use = "the consumer is registered only until this is dropped"]
pub struct Registration {
    registry: Arc<Registry>,
    registered: Arc<Registered>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.unregister(&self.registered);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.registered.name).finish()
    }
}
