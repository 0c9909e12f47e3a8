//! An hour of work in two minutes: every situation of the other cases once, in an order and with
//! times from a seed, and then again at random. An oracle that knows what was done is compared with
//! the verdict at every probe.
//!
//! `TICKMARK_SEED` repeats a run; `TICKMARK_SOAK` is its length in seconds. `TICKMARK_SOAK_ONLY`
//! names the situations that may happen, `TICKMARK_SOAK_WRONG` one whose rule is turned around: the
//! run must fail then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use crate::broker::Broker;
use crate::network::{Let, Proxy, Silence};
use crate::oracle::{Oracle, Situation};
use crate::worker::{LATE, Pace, Site, Worker, until};

/// Ticks of 10 s and a `max_age` of 45, 30 and 22 times as fast.
const PACE: Pace = Pace { tick: Duration::from_millis(333), max_age: Duration::from_secs(2) };
const TICK: Duration = PACE.tick;
const MAX_AGE: Duration = PACE.max_age;
/// A job of 60 s and a grace of 90, as fast, and then longer: a drain that is not exempt must be
/// seen to be stale before it ends.
const JOB: Duration = Duration::from_millis(3_500);
const GRACE: Duration = Duration::from_secs(5);
/// Six ticks: what is not healthy for longer is an ERROR.
const WINDOW: Duration = Duration::from_millis(6 * 333);
const RECOVERY_GRACE: Duration = Duration::from_secs(3);
/// Longer than a job.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the broker looks for jobs that are too old.
const CHANNEL_TICK: Duration = Duration::from_secs(1);
/// Of the worker's connection, where packets may be dropped.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// lapin's longest pause between two attempts, what TCP may add to one and the broker's heartbeats
/// to a connection that was dropped.
const RECOVERY: Duration = Duration::from_secs(60);

pub(crate) fn soak() {
    let length = variable("TICKMARK_SOAK").unwrap_or(120);
    let seed = variable("TICKMARK_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64 | 1
    });
    let only = std::env::var("TICKMARK_SOAK_ONLY").ok();
    let situations = match &only {
        None => Situation::ALL.to_vec(),
        Some(names) => names.split(',').map(situation).collect(),
    };
    let wrong = std::env::var("TICKMARK_SOAK_WRONG").ok().map(|name| situation(&name));
    eprintln!("soak: TICKMARK_SEED={seed} TICKMARK_SOAK={length}");
    let broker = Arc::new(Broker::start_with(
        &format!("consumer_timeout = {}", CONSUMER_TIMEOUT.as_millis()),
        &format!("{{channel_tick_interval, {}}}", CHANNEL_TICK.as_millis()),
        "",
    ));
    let length = Duration::from_secs(length);
    let (seen, did) = live(broker, true, Dice(seed.max(1)), &situations, length, wrong);
    eprintln!("soak: {did:?}; {} probes, {} of them judged", seen.probes, seen.judged);
    let of = seen.disagreements.len();
    assert_eq!(of, 0, "disagreements, seed {seed}: {:#?}", seen.disagreements);
    assert!(only.is_some() || seen.judged > seen.probes / 2, "the oracle knew too seldom");
}

/// One rule turned around of each kind.
pub(crate) fn the_oracle_can_disagree() {
    for wrong in [Situation::SigtermWithALongJob, Situation::QueueDeleted] {
        let (seen, _) =
            live(Broker::shared(), false, Dice(1), &[wrong], Duration::ZERO, Some(wrong));
        let of = seen.disagreements.len();
        assert!(of > 3, "{wrong:?}: {of} disagreements in {} judged", seen.judged);
    }
}

fn situation(name: &str) -> Situation {
    Situation::named(name).unwrap_or_else(|| panic!("{name} is none of {:?}", Situation::ALL))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
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

    fn time_below(&mut self, limit: Duration) -> Duration {
        Duration::from_millis(self.below(limit.as_millis() as u64))
    }

    fn shuffled(&mut self, situations: &[Situation]) -> Vec<Situation> {
        let mut shuffled = situations.to_vec();
        for end in (1..shuffled.len()).rev() {
            shuffled.swap(end, self.below(end as u64 + 1) as usize);
        }
        shuffled
    }
}

#[derive(Default)]
struct Seen {
    probes: u32,
    judged: u32,
    disagreements: Vec<String>,
}

type Did = BTreeMap<String, u32>;

/// A worker's life, probed. The broker is killed only where it is nobody else's.
fn live(
    broker: Arc<Broker>,
    killable: bool,
    mut dice: Dice,
    situations: &[Situation],
    length: Duration,
    wrong: Option<Situation>,
) -> (Seen, Did) {
    let site = Site::at(PACE);
    let oracle = Oracle::new(MAX_AGE, wrong);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let probing = scope.spawn(|| probe(&site, &oracle, &over));
        // Dropped too when what is done fails: the probing would go on for ever.
        let ending = Ending(&over);
        let worker = start(&site, &broker.uri(), &[]);
        let mut story = Story { site: &site, broker, worker, oracle: &oracle, killable };
        story.recovered();
        let mut did = Did::new();
        let begun = Instant::now();
        let mut deck = dice.shuffled(situations);
        while !deck.is_empty() || begun.elapsed() < length {
            let next = deck
                .pop()
                .unwrap_or_else(|| situations[dice.below(situations.len() as u64) as usize]);
            // It takes so long until the oracle is sure again.
            thread::sleep(TICK + LATE + dice.time_below(Duration::from_secs(1)));
            eprintln!("soak: {:?} {next:?}", begun.elapsed());
            story.go_through(next, &mut dice);
            *did.entry(format!("{next:?}")).or_default() += 1;
        }
        thread::sleep(TICK + LATE + TICK);
        drop(ending);
        (probing.join().unwrap(), did)
    })
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn probe(site: &Site, oracle: &Oracle, over: &AtomicBool) -> Seen {
    let begun = Instant::now();
    let mut seen = Seen::default();
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let (healthy, line) = site.verdict();
        seen.probes += 1;
        if let Some(expected) = oracle.during(asked, Instant::now()) {
            seen.judged += 1;
            if healthy != expected {
                let expected = if expected { "healthy" } else { "not healthy" };
                seen.disagreements.push(format!("{:?}: {line}, not {expected}", begun.elapsed()));
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    seen
}

struct Story<'a> {
    site: &'a Site,
    broker: Arc<Broker>,
    worker: Worker,
    oracle: &'a Oracle,
    /// Whether the broker is nobody else's.
    killable: bool,
}

impl Story<'_> {
    /// From a healthy worker to a healthy worker.
    fn go_through(&mut self, situation: Situation, dice: &mut Dice) {
        match situation {
            Situation::Quiet => self.quiet(dice),
            Situation::QueueDeleted => self.queue_deleted(dice),
            Situation::BrokerKilled => self.broker_down(situation, dice.time_below(2 * MAX_AGE)),
            Situation::BrokerDownForSevenMaxAges => self.broker_down(situation, 7 * MAX_AGE),
            Situation::WrongPassword => self.wrong_password(),
            Situation::AckTimeout => self.ack_timeout(dice),
            Situation::PacketsDropped => self.packets_dropped(dice),
            Situation::WithoutItsChannels => self.without_its_channels(dice),
            Situation::SigtermWithALongJob => self.long_job(dice),
            Situation::SigtermWithAJobThatNeverEnds => self.endless_job(dice),
            Situation::ProcessKilled => self.process_killed(dice),
        }
    }

    fn quiet(&mut self, dice: &mut Dice) {
        let before = Instant::now();
        self.oracle.done(Situation::Quiet, before - TICK..=before + TICK);
        thread::sleep(2 * MAX_AGE + dice.time_below(MAX_AGE));
        self.recovered();
        assert_eq!(self.worker.errors(), [""; 0], "{}", self.worker.story());
    }

    /// A worker that lost its queue does not get it back, also not from a broker that comes back.
    fn queue_deleted(&mut self, dice: &mut Dice) {
        let before = Instant::now();
        self.broker.delete_queue(&self.site.queues[dice.below(2) as usize]);
        let last_mark = before - TICK..=Instant::now() + TICK;
        let stale = self.oracle.done(Situation::QueueDeleted, last_mark);
        self.see(stale, dice);
        if self.killable && dice.below(3) == 0 {
            self.broker.kill();
            thread::sleep(dice.time_below(MAX_AGE));
            self.broker.start_again();
            self.see(Instant::now(), dice);
        }
        self.replace("", &[]);
    }

    fn broker_down(&mut self, situation: Situation, lasts: Duration) {
        let before = Instant::now();
        self.broker.kill();
        self.oracle.done(situation, before - TICK..=before + TICK);
        thread::sleep(lasts);
        self.broker.start_again();
        self.recovered();
        assert_eq!(self.worker.errors(), [""; 0], "{}", self.worker.story());
    }

    /// A respawn loop, as a supervisor's.
    fn wrong_password(&mut self) {
        self.kill_as(Situation::WrongPassword);
        let uri = self.broker.uri_for("guest", "wrong");
        let begun = Instant::now();
        let (mut lines, mut starts) = (Vec::new(), 0);
        while begun.elapsed() < 3 * WINDOW + WINDOW / 2 {
            self.worker = start(self.site, &uri, &[]);
            starts += 1;
            assert!(!self.worker.wait().success());
            until(RECOVERY, "it says why", || self.worker.story().contains("lapin worker failed"));
            lines.extend(self.worker.liveness());
        }
        let errors = lines.iter().filter(|line| line.starts_with("ERROR not healthy ")).count();
        // Once a window, by the ticks that the processes live to see.
        assert!((1..=3).contains(&errors), "{starts} starts: {lines:#?}");
        assert_eq!(lines.len(), 2 + errors, "{starts} starts: {lines:#?}");
        self.begin("", &[]);
    }

    fn ack_timeout(&mut self, dice: &mut Dice) {
        let before = Instant::now();
        self.take_an_endless_job();
        let last_mark = before + CONSUMER_TIMEOUT - TICK
            ..=Instant::now() + CONSUMER_TIMEOUT + 2 * CHANNEL_TICK + TICK;
        let stale = self.oracle.done(Situation::AckTimeout, last_mark);
        self.see(stale, dice);
        assert!(self.worker.story().contains("consumer lost: 406: "), "{}", self.worker.story());
        self.replace("", &[]);
    }

    /// Whether they notice or not.
    fn packets_dropped(&mut self, dice: &mut Dice) {
        let heartbeat = format!("/%2f?heartbeat={}", HEARTBEAT.as_secs());
        self.replace(&heartbeat, &[]);
        thread::sleep(TICK + LATE);
        let before = Instant::now();
        let silence = Silence::of(self.broker.port());
        self.oracle.done(Situation::PacketsDropped, before - TICK..=before + TICK);
        // A connection is lost after two heartbeats; also an oracle that is wrong must notice.
        thread::sleep(MAX_AGE + TICK + 2 * LATE + dice.time_below(2 * HEARTBEAT));
        drop(silence);
        self.recovered();
        assert_eq!(self.worker.errors(), [""; 0], "{}", self.worker.story());
        // A machine that is busy for long loses its connection later too.
        self.replace("", &[]);
    }

    fn without_its_channels(&mut self, dice: &mut Dice) {
        let proxy = Proxy::to(self.broker.port());
        self.kill_as(Situation::ProcessKilled);
        let grace = RECOVERY_GRACE.as_millis().to_string();
        let uri = format!("amqp://127.0.0.1:{}", proxy.port());
        self.oracle.starting();
        self.worker = start(self.site, &uri, &[("DEMO_RECOVERY_GRACE", &grace)]);
        self.recovered();
        thread::sleep(TICK + LATE);
        let before = Instant::now();
        proxy.cut_and_then(Let::ConnectionsOnly);
        let last_mark = before + RECOVERY_GRACE - TICK..=before + TICK + RECOVERY_GRACE;
        let stale = self.oracle.done(Situation::WithoutItsChannels, last_mark);
        self.see(stale, dice);
        // In the same process.
        self.oracle.starting();
        proxy.cut_and_then(Let::Everything);
        self.recovered();
        thread::sleep(TICK + LATE);
        // One that forgives an outage for ever.
        self.replace("", &[]);
    }

    fn long_job(&mut self, dice: &mut Dice) {
        self.take_a_job();
        let before = Instant::now();
        self.worker.signal(Signal::TERM);
        self.oracle.done(Situation::SigtermWithALongJob, before - TICK..=before + TICK);
        assert!(self.worker.wait().success());
        let after = Instant::now();
        assert!(after - before < GRACE, "a drain of {:?}", after - before);
        assert_eq!(self.worker.errors(), [""; 0], "{}", self.worker.story());
        if self.oracle.during(after, after) == Some(true) {
            self.oracle.done(Situation::ProcessKilled, after - TICK..=after);
        }
        thread::sleep(dice.time_below(2 * MAX_AGE));
        self.begin("", &[]);
    }

    fn endless_job(&mut self, dice: &mut Dice) {
        self.take_an_endless_job();
        let before = Instant::now();
        self.worker.signal(Signal::TERM);
        let last_mark = before + GRACE - TICK..=before + GRACE;
        let stale = self.oracle.done(Situation::SigtermWithAJobThatNeverEnds, last_mark);
        self.see(stale, dice);
        let errors = self.worker.errors();
        assert_eq!(errors.len(), 1, "{}", self.worker.story());
        assert!(errors[0].starts_with("ERROR shutdown grace of 5s is over"), "{errors:?}");
        self.replace("", &[]);
    }

    fn process_killed(&mut self, dice: &mut Dice) {
        self.kill_as(Situation::ProcessKilled);
        thread::sleep(dice.time_below(2 * MAX_AGE));
        self.begin("", &[]);
    }

    fn take_an_endless_job(&self) {
        self.worker.signal(Signal::HUP);
        until(RECOVERY, "endless", || self.worker.story().contains("endless-jobs"));
        self.take_a_job();
    }

    fn take_a_job(&self) {
        let queue = &self.site.queues[0];
        self.broker.publish(queue, 1);
        until(RECOVERY, "taken", || self.broker.queue(queue) == Some((1, 0)));
    }

    /// Long enough to be probed.
    fn see(&self, turned: Instant, dice: &mut Dice) {
        let until = turned + 2 * TICK + dice.time_below(Duration::from_secs(1));
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// Of a worker that is healthy.
    fn kill_as(&mut self, situation: Situation) {
        let before = Instant::now();
        self.worker.signal(Signal::KILL);
        let _killed = self.worker.wait();
        self.oracle.done(situation, before - TICK..=Instant::now());
    }

    /// Kills a worker, healthy or not, and has another.
    fn replace(&mut self, suffix: &str, variables: &[(&str, &str)]) {
        self.oracle.starting();
        self.worker.signal(Signal::KILL);
        let _killed = self.worker.wait();
        self.begin(suffix, variables);
    }

    fn begin(&mut self, suffix: &str, variables: &[(&str, &str)]) {
        self.oracle.starting();
        self.worker = start(self.site, &format!("{}{suffix}", self.broker.uri()), variables);
        self.recovered();
    }

    /// Each queue has its consumer, and what is published is taken.
    fn recovered(&self) {
        until(RECOVERY, "one consumer for each queue", || {
            self.site
                .queues
                .iter()
                .all(|queue| self.broker.queue(queue).is_some_and(|(consumers, _)| consumers == 1))
        });
        for queue in &self.site.queues {
            self.broker.publish(queue, 1);
            until(RECOVERY, "taken", || self.broker.queue(queue) == Some((1, 0)));
        }
        self.oracle.healthy_from(Instant::now() + TICK + LATE);
    }
}

/// Of one runtime thread or two, as it comes.
fn start(site: &Site, uri: &str, variables: &[(&str, &str)]) -> Worker {
    let job = JOB.as_millis().to_string();
    let grace = GRACE.as_secs().to_string();
    let mine = [("DEMO_JOB", job.as_str()), ("TICKMARK_SHUTDOWN_GRACE", grace.as_str())];
    site.start(uri, &[&mine, variables].concat())
}
