//! How long to wait before the next restart.

use std::time::{Duration, Instant};

use super::Restart;

/// How long to wait before the next restart.
pub(super) struct Backoff {
    restart: Restart,
    failures: u32,
    last: Option<Instant>,
}

impl Backoff {
    pub(super) fn new(restart: Restart) -> Backoff {
        Backoff { restart, failures: 0, last: None }
    }

    /// The wait before the restart that is due now.
    pub(super) fn next(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) >= self.restart.reset) {
            self.failures = 0;
        }
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1).min(31);
        let wait = self.restart.min.saturating_mul(factor).min(self.restart.max);
        self.last = Some(now + wait);
        wait
    }
}
