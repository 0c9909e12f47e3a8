//! What the application tells the monitor's thread: that it is stopping, and since when, or
//! that nobody holds the liveness any more.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Default)]
pub(crate) struct Signal {
    said: Mutex<Said>,
    changed: Condvar,
}

#[derive(Default)]
struct Said {
    stopping_since_ns: Option<u64>,
    /// A change that the thread has not seen yet.
    news: bool,
    ended: bool,
}

/// Why the thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    Tick,
    End,
}

impl Signal {
    /// The first call counts; the ones after it change nothing.
    pub(crate) fn stop(&self, now_ns: u64) {
        let mut said = self.lock();
        if said.stopping_since_ns.is_none() {
            said.stopping_since_ns = Some(now_ns);
            said.news = true;
            self.changed.notify_all();
        }
    }

    pub(crate) fn stopping_since_ns(&self) -> Option<u64> {
        self.lock().stopping_since_ns
    }

    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `due`, or for news.
    pub(crate) fn wait(&self, due: Instant) -> Wake {
        let mut said = self.lock();
        loop {
            if said.ended {
                return Wake::End;
            }
            let left = due.saturating_duration_since(Instant::now());
            if std::mem::take(&mut said.news) || left.is_zero() {
                return Wake::Tick;
            }
            said = self.changed.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whole whatever a panicking holder did: every change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
