//! An hour of work in two minutes: the broker, the queues and the worker are killed at random,
//! and an oracle that knows what was done is compared with the verdict at every probe.
//!
//! `TICKMARK_SEED` repeats a run; `TICKMARK_SOAK` is its length in seconds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use crate::broker::Broker;
use crate::worker::{Site, Worker, until};

/// Ticks of 10 s and a `max_age` of 45, 30 and 22 times as fast.
const TICK: Duration = Duration::from_millis(333);
const MAX_AGE: Duration = Duration::from_secs(2);
/// What a loaded machine may add.
const LATE: Duration = Duration::from_millis(700);
/// A worker's start, with a broker that answers.
const START: Duration = Duration::from_secs(8);
/// lapin's longest pause between two attempts, with what jitter and a start add.
const RECONNECT: Duration = Duration::from_secs(20);

/// What the verdict must be from `since` on; before that it may still be the last one.
#[derive(Debug, Clone, Copy)]
struct Expected {
    healthy: bool,
    since: Instant,
}

#[derive(Default)]
struct Seen {
    probes: u32,
    judged: u32,
    disagreements: Vec<String>,
}

/// xorshift64*: a seed is all that a run needs to be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

pub(crate) fn soak() {
    let length = variable("TICKMARK_SOAK").unwrap_or(120);
    let seed = variable("TICKMARK_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64 | 1
    });
    eprintln!("soak: TICKMARK_SEED={seed} TICKMARK_SOAK={length}");
    let broker = Broker::start();
    let site = Site::with_max_age(MAX_AGE);
    let expected = Mutex::new(Expected { healthy: true, since: Instant::now() + START });
    let over = AtomicBool::new(false);
    let (seen, did) = thread::scope(|scope| {
        let probing = scope.spawn(|| probe(&site, &expected, &over));
        // Dropped too when what is done fails: the probing would go on for ever.
        let ending = Ending(&over);
        let worker = start(&site, &broker);
        let mut story =
            Story { site: &site, broker, worker, queue_deleted: false, expected: &expected };
        story.until_consumed();
        let did = story.go_on(&mut Dice(seed), Duration::from_secs(length));
        drop(ending);
        (probing.join().unwrap(), did)
    });
    eprintln!("soak: {did:?}; {} probes, {} of them judged", seen.probes, seen.judged);
    assert!(seen.judged > seen.probes / 4, "the oracle knew too seldom");
    assert!(seen.disagreements.is_empty(), "seed {seed}: {:#?}", seen.disagreements);
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn probe(site: &Site, expected: &Mutex<Expected>, over: &AtomicBool) -> Seen {
    let begun = Instant::now();
    let mut seen = Seen::default();
    while !over.load(Ordering::Relaxed) {
        let before = *expected.lock().unwrap();
        let asked = Instant::now();
        let (healthy, line) = site.verdict();
        seen.probes += 1;
        if asked >= before.since {
            seen.judged += 1;
            if healthy != before.healthy {
                seen.disagreements.push(format!("{:?}: {line}, but {before:?}", begun.elapsed()));
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    seen
}

/// How often each was done.
#[derive(Debug, Default)]
struct Did {
    broker_kills: u32,
    queue_deletions: u32,
    process_kills: u32,
}

struct Story<'a> {
    site: &'a Site,
    broker: Broker,
    worker: Worker,
    queue_deleted: bool,
    expected: &'a Mutex<Expected>,
}

impl Story<'_> {
    fn go_on(&mut self, dice: &mut Dice, length: Duration) -> Did {
        let begun = Instant::now();
        let mut did = Did::default();
        while begun.elapsed() < length {
            thread::sleep(Duration::from_millis(500 + dice.below(3_000)));
            match dice.below(3) {
                0 => {
                    did.broker_kills += 1;
                    self.broker_outage(Duration::from_millis(
                        dice.below(2 * MAX_AGE.as_millis() as u64),
                    ));
                }
                1 if !self.queue_deleted => {
                    did.queue_deletions += 1;
                    self.broker.delete_queue(["demo-0", "demo-1"][dice.below(2) as usize]);
                    self.queue_deleted = true;
                    self.expect(false, TICK + MAX_AGE + LATE);
                }
                _ => {
                    did.process_kills += 1;
                    self.process_kill(Duration::from_millis(
                        dice.below(2 * MAX_AGE.as_millis() as u64),
                    ));
                }
            }
        }
        did
    }

    /// Changes nothing: a healthy worker recovers, and one that lost its queue does not.
    fn broker_outage(&mut self, lasts: Duration) {
        self.broker.kill();
        thread::sleep(lasts);
        self.broker.start_again();
        if !self.queue_deleted {
            // Else a queue that is deleted next would be declared anew.
            self.until_consumed();
        }
    }

    fn process_kill(&mut self, down: Duration) {
        self.worker.signal(Signal::KILL);
        let _killed = self.worker.wait();
        self.expect(false, MAX_AGE + LATE);
        thread::sleep(down);
        self.queue_deleted = false;
        // Until it is subscribed, its predecessor's mark decides.
        self.expect(true, START);
        self.worker = start(self.site, &self.broker);
        self.until_consumed();
    }

    fn until_consumed(&self) {
        until(RECONNECT, "one consumer for each queue", || {
            ["demo-0", "demo-1"]
                .iter()
                .all(|queue| self.broker.queue(queue).is_some_and(|(consumers, _)| consumers == 1))
        });
    }

    fn expect(&self, healthy: bool, within: Duration) {
        *self.expected.lock().unwrap() = Expected { healthy, since: Instant::now() + within };
    }
}

fn start(site: &Site, broker: &Broker) -> Worker {
    site.start(&broker.uri(), &[("DEMO_TICK", &TICK.as_millis().to_string())])
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
