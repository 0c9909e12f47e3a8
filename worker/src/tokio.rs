//! Whether a tokio runtime still runs anything: a task of ours in it answers once a tick. What it
//! shows is that every executor thread is blocked; fewer are a matter for jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::liveness::Liveness;
use crate::registry::{Consumer, ConsumerState, Registration};

/// A runtime is watched until this is dropped.
#[derive(Debug)]
#[must_use = "the runtime is watched only until this is dropped"]
pub struct RuntimeWatch {
    _registration: Registration,
    task: AbortHandle,
}

/// A question asked in every tick and answered by a task that lives as long as the watch:
/// spawning one for each question would allocate.
struct NoOp {
    asked: AtomicU64,
    answered: AtomicU64,
    question: Notify,
}

impl Liveness {
    /// From now on the worker is healthy only if the runtime of `handle` answered the question
    /// of the last tick, so a blocked one shows within two. Both flavours; one of a single
    /// thread answers only while something blocks on it. Blocking tasks do not count.
    ///
    /// `name` is for the log.
    pub fn watch_runtime(&self, name: &str, handle: &Handle) -> RuntimeWatch {
        let no_op = Arc::new(NoOp {
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            question: Notify::new(),
        });
        let answering = Arc::clone(&no_op);
        let task = handle.spawn(async move {
            loop {
                // Read before waiting: a question that came in between is not lost, for
                // `notify_one` leaves a permit.
                answering.question.notified().await;
                answering
                    .answered
                    .store(answering.asked.load(Ordering::Acquire), Ordering::Release);
            }
        });
        let registration = self.register_runtime(name, Watched(no_op));
        RuntimeWatch { _registration: registration, task: task.abort_handle() }
    }
}

struct Watched(Arc<NoOp>);

impl Consumer for Watched {
    fn state(&self) -> ConsumerState {
        let asked = self.0.asked.load(Ordering::Relaxed);
        let answered = self.0.answered.load(Ordering::Acquire) == asked;
        if answered {
            self.0.asked.store(asked + 1, Ordering::Release);
        }
        // Asked again even where an answer is owed: it costs nothing.
        self.0.question.notify_one();
        if answered { ConsumerState::Consuming } else { ConsumerState::Stopped }
    }
}

impl Drop for RuntimeWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}
