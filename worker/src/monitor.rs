//! The monitor as a state machine: one call a tick, with the time given. It judges, publishes
//! and logs; it neither waits nor looks at a clock, so a test can live a day in it.
//!
//! ```text
//! New ──► Starting ──► Healthy ◄──► Unhealthy        any of them ──► Draining ──► Over
//! ```

use std::boxed::Box;
use std::ffi::CString;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tickmark_protocol::{Encoding, Mark, Now, Phase, Read, Slot, SlotCount, State, TopologyUnsafe};

use crate::attempts::{Attempts, Overdue};
use crate::jobs::Jobs;
use crate::log::{Panic, RoundSeconds, Seconds, SlotLog, panic_message};
use crate::marks::{PublishError, Publisher, ReportTurn, Session, mark_now};
use crate::predicate::{Judgement, Predicate, Problems, States};
use crate::procfs::Inspection;
use crate::registry::Registry;
use crate::signal::Signal;
use crate::topology::{self, Message};

/// What a monitor is told once, all of it valid.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) dir: CString,
    pub(crate) encoding: Encoding,
    pub(crate) slot: Slot,
    pub(crate) processes: SlotCount,
    pub(crate) max_age: Duration,
    pub(crate) tick: Duration,
    pub(crate) shutdown_grace: Duration,
    pub(crate) startup_grace_ticks: u32,
    pub(crate) predicate: Predicate,
}

/// Judges one slot, tick by tick.
pub struct Monitor {
    publisher: Publisher<CString>,
    round: Round,
    /// Whether a failed tick has been logged, so that it is not again until one succeeded.
    failing: bool,
}

/// Everything but the publisher.
struct Round {
    log: SlotLog<Slot>,
    plan: Plan,
    inspection: Inspection,
    registry: Arc<Registry>,
    jobs: Jobs,
    signal: Arc<Signal>,
    life: Life,
    report: Report,
    /// The mark of this tick, written over the last one's: the generation need not be copied.
    mark: Mark,
    problems: Problems,
    /// Whether this uninterrupted failure to publish has been logged.
    cannot_publish: bool,
    /// Whether somebody else's `topology-unsafe` has been logged.
    foreign_unsafe: bool,
}

/// See the diagram above.
enum Life {
    New,
    /// Never healthy so far.
    Starting {
        attempts: Box<Attempts>,
        recorded: bool,
    },
    Healthy {
        attempt_left: bool,
    },
    /// Was healthy before.
    Unhealthy {
        attempt_left: bool,
    },
    Draining {
        was_healthy: bool,
    },
    /// The shutdown grace is over.
    Over,
}

/// The topology's message: it must be logged even where it cannot be recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Report {
    Due,
    LoggedOnly,
    Done,
}

/// What of one tick could not be written; the first is what is logged.
#[derive(Default)]
struct Failures(Option<PublishError>);

impl Failures {
    fn note<T>(&mut self, result: Result<T, PublishError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.get_or_insert(error);
                None
            }
        }
    }
}

impl Monitor {
    pub(crate) fn new(
        plan: Plan,
        inspection: Inspection,
        registry: Arc<Registry>,
        jobs: Jobs,
        signal: Arc<Signal>,
    ) -> Monitor {
        let publisher = Publisher::new(plan.dir.clone(), plan.slot, plan.encoding);
        // Each publication says when it is, and counts.
        let mark = Mark {
            sequence: 0,
            tick_ms: u32::try_from(plan.tick.as_millis()).unwrap_or(u32::MAX),
            consumers_expected: plan.predicate.expected,
            ..mark_now(plan.slot, inspection.generation.clone())
        };
        let round = Round {
            log: SlotLog::new(plan.slot),
            plan,
            inspection,
            registry,
            jobs,
            signal,
            life: Life::New,
            report: Report::Due,
            mark,
            problems: Problems::default(),
            cannot_publish: false,
            foreign_unsafe: false,
        };
        Monitor { publisher, round, failing: false }
    }

    /// One tick at `now`. Never panics: what does inside is logged, once until a tick succeeds.
    pub fn tick(&mut self, now: Now) {
        // Unwind safe: every field is valid after each assignment, and the next tick goes on
        // from whichever was the last.
        match catch_unwind(AssertUnwindSafe(|| self.unguarded_tick(now))) {
            Ok(()) => self.failing = false,
            Err(payload) => self.log_failure(&payload),
        }
    }

    fn unguarded_tick(&mut self, now: Now) {
        let mut failures = Failures::default();
        let session = failures.note(self.publisher.begin());
        self.round.run(session.as_ref(), now, &mut failures);
        self.round.log_publication(failures.0);
    }

    fn log_failure(&mut self, payload: &Panic) {
        if self.failing {
            return;
        }
        self.failing = true;
        // It may have been the subscriber that panicked; then there is nobody left to tell.
        let _nobody_to_tell = catch_unwind(AssertUnwindSafe(|| {
            self.round
                .log
                .error(format_args!("monitor loop failed: {}", panic_message(&**payload)));
        }));
    }

    pub(crate) fn period(&self) -> Duration {
        self.round.plan.tick
    }

    /// What this process could read about its container at start.
    pub(crate) fn inspection(&self) -> &Inspection {
        &self.round.inspection
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.round.plan.encoding
    }

    pub(crate) fn log(&self) -> &SlotLog<Slot> {
        &self.round.log
    }

    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.round.signal
    }
}

impl Round {
    fn run(&mut self, session: Option<&Session>, now: Now, failures: &mut Failures) {
        self.tell_topology(session, failures);
        if self.inspection.topology.state == State::Unsafe {
            if let Life::New = self.life {
                self.log_started();
                let own = &self.inspection.evidence;
                let attempts = Attempts::start(None, own, self.window_ns(), now.monotonic_ns);
                self.life = Life::Starting { attempts: Box::new(attempts), recorded: false };
            }
            self.publish_unsafe(session, failures);
            return;
        }
        if let Some(session) = session {
            self.declare(session, failures);
        }
        // The first tick is never early: only the ones after it follow a schedule.
        let mut early_ns = nanoseconds(self.plan.tick) / 2;
        if let Life::New = self.life {
            self.begin(session, now, failures);
            early_ns = 0;
        }
        match self.signal.stopping_since_ns() {
            Some(since_ns) => self.drain(session, now, since_ns, failures),
            None => self.judge(session, now, early_ns, failures),
        }
    }

    fn publish_unsafe(&mut self, session: Option<&Session>, failures: &mut Failures) {
        let Some(session) = session else { return };
        if session.topology_unsafe_exists() {
            return;
        }
        let mut record = TopologyUnsafe { detail: Default::default() };
        let _cut = write!(record.detail, "{}", self.inspection.topology.detail);
        failures.note(session.topology_unsafe(&record));
    }

    /// `expected` and `generation`, which every slot writes alike every tick: whoever removed
    /// the directory has it back within one.
    fn declare(&mut self, session: &Session, failures: &mut Failures) {
        if !self.foreign_unsafe && session.topology_unsafe_exists() {
            self.foreign_unsafe = true;
            self.log.error(
                "topology-unsafe was left in the marks directory by another process: every \
                 probe fails until the volume is recreated",
            );
        }
        failures.note(session.expected(self.plan.processes));
        if let Some(generation) = &self.inspection.generation {
            failures.note(session.generation(generation));
        }
    }

    /// The first tick: this start is counted, and logged if it is the first.
    fn begin(&mut self, session: Option<&Session>, now: Now, failures: &mut Failures) {
        let previous = match session.map(Session::attempt) {
            Some(Read::Found(attempt)) => Some(attempt),
            // One that is damaged counts nothing any more.
            Some(Read::Absent | Read::Failed(_)) | None => None,
        };
        let own = &self.inspection.evidence;
        let attempts = Attempts::start(previous, own, self.window_ns(), now.monotonic_ns);
        if attempts.is_first() {
            self.log_started();
        }
        let mut recorded = false;
        if let Some(session) = session {
            recorded = failures.note(session.write_attempt(attempts.record())).is_some();
        }
        if attempts.is_first() && self.signal.stopping_since_ns().is_none() {
            self.log.info(format_args!("waiting for {} consumers", self.plan.predicate.expected));
        }
        self.life = Life::Starting { attempts: Box::new(attempts), recorded };
    }

    fn judge(
        &mut self,
        session: Option<&Session>,
        now: Now,
        early_ns: u64,
        failures: &mut Failures,
    ) {
        let registered = self.registry.snapshot();
        let jobs = self.jobs.in_flight(now.monotonic_ns);
        let judgement = self.plan.predicate.judge(
            &registered,
            &jobs,
            now.monotonic_ns,
            &self.log,
            &mut self.problems,
            &mut States::new(&mut self.mark.consumer_states),
        );
        drop(registered);
        self.mark.consumers_subscribed = judgement.subscribed;
        let mut published = false;
        if judgement.healthy
            && let Some(session) = session
        {
            let phase = if judgement.recovering { Phase::Recovering } else { Phase::Running };
            published = self.refresh(session, now, phase, failures);
        }
        self.turn(session, now.monotonic_ns, early_ns, judgement, published, failures);
    }

    /// Goes from one state to the next, and logs that it does. It becomes healthy with a mark, not
    /// with a judgement: a second process in a slot is not what the probe sees.
    fn turn(
        &mut self,
        session: Option<&Session>,
        now_ns: u64,
        early_ns: u64,
        judgement: Judgement,
        published: bool,
        failures: &mut Failures,
    ) {
        let expected = self.plan.predicate.expected;
        match &mut self.life {
            Life::Starting { .. } if published => {
                // One that is not this process's own may be there: its slot was another's.
                self.life = Life::Healthy { attempt_left: true };
                self.log.info("healthy");
            }
            Life::Unhealthy { attempt_left } if published => {
                self.life = Life::Healthy { attempt_left: *attempt_left };
                self.log.info("healthy");
            }
            Life::Healthy { attempt_left } if !judgement.healthy => {
                self.life = Life::Unhealthy { attempt_left: *attempt_left };
                self.log.error(format_args!(
                    "became unhealthy (expected {expected} consumers): {}",
                    self.problems
                ));
            }
            Life::Starting { attempts, recorded } => {
                // What keeps a healthy one from publishing has a line of its own.
                let overdue =
                    if judgement.healthy { None } else { attempts.overdue(now_ns, early_ns) };
                match overdue {
                    Some(Overdue { lasted_ns: ns, starts: 1 }) => self.log.error(format_args!(
                        "not healthy {}, expected {expected} consumers",
                        RoundSeconds { ns }
                    )),
                    Some(Overdue { lasted_ns: ns, starts }) => self.log.error(format_args!(
                        "not healthy {} over {starts} starts, expected {expected} consumers",
                        RoundSeconds { ns }
                    )),
                    None => {}
                }
                if (overdue.is_some() || !*recorded)
                    && let Some(session) = session
                {
                    *recorded = failures.note(session.write_attempt(attempts.record())).is_some();
                }
                return;
            }
            _ => {}
        }
        self.forget_attempt(session, failures);
    }

    fn forget_attempt(&mut self, session: Option<&Session>, failures: &mut Failures) {
        if let Life::Healthy { attempt_left } = &mut self.life
            && *attempt_left
            && let Some(session) = session
        {
            *attempt_left = failures.note(session.remove_attempt()).is_none();
        }
    }

    fn drain(
        &mut self,
        session: Option<&Session>,
        now: Now,
        since_ns: u64,
        failures: &mut Failures,
    ) {
        let was_healthy = match self.life {
            Life::Over => return,
            Life::Draining { was_healthy } => was_healthy,
            Life::New | Life::Starting { .. } => self.begin_draining(false),
            Life::Healthy { .. } | Life::Unhealthy { .. } => self.begin_draining(true),
        };
        let gone_ns = now.monotonic_ns.saturating_sub(since_ns);
        let left_ns = nanoseconds(self.plan.shutdown_grace).saturating_sub(gone_ns);
        if left_ns == 0 {
            self.life = Life::Over;
            self.log.error(format_args!(
                "shutdown grace of {} is over: the mark is no longer refreshed",
                Seconds(self.plan.shutdown_grace)
            ));
        } else if was_healthy && let Some(session) = session {
            self.refresh(session, now, Phase::Draining { left_ms: left_ns / 1_000_000 }, failures);
        }
    }

    fn begin_draining(&mut self, was_healthy: bool) -> bool {
        self.life = Life::Draining { was_healthy };
        self.log.info("shutting down: consumers are no longer checked");
        was_healthy
    }

    /// Leaves a mark, and says whether it did.
    fn refresh(
        &mut self,
        session: &Session,
        now: Now,
        phase: Phase,
        failures: &mut Failures,
    ) -> bool {
        let jobs = self.jobs.in_flight(now.monotonic_ns);
        self.mark.jobs_in_flight = jobs.count;
        self.mark.oldest_job_ms = jobs.oldest_ns / 1_000_000;
        self.mark.phase = phase;
        self.mark.monotonic_ns = now.monotonic_ns;
        self.mark.wall_ms = u64::try_from(now.realtime_ns / 1_000_000).unwrap_or_default();
        self.mark.sequence += 1;
        let published = failures.note(session.mark(&self.mark)).is_some();
        if !published {
            self.mark.sequence -= 1;
        }
        published
    }

    fn log_started(&self) {
        let Plan { dir, max_age, tick, processes, predicate, .. } = &self.plan;
        self.log.info(format_args!(
            "started: dir={} max_age={} tick={} processes={processes} consumers={}",
            dir.to_string_lossy(),
            Seconds(*max_age),
            Seconds(*tick),
            predicate.expected
        ));
    }

    fn tell_topology(&mut self, session: Option<&Session>, failures: &mut Failures) {
        if self.report == Report::Done {
            return;
        }
        let message = Message::about(&self.inspection.topology);
        let Some(session) = session else {
            if self.report == Report::Due {
                self.report = Report::LoggedOnly;
                if let Some(message) = message {
                    message.log(&self.log);
                }
            }
            return;
        };
        let recorded = session.report();
        let written = match &message {
            Some(message) => {
                let report = topology::report(&self.inspection);
                let repeats = |old: &Read<_>| matches!(old, Read::Found(old) if topology::repeats(old, &report));
                if repeats(&recorded) {
                    true
                } else {
                    // Slots that start in one instant: one says it, the next tick of the others
                    // sees that it was said.
                    let ReportTurn::Mine(_turn) = session.turn_to_report() else { return };
                    let repeated = repeats(&session.report());
                    if !repeated && self.report == Report::Due {
                        message.log(&self.log);
                    }
                    repeated || failures.note(session.write_report(&report)).is_some()
                }
            }
            // Nothing to say, so what was said last no longer holds.
            None if matches!(self.inspection.topology.state, State::NonLinux) => true,
            None => {
                matches!(recorded, Read::Absent) || failures.note(session.remove_report()).is_some()
            }
        };
        self.report = if written { Report::Done } else { Report::LoggedOnly };
    }

    fn log_publication(&mut self, failure: Option<PublishError>) {
        if let Some(failure) = &failure
            && !self.cannot_publish
        {
            let dir = self.plan.dir.to_string_lossy();
            self.log.error(format_args!("cannot publish: {dir}: {failure}"));
        }
        self.cannot_publish = failure.is_some();
    }

    /// How long a slot may be unhealthy before that is an error.
    fn window_ns(&self) -> u64 {
        nanoseconds(self.plan.tick).saturating_mul(self.plan.startup_grace_ticks.into())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
