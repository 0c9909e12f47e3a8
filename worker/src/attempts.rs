//! Starts of a slot since it was last healthy. A supervisor brings a failing process back in a
//! fraction of a second, before any counter in its memory could reach a threshold; so the
//! count is kept in the marks directory. Decisions only: the monitor reads, writes and logs.

use tickmark_protocol::{Attempt, Generation};

/// This process's place among the starts of its slot.
#[derive(Debug, Clone)]
pub(crate) struct Attempts {
    record: Attempt,
    window_ns: u64,
    /// Whether this process has said that it is not healthy: once is enough, for its number
    /// of starts does not change.
    reported: bool,
}

/// That the slot has not been healthy for a whole window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overdue {
    pub(crate) lasted_ns: u64,
    pub(crate) starts: u64,
}

impl Attempts {
    /// Counts this start on from what the slot's last one left.
    ///
    /// `own` is everything this process could read about its container, whether or not it is
    /// enough to tell it from another one.
    pub(crate) fn start(
        previous: Option<Attempt>,
        own: &Generation,
        window_ns: u64,
        now_ns: u64,
    ) -> Attempts {
        let record = match previous.filter(|record| continues(record, own, now_ns)) {
            Some(record) => Attempt { starts: record.starts.saturating_add(1), ..record },
            None => Attempt {
                starts: 1,
                first_start_ns: now_ns,
                last_report_ns: None,
                generation: Some(own.clone()),
            },
        };
        Attempts { record, window_ns, reported: false }
    }

    pub(crate) fn record(&self) -> &Attempt {
        &self.record
    }

    /// Whether this is the start that is logged; the ones after it are silent.
    pub(crate) fn is_first(&self) -> bool {
        self.record.starts == 1
    }

    /// Whether the slot is to be reported as not healthy now. `early_ns` is how much before
    /// the window's end a tick may find that it is over: ticks are never quite on time.
    pub(crate) fn overdue(&mut self, now_ns: u64, early_ns: u64) -> Option<Overdue> {
        let since = self.record.last_report_ns.unwrap_or(self.record.first_start_ns);
        let elapsed = now_ns.saturating_sub(since).saturating_add(early_ns);
        if self.reported || elapsed < self.window_ns {
            return None;
        }
        self.reported = true;
        self.record.last_report_ns = Some(now_ns);
        Some(Overdue {
            lasted_ns: now_ns.saturating_sub(self.record.first_start_ns),
            starts: self.record.starts,
        })
    }
}

/// Whether a record counts the same uninterrupted run of starts as this process's.
fn continues(record: &Attempt, own: &Generation, now_ns: u64) -> bool {
    // The monotonic clock begins again at a boot: a time ahead of it is of another one.
    let future = record.first_start_ns > now_ns || record.last_report_ns > Some(now_ns);
    let written = record.generation.as_ref();
    let other_boot = matches!(
        (own.boot_id, written.and_then(|written| written.boot_id)),
        (Some(own), Some(written)) if own != written
    );
    let same = if own.identifies() {
        written.is_some_and(|written| own.relation(written).is_same())
    } else {
        // Who does not know its container counts for the whole volume.
        true
    };
    !future && !other_boot && same
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn container(id: u64) -> Generation {
        Generation { boot_id: Some([1; 16]), mount_namespace_id: Some(id), ..Generation::default() }
    }

    fn started(previous: &Attempts, own: &Generation, now_ns: u64) -> Attempts {
        Attempts::start(Some(previous.record.clone()), own, 60 * SECOND, now_ns)
    }

    #[test]
    fn starts_add_up_within_a_container_and_not_across() {
        let first = Attempts::start(None, &container(7), 60 * SECOND, SECOND);
        let second = started(&first, &container(7), 2 * SECOND);
        assert_eq!((second.record.starts, second.record.first_start_ns), (2, SECOND));
        assert!(started(&second, &container(8), 3 * SECOND).is_first());
    }

    #[test]
    fn without_a_generation_the_count_is_the_volumes() {
        let first = Attempts::start(None, &container(7), 60 * SECOND, SECOND);
        let own = Generation { boot_id: Some([1; 16]), ..Generation::default() };
        assert_eq!(started(&first, &own, SECOND).record.starts, 2);
        assert_eq!(started(&first, &Generation::default(), SECOND).record.starts, 2);
    }

    #[test]
    fn another_boot_and_a_start_in_the_future_begin_anew() {
        let own = Generation { boot_id: Some([1; 16]), ..Generation::default() };
        let first = Attempts::start(None, &own, 60 * SECOND, 9 * SECOND);
        assert!(started(&first, &own, 8 * SECOND).is_first());
        let rebooted = Generation { boot_id: Some([2; 16]), ..Generation::default() };
        assert!(started(&first, &rebooted, 10 * SECOND).is_first());
        assert!(!started(&first, &own, 10 * SECOND).is_first());
    }

    #[test]
    fn one_report_a_window_and_a_process() {
        let own = container(7);
        let mut first = Attempts::start(None, &own, 60 * SECOND, 0);
        assert_eq!(first.overdue(59 * SECOND, 0), None);
        assert_eq!(
            first.overdue(60 * SECOND, 0),
            Some(Overdue { lasted_ns: 60 * SECOND, starts: 1 })
        );
        assert_eq!(first.overdue(600 * SECOND, 0), None);
        let mut second = started(&first, &own, 61 * SECOND);
        assert_eq!(second.overdue(119 * SECOND, 0), None);
        let said = Some(Overdue { lasted_ns: 119 * SECOND, starts: 2 });
        assert_eq!(second.overdue(119 * SECOND, SECOND), said);
    }
}
