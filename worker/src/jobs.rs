//! Jobs in flight. Starting and ending one is two atomic operations each, on cache lines that are
//! mostly the thread's own, without a lock and without allocation; the monitor looks at all of
//! them once a tick.

use std::cell::Cell;
use std::fmt;
use std::format;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use std::vec::Vec;

use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Kind};
use crate::log::{RoundSeconds, Seconds};

/// More would make a tick that looks at each of them slow.
const MAX_CONCURRENCY: usize = 65_536;
/// Places of jobs that nobody judges: enough to know the age of the oldest.
const COUNTED_PLACES: usize = 64;
/// Places in a shard: the bits of its word.
const BITS: usize = 64;
/// Shards where the places allow it, so that threads seldom meet.
const SHARDS: usize = 16;

/// The jobs of one worker. Clones are the same jobs.
#[derive(Debug, Clone)]
pub struct Jobs {
    shards: Arc<[Arc<Shard>]>,
    concurrency: usize,
    deadline_ns: Option<u64>,
}

/// A job in flight until this is dropped.
#[derive(Debug)]
#[must_use = "the job is in flight only until this is dropped"]
pub struct Job {
    shard: Arc<Shard>,
    /// `None` where every place was taken.
    place: Option<u8>,
}

/// Up to 64 places. Aligned, so that two shards never share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// One bit a place: 1 is taken. Those past the last place always are.
    taken: AtomicU64,
    absent: u64,
    /// Jobs that found no place anywhere.
    beyond: AtomicU32,
    /// When each place's job started, `CLOCK_MONOTONIC` in ns; 0 before that is known.
    started_ns: [AtomicU64; BITS],
}

/// The jobs at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) count: u32,
    pub(crate) oldest_ns: u64,
    /// Set if as many jobs are older than the deadline as run at once.
    pub(crate) stuck: Option<Stuck>,
}

/// Jobs older than their deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stuck {
    overdue: u32,
    /// All that are in flight.
    count: u32,
    deadline_ns: u64,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck { overdue, count, deadline_ns } = *self;
        let deadline = RoundSeconds { ns: deadline_ns };
        if overdue == count {
            write!(f, "all {count} jobs older than {deadline}")
        } else {
            write!(f, "{overdue} of {count} jobs older than {deadline}")
        }
    }
}

impl Jobs {
    pub(crate) fn judged(concurrency: usize, deadline: Duration) -> Result<Jobs, Error> {
        let wrong = |said| Err(Error::new(Kind::Jobs, said));
        if !(1..=MAX_CONCURRENCY).contains(&concurrency) {
            return wrong(format!("{concurrency} jobs at once: must be 1 to {MAX_CONCURRENCY}"));
        }
        match u64::try_from(deadline.as_nanos()) {
            // Twice as many places: where a broker gives the jobs of a lost connection again, those of the
            // old one still hold theirs, and the new ones must be seen when these have gone.
            Ok(ns) if ns > 0 => {
                Ok(Jobs { concurrency, ..Jobs::with_places(2 * concurrency, Some(ns)) })
            }
            Ok(_) => wrong("deadline of 0s for jobs".into()),
            Err(_) => wrong(format!("deadline of {} for jobs is not finite", Seconds(deadline))),
        }
    }

    /// Jobs that are counted in the mark and that nobody judges.
    pub(crate) fn counted() -> Jobs {
        Jobs::with_places(COUNTED_PLACES, None)
    }

    fn with_places(places: usize, deadline_ns: Option<u64>) -> Jobs {
        let shards = places.min(SHARDS).max(places.div_ceil(BITS));
        let shards: Vec<Arc<Shard>> = (0..shards)
            .map(|number| {
                // The first shards take what does not divide.
                let share = places / shards + usize::from(number < places % shards);
                Arc::new(Shard::with_places(share))
            })
            .collect();
        Jobs { shards: shards.into(), concurrency: places, deadline_ns }
    }

    /// Starts a job. It may end on another thread.
    pub fn start(&self) -> Job {
        self.start_at(coarse_ns())
    }

    fn start_at(&self, now_ns: u64) -> Job {
        let hint = HINT.get();
        // A division is what this would cost otherwise; other jobs may have more shards.
        let first = if hint < self.shards.len() { hint } else { hint % self.shards.len() };
        let shard = &self.shards[first];
        match shard.take(now_ns) {
            Some(place) => Job { shard: Arc::clone(shard), place: Some(place) },
            None => self.start_elsewhere(first, now_ns),
        }
    }

    #[cold]
    fn start_elsewhere(&self, first: usize, now_ns: u64) -> Job {
        for next in (first + 1..self.shards.len()).chain(0..first) {
            let shard = &self.shards[next];
            if let Some(place) = shard.take(now_ns) {
                // Threads that met do not meet again.
                HINT.set(next);
                return Job { shard: Arc::clone(shard), place: Some(place) };
            }
        }
        let shard = Arc::clone(&self.shards[first]);
        shard.beyond.fetch_add(1, Ordering::Relaxed);
        Job { shard, place: None }
    }

    pub(crate) fn in_flight(&self, now_ns: u64) -> InFlight {
        let (mut held, mut beyond, mut overdue, mut oldest_ns) = (0u32, 0u32, 0u32, 0u64);
        for shard in self.shards.iter() {
            beyond = beyond.saturating_add(shard.beyond.load(Ordering::Relaxed));
            let mut taken = shard.taken.load(Ordering::Acquire) & !shard.absent;
            while taken != 0 {
                let place = taken.trailing_zeros() as usize;
                taken &= taken - 1;
                held += 1;
                let age_ns = match shard.started_ns[place].load(Ordering::Relaxed) {
                    // Taken in this moment.
                    0 => 0,
                    started_ns => now_ns.saturating_sub(started_ns),
                };
                oldest_ns = oldest_ns.max(age_ns);
                overdue += u32::from(self.deadline_ns.is_some_and(|deadline| age_ns > deadline));
            }
        }
        let count = held.saturating_add(beyond);
        InFlight {
            count,
            oldest_ns,
            stuck: self
                .deadline_ns
                .filter(|_| overdue as usize >= self.concurrency)
                .map(|deadline_ns| Stuck { overdue, count, deadline_ns }),
        }
    }
}

impl Shard {
    fn with_places(places: usize) -> Shard {
        let absent = if places == BITS { 0 } else { u64::MAX << places };
        Shard {
            taken: AtomicU64::new(absent),
            absent,
            beyond: AtomicU32::new(0),
            started_ns: [const { AtomicU64::new(0) }; BITS],
        }
    }

    fn take(&self, now_ns: u64) -> Option<u8> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let place = taken.trailing_ones();
            if place as usize == BITS {
                return None;
            }
            // Acquire: the last holder's zero must not come after our time.
            taken = self.taken.fetch_or(1 << place, Ordering::Acquire);
            if taken & (1 << place) == 0 {
                self.started_ns[place as usize].store(now_ns, Ordering::Relaxed);
                return u8::try_from(place).ok();
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        match self.place {
            Some(place) => {
                self.shard.started_ns[usize::from(place)].store(0, Ordering::Relaxed);
                self.shard.taken.fetch_and(!(1 << place), Ordering::Release);
            }
            None => {
                self.shard.beyond.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// `CLOCK_MONOTONIC` at the kernel's last timer interrupt, at most 10 ms ago (Linux 2.6.32), in ns.
/// It is a read of memory also where the exact clock is a system call, as on some hypervisors, and
/// deadlines are not of milliseconds.
///
/// # References
/// [clock_gettime(2)](https://man7.org/linux/man-pages/man2/clock_gettime.2.html)
fn coarse_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Neither is negative on this clock.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The next thread's number.
static THREADS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// The shard in which this thread looks for a place first: where it last found one. Numbers to
    /// begin with, not hashes: eight threads on eight shards do not meet.
    static HINT: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(concurrency: usize) -> Jobs {
        Jobs::judged(concurrency, Duration::from_nanos(100)).unwrap()
    }

    fn stuck(overdue: usize, count: usize) -> Option<Stuck> {
        let number = |of: usize| u32::try_from(of).unwrap();
        Some(Stuck { overdue: number(overdue), count: number(count), deadline_ns: 100 })
    }

    #[test]
    fn every_place_is_found_whatever_the_number() {
        for concurrency in [1, 2, 15, 16, 17, 63, 64, 65, 1000, 1025, 65_536] {
            let jobs = judged(concurrency);
            let held: Vec<Job> = (0..2 * concurrency).map(|_| jobs.start_at(1)).collect();
            assert!(held.iter().all(|job| job.place.is_some()), "{concurrency}");
            let one_more = jobs.start_at(1);
            assert_eq!(one_more.place, None);
            assert_eq!(jobs.in_flight(1).count as usize, 2 * concurrency + 1);
            drop((held, one_more));
            assert_eq!(jobs.in_flight(1).count, 0);
        }
    }

    #[test]
    fn stuck_only_when_every_place_is_overdue() {
        let jobs = judged(2);
        let first = jobs.start_at(1);
        assert_eq!(jobs.in_flight(1000).stuck, None);
        let second = jobs.start_at(900);
        assert_eq!(jobs.in_flight(1000), InFlight { count: 2, oldest_ns: 999, stuck: None });
        assert_eq!(jobs.in_flight(1001).stuck, stuck(2, 2));
        // One beyond the concurrency does not hide it.
        let _third = jobs.start_at(1000);
        assert_eq!(jobs.in_flight(1001).stuck, stuck(2, 3));
        drop(first);
        assert_eq!(jobs.in_flight(1001).stuck, None);
        drop(second);
    }

    /// A broker came back, and gave the jobs that are still in hand once more.
    #[test]
    fn jobs_that_began_while_all_places_were_held_are_judged_too() {
        for concurrency in [1, 2, 8, 64, 100] {
            let jobs = judged(concurrency);
            let old: Vec<Job> = (0..concurrency).map(|_| jobs.start_at(1)).collect();
            let new: Vec<Job> = (0..concurrency).map(|_| jobs.start_at(50)).collect();
            drop(old);
            assert_eq!(jobs.in_flight(150).stuck, None, "{concurrency}");
            let found = jobs.in_flight(151);
            assert_eq!(
                (found.oldest_ns, found.stuck),
                (101, stuck(concurrency, concurrency)),
                "{concurrency}"
            );
            drop(new);
            assert_eq!(jobs.in_flight(1000).stuck, None);
        }
    }

    #[test]
    fn those_that_are_not_overdue_are_not_said_to_be() {
        let minutes = 300_000_000_000;
        for (overdue, said) in
            [(8, "8 of 11 jobs older than 300s"), (11, "all 11 jobs older than 300s")]
        {
            assert_eq!(format!("{}", Stuck { overdue, count: 11, deadline_ns: minutes }), said);
        }
    }

    #[test]
    fn jobs_that_nobody_judges_are_never_stuck() {
        let jobs = Jobs::counted();
        let held: Vec<Job> = (0..COUNTED_PLACES).map(|_| jobs.start_at(1)).collect();
        assert_eq!(jobs.in_flight(u64::MAX).stuck, None);
        assert_eq!(jobs.in_flight(11).oldest_ns, 10);
        drop(held);
    }

    #[test]
    fn threads_lose_no_place() {
        let jobs = judged(24);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let three = [jobs.start(), jobs.start(), jobs.start()];
                        assert!(three.iter().all(|job| job.place.is_some()));
                    }
                });
            }
        });
        assert_eq!(jobs.in_flight(0), InFlight { count: 0, oldest_ns: 0, stuck: None });
    }

    #[test]
    fn mistakes() {
        let second = Duration::from_secs(1);
        for (concurrency, deadline) in
            [(0, second), (65_537, second), (1, Duration::ZERO), (1, Duration::MAX)]
        {
            assert!(Jobs::judged(concurrency, deadline).unwrap_err().is_jobs());
        }
    }
}
