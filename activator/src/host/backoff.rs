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

    /// The wait before the restart that is due `now`.
    pub(super) fn next(&mut self, now: Instant) -> Duration {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn backoff() -> Backoff {
        let [min, max, reset] = [1, 10, 60].map(seconds);
        Backoff::new(Restart { red: 3, check: seconds(10), min, max, reset })
    }

    #[test]
    fn each_wait_is_twice_the_one_before_up_to_the_longest() {
        let (mut backoff, mut now) = (backoff(), Instant::now());
        let waits = [1, 2, 4, 8, 10, 10].map(seconds);
        for wait in waits {
            assert_eq!(backoff.next(now), wait);
            // It ran for almost long enough.
            now += wait + seconds(59);
        }
    }

    #[test]
    fn what_ran_for_long_enough_begins_anew() {
        let (mut backoff, now) = (backoff(), Instant::now());
        assert_eq!([backoff.next(now), backoff.next(now)], [1, 2].map(seconds));
        // From its restart on, which came after the second wait.
        let restarted = now + seconds(2);
        assert_eq!(backoff.next(restarted + seconds(60)), seconds(1));
        assert_eq!(backoff.next(restarted + seconds(60)), seconds(2));
    }

    #[test]
    fn after_any_number_of_failures_the_wait_is_the_longest() {
        let (mut backoff, now) = (backoff(), Instant::now());
        for _ in 0..100 {
            backoff.next(now);
        }
        assert_eq!(backoff.next(now), seconds(10));
    }
}
