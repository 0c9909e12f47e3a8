//! What an application holds: the builder, the liveness, and the thread that ticks.

use std::boxed::Box;
use std::ffi::CString;
use std::fmt;
use std::format;
use std::net::SocketAddr;
use std::string::String;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickmark_protocol::{Encoding, Now, Slot, SlotCount};

use crate::clock;
use crate::environment::Environment;
use crate::error::{Error, Kind};
use crate::jobs::Jobs;
use crate::log::{Seconds, SlotLog};
use crate::monitor::{Monitor, Plan};
use crate::predicate::Predicate;
use crate::procfs::{self, Inspection};
use crate::registry::{Consumer, Registration, Registry, Role};
use crate::serve::Port;
use crate::signal::{Signal, Wake};

const DEFAULT_TICK: Duration = Duration::from_secs(10);
const DEFAULT_SHUTDOWN_GRACE: Duration = Duration::from_secs(60);
const DEFAULT_STARTUP_GRACE_TICKS: u32 = 6;

/// A worker's liveness: its consumers are registered here, and a thread of its own judges them
/// every tick and leaves the mark.
///
/// Clones are the same liveness. When the last one is dropped the thread ends and the mark goes
/// stale; a shutdown that was meant says so first, with [`stopping`](Liveness::stopping). A
/// consumer that holds a clone keeps it alive.
///
/// Start it after a fork: threads do not survive one.
///
/// ```no_run
/// # fn main() -> Result<(), tickmark::Error> {
/// use tickmark::ConsumerState;
///
/// let liveness = tickmark::Liveness::builder().consumers(1).start()?;
/// let orders = liveness.register("orders", || ConsumerState::Consuming);
/// // … work …
/// liveness.stopping();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Liveness {
    registry: Arc<Registry>,
    jobs: Jobs,
    #[cfg_attr(not(feature = "lapin"), expect(dead_code, reason = "only adapters ask"))]
    pub(crate) recovery_grace: Option<Duration>,
    signal: Arc<Signal>,
    _held: Arc<Held>,
}

/// Ends the thread when the last liveness goes. The thread is not waited for: it may be asking
/// a consumer that does not answer, and it may be the one that drops this.
struct Held(Arc<Signal>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Liveness {
    /// The settings made in code; each wins over its variable.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Counts `consumer` in until the registration is dropped. `name` is for the log; two may
    /// share one.
    pub fn register(&self, name: &str, consumer: impl Consumer + 'static) -> Registration {
        self.registry.register(Role::Consumer, name, Box::new(consumer))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn register_runtime(
        &self,
        name: &str,
        runtime: impl Consumer + 'static,
    ) -> Registration {
        self.registry.register(Role::Runtime, name, Box::new(runtime))
    }

    /// The jobs of this worker: start one before each piece of work and drop it after.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Says that the worker shuts down on purpose, before its first consumer stops. From now on
    /// consumers are not asked, and the mark is kept fresh until the shutdown grace is over.
    /// Only the first call counts.
    ///
    /// It takes a lock, so it is not for a signal handler.
    pub fn stopping(&self) {
        self.stopping_at(clock::monotonic_ns());
    }

    /// [`stopping`](Liveness::stopping) at a time of the test's own.
    #[doc(hidden)]
    pub fn stopping_at(&self, monotonic_ns: u64) {
        self.signal.stop(monotonic_ns);
    }
}

impl fmt::Debug for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Liveness").finish_non_exhaustive()
    }
}

/// The settings of a [`Liveness`]. The marks directory, the maximum age and the treatment of
/// the topology come from the environment alone: the probe is another process and must see the
/// same.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    consumers: Option<usize>,
    slot: Option<u32>,
    processes: Option<u32>,
    tick: Option<Duration>,
    shutdown_grace: Option<Duration>,
    startup_grace_ticks: Option<u32>,
    recovery_grace: Option<Duration>,
    jobs: Option<(usize, Duration)>,
    format: Option<Encoding>,
    environment: Option<Environment>,
    inspection: Option<Inspection>,
    serve: Option<SocketAddr>,
}

impl Builder {
    /// How many consumers must be registered, no more and no fewer. Must be set.
    #[must_use]
    pub fn consumers(mut self, consumers: usize) -> Builder {
        self.consumers = Some(consumers);
        self
    }

    /// Which of the supervisor's processes this is, from 0 (`TICKMARK_SLOT`, 0).
    #[must_use]
    pub fn slot(mut self, slot: u32) -> Builder {
        self.slot = Some(slot);
        self
    }

    /// How many processes the supervisor runs (`TICKMARK_PROCESSES`, 1).
    #[must_use]
    pub fn processes(mut self, processes: u32) -> Builder {
        self.processes = Some(processes);
        self
    }

    /// The period of the monitor (`TICKMARK_TICK`, 10 s). Must be below `TICKMARK_MAX_AGE`, and
    /// should be below half of it.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Builder {
        self.tick = Some(tick);
        self
    }

    /// How long a deliberate shutdown keeps the mark fresh (`TICKMARK_SHUTDOWN_GRACE`, 60 s).
    #[must_use]
    pub fn shutdown_grace(mut self, grace: Duration) -> Builder {
        self.shutdown_grace = Some(grace);
        self
    }

    /// After how many ticks a slot that never was healthy is an ERROR (6).
    #[must_use]
    pub fn startup_grace_ticks(mut self, ticks: u32) -> Builder {
        self.startup_grace_ticks = Some(ticks);
        self
    }

    /// How long a recovering consumer counts as healthy, each by itself (for ever).
    #[must_use]
    pub fn recovery_grace(mut self, grace: Duration) -> Builder {
        self.recovery_grace = Some(grace);
        self
    }

    /// How many jobs this worker works on at once, and how long one may take: the worker is not
    /// healthy while `concurrency` jobs in flight are older than `deadline`. Up to twice as many are
    /// looked at, since a broker that was away gives those in hand once more; what started beyond
    /// is counted in the mark and not judged. Unless this is set, no job is.
    #[must_use]
    pub fn jobs(mut self, concurrency: usize, deadline: Duration) -> Builder {
        self.jobs = Some((concurrency, deadline));
        self
    }

    /// How marks are written (`TICKMARK_FORMAT`, binary).
    #[must_use]
    pub fn format(mut self, format: Encoding) -> Builder {
        self.format = Some(format);
        self
    }

    /// Where the verdict is served over HTTP, for probes by `httpGet` and for Prometheus
    /// (`TICKMARK_SERVE`, nowhere): `/livez`, `/explain` and `/metrics`. Of several processes of a
    /// container one serves for all; when it dies, another does within a tick.
    ///
    /// Give `0.0.0.0` or `[::]`: the kubelet does not come over loopback.
    #[cfg(feature = "serve")]
    #[must_use]
    pub fn serve(mut self, address: impl Into<SocketAddr>) -> Builder {
        self.serve = Some(address.into());
        self
    }

    /// Variables instead of the process's own, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn environment<'a>(
        mut self,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Builder {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value));
        self.environment = Some(Environment::from_variables(variables));
        self
    }

    /// An inspection instead of the process's own, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn inspection(mut self, inspection: Inspection) -> Builder {
        self.inspection = Some(inspection);
        self
    }

    /// Starts the monitor. Its first tick is at once.
    ///
    /// A directory that cannot be written, a missing procfs, a useless value in the environment
    /// or a machine without room for a thread are logged; the worker runs on.
    ///
    /// # Errors
    /// Only a mistake in code: a setting that is out of range, or a missing number of consumers.
    pub fn start(self) -> Result<Liveness, Error> {
        let (environment, address) = (self.environment.clone(), self.serve);
        let (liveness, monitor) = self.start_without_thread()?;
        if let Some(mut monitor) = monitor {
            let log = monitor.log().clone();
            let environment = environment.unwrap_or_else(Environment::of_process);
            let mut port =
                Port::new(address, environment, monitor.inspection(), monitor.encoding(), &log);
            let spawned = std::thread::Builder::new()
                .name(String::from("tickmark"))
                .spawn(move || keep_ticking(&mut monitor, &mut port));
            if let Err(error) = spawned {
                log.error(format_args!("monitor loop failed: cannot start its thread: {error}"));
            }
        }
        Ok(liveness)
    }

    /// [`start`](Builder::start), with the ticks left to the caller. No monitor where the
    /// environment names no valid slot.
    ///
    /// # Errors
    /// As [`start`](Builder::start).
    #[doc(hidden)]
    pub fn start_without_thread(self) -> Result<(Liveness, Option<Monitor>), Error> {
        let environment = self.environment.clone().unwrap_or_else(Environment::of_process);
        let registry = Arc::new(Registry::new());
        let signal = Arc::new(Signal::default());
        let jobs = match self.jobs {
            Some((concurrency, deadline)) => Jobs::judged(concurrency, deadline)?,
            None => Jobs::counted(),
        };
        let liveness = Liveness {
            registry: Arc::clone(&registry),
            jobs: jobs.clone(),
            recovery_grace: self.recovery_grace,
            signal: Arc::clone(&signal),
            _held: Arc::new(Held(Arc::clone(&signal))),
        };
        let Some(plan) = self.plan(&environment)? else {
            return Ok((liveness, None));
        };
        let shared = environment.shared();
        let inspection = self
            .inspection
            .unwrap_or_else(|| procfs::inspect(plan.encoding, shared.strict.value, shared.launch));
        let monitor = Monitor::new(plan, inspection, registry, jobs, signal);
        Ok((liveness, Some(monitor)))
    }

    /// The settings of code and environment together; `None`, and an ERROR in the log, where
    /// they name no slot.
    fn plan(&self, environment: &Environment) -> Result<Option<Plan>, Error> {
        let shared = environment.shared();
        let max_age = Duration::from_secs(shared.max_age.value.as_secs().into());

        let expected = self.expected()?;
        let shutdown_grace = grace("shutdown grace", self.shutdown_grace)?;
        let recovery_grace = grace("recovery grace", self.recovery_grace)?;
        let startup_grace_ticks = match self.startup_grace_ticks {
            Some(0) => {
                return Err(Error::new(Kind::Grace, "startup grace of 0 ticks".into()));
            }
            Some(ticks) => ticks,
            None => DEFAULT_STARTUP_GRACE_TICKS,
        };
        self.check_tick(max_age)?;
        #[cfg(feature = "serve")]
        if self.serve.is_some_and(|address| address.port() == 0) {
            return Err(Error::new(
                Kind::Serve,
                "port 0 to serve on: a probe could not know it".into(),
            ));
        }
        let (slot, processes) = self.place()?;

        let processes = processes.or_else(|| environment.processes()).unwrap_or(SlotCount::ONE);
        let slot = match slot.map_or_else(|| environment.slot(), |slot| Some(Ok(slot))) {
            None => Slot::FIRST,
            Some(Ok(slot)) => slot,
            Some(Err(text)) => {
                SlotLog::new(text).error(format_args!(
                    "TICKMARK_SLOT is not a slot (0 to 4095): this process publishes nothing"
                ));
                return Ok(None);
            }
        };
        let log = SlotLog::new(slot);
        if !processes.contains(slot) {
            log.error(format_args!(
                "the slot is not below the declared {processes} process(es): this process \
                 publishes nothing"
            ));
            return Ok(None);
        }
        Ok(Some(Plan {
            dir: CString::from(shared.dir.value),
            encoding: self.format.unwrap_or(shared.format.value),
            slot,
            processes,
            max_age,
            tick: self.tick.unwrap_or_else(|| tick_that_fits(environment, max_age, &log)),
            shutdown_grace: shutdown_grace
                .or_else(|| environment.shutdown_grace())
                .unwrap_or(DEFAULT_SHUTDOWN_GRACE),
            startup_grace_ticks,
            predicate: Predicate { expected, recovery_grace_ns: recovery_grace.map(nanoseconds) },
        }))
    }

    fn expected(&self) -> Result<u32, Error> {
        let wrong = |said: String| Err(Error::new(Kind::Consumers, said));
        match self.consumers {
            None => wrong("the number of consumers was not set".into()),
            Some(0) => wrong("0 consumers: nothing would be judged".into()),
            Some(n) => match u32::try_from(n) {
                Ok(n) => Ok(n),
                Err(_) => wrong(format!("{n} consumers are more than a mark can count")),
            },
        }
    }

    fn check_tick(&self, max_age: Duration) -> Result<(), Error> {
        match self.tick {
            Some(Duration::ZERO) => Err(Error::new(Kind::Tick, "tick of 0s".into())),
            Some(tick) if tick >= max_age => Err(Error::new(
                Kind::Tick,
                format!(
                    "tick of {} is not below the maximum age of {}: every mark would be stale",
                    Seconds(tick),
                    Seconds(max_age)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The slot and the number of processes as far as code set them.
    fn place(&self) -> Result<(Option<Slot>, Option<SlotCount>), Error> {
        let slot = self.slot.map(Slot::new).transpose().map_err(|_| {
            Error::new(Kind::Slot, format!("slot {} is above 4095", self.slot.unwrap_or_default()))
        })?;
        let processes = self.processes.map(SlotCount::new).transpose().map_err(|_| {
            let said =
                format!("{} processes: must be 1 to 4096", self.processes.unwrap_or_default());
            Error::new(Kind::Processes, said)
        })?;
        if let (Some(slot), Some(processes)) = (slot, processes)
            && !processes.contains(slot)
        {
            let said = format!("slot {slot} is not below {processes} process(es)");
            return Err(Error::new(Kind::Slot, said));
        }
        Ok((slot, processes))
    }
}

fn grace(name: &str, given: Option<Duration>) -> Result<Option<Duration>, Error> {
    match given {
        Some(Duration::ZERO) => Err(Error::new(Kind::Grace, format!("{name} of 0s"))),
        Some(grace) if u64::try_from(grace.as_nanos()).is_err() => {
            Err(Error::new(Kind::Grace, format!("{name} of {} is not finite", Seconds(grace))))
        }
        _ => Ok(given),
    }
}

/// The tick that the environment gives; one that would leave every mark stale is not taken.
fn tick_that_fits(environment: &Environment, max_age: Duration, log: &SlotLog<Slot>) -> Duration {
    let given = environment.tick();
    let wanted = given.as_ref().map_or(DEFAULT_TICK, |given| given.value);
    if wanted < max_age {
        return wanted;
    }
    let tick = if DEFAULT_TICK < max_age { DEFAULT_TICK } else { max_age / 2 };
    log.warn(format_args!(
        "{} of {} is not below the maximum age of {}: ticking every {}",
        given.as_ref().map_or("the default tick", |given| given.variable),
        Seconds(wanted),
        Seconds(max_age),
        Seconds(tick)
    ));
    tick
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The thread: a tick at once, then one a period. What a slow tick missed is not made up for.
fn keep_ticking(monitor: &mut Monitor, port: &mut Port) {
    let signal = Arc::clone(monitor.signal());
    let period = monitor.period();
    let mut due = Instant::now();
    loop {
        // First, so that a consumer that does not answer cannot keep the verdict from being told.
        port.tick();
        let began = Instant::now();
        monitor
            .tick(Now { monotonic_ns: clock::monotonic_ns(), realtime_ns: clock::realtime_ns() });
        due = next_due(due, period, began, Instant::now());
        if signal.wait(due) == Wake::End {
            return;
        }
    }
}

/// The first whole number of periods after `due` that is not past: the schedule is that of the
/// first tick, however late the ones since then were. But half a period at least after this one
/// began: what a late tick asked of a runtime must have time to be answered.
fn next_due(due: Instant, period: Duration, began: Instant, now: Instant) -> Instant {
    let earliest = now.max(began + period / 2);
    let Some(late) = now.checked_duration_since(due) else {
        // Woken early, by `stopping`: the next tick is still to come.
        return due;
    };
    let late = late.max(earliest.saturating_duration_since(due));
    let missed = late.as_nanos() / period.as_nanos().max(1);
    due + period * u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_does_not_drift() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let period = Duration::from_millis(10);
        // When it was due, when it began, and when it was over.
        let steps =
            [(0, 0, 3), (10, 10, 14), (20, 20, 45), (50, 42, 42), (50, 50, 50), (60, 60, 68)]
                .map(|(due, began, now)| next_due(after(due), period, after(began), after(now)));
        assert_eq!(steps, [10, 20, 50, 50, 60, 70].map(after));
    }

    #[test]
    fn a_late_tick_is_not_followed_at_once() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let period = Duration::from_millis(10);
        // Stopped, and let go just before the next one or the one after that.
        let steps = [(10, 14, 14), (10, 16, 16), (10, 19, 19), (10, 29, 29), (10, 16, 31)]
            .map(|(due, began, now)| next_due(after(due), period, after(began), after(now)));
        assert_eq!(steps, [20, 30, 30, 40, 40].map(after));
    }
}
