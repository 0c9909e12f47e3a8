//! One host: the task that drives its state machine, does what it says, watches its processes and
//! persists what must survive. What may happen next is `swap.rs`'s alone; here is only how.

mod actions;
mod actor;
mod backoff;
mod processes;
mod requests;
mod status;
mod supervise;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tickmark::protocol::MaxAge;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, spawn_blocking};

use self::backoff::Backoff;
pub(crate) use self::processes::exit_of;
pub use self::status::{GenerationStatus, HostStatus};
use crate::backend::{Backend, Generations, Proc, StartError};
use crate::choices::Choices;
use crate::error::{BoxError, Error, Kind};
use crate::gate::{Context, Gate};
use crate::generation::Gen;
use crate::layout::Layout;
use crate::name::{BuildName, GenerationNumber, HostName};
use crate::process::Exit;
use crate::route::Route;
use crate::sidecar::Wanted;
use crate::staged::Staged;
use crate::state::{HostDirectory, HostState, Lease};
use crate::swap::{Attempt, Event, Outcome, State, Swap};

/// How long a kill may take until it counts as unproven. A frozen cgroup dies in milliseconds.
const KILL: Duration = Duration::from_secs(10);

/// How long the preparation of a start and its exec may take: a frozen cgroup stops a stub.
const EXEC: Duration = Duration::from_secs(10);

/// How often health is asked while a start is awaited: often at first, since a deploy waits for it.
const POLL: Duration = Duration::from_millis(2);
const SLOW_POLL: Duration = Duration::from_millis(25);
const SOON: Duration = Duration::from_millis(500);

/// How often the lease is looked at.
const LEASE: Duration = Duration::from_secs(1);

/// When a host is restarted.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// Red verdicts in a row before a restart.
    pub red: u32,
    /// The time between two verdicts.
    pub check: Duration,
    /// The shortest backoff.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
    /// How long it must have run for the backoff to begin anew.
    pub reset: Duration,
}

/// A host as it is configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its row.
    pub route: Route,
    /// How long a start may take until it is ready, where nobody gave a deadline.
    pub start_deadline: Duration,
    /// How long the incumbent serves on after the switch.
    pub settle: Duration,
    /// How long it may drain after SIGTERM.
    pub drain: Duration,
    /// When it is restarted.
    pub restart: Restart,
    /// The age above which its marks are stale.
    pub max_age: MaxAge,
}

/// A step of a host, as it passes.
#[derive(Debug, Clone)]
pub struct Step {
    /// Whose.
    pub host: HostName,
    /// The request that it belongs to, where one is under way.
    pub attempt: Option<Attempt>,
    /// Where the host is now.
    pub state: State,
    /// What happened, in words.
    pub text: String,
    /// When.
    pub at: SystemTime,
}

/// How a request ended.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The outcome; [`Outcome::exit`] is the command's status.
    pub outcome: Outcome,
    /// The error that goes with an outcome which is not the one that was asked for.
    pub error: Option<Error>,
    /// The build that serves.
    pub build: Option<BuildName>,
}

/// What all tasks of a host share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) directory: HostDirectory,
    choices: Arc<Choices>,
    /// Two generations may serve at once: it was not declined, and the row has a socket for each.
    overlaps: bool,
    store: Mutex<HostState>,
    /// What is in `store` could not be saved.
    unsaved: AtomicBool,
    /// The one lock: under it the canonical link is made, repointed and removed, and the current
    /// generation changes.
    current: Mutex<Option<Gen>>,
    /// See [`Shared::launches`].
    launches: Mutex<Context>,
    steps: broadcast::Sender<Step>,
}

impl Shared {
    pub(crate) fn route(&self) -> &Route {
        &self.settings.route
    }

    pub(crate) fn generations(&self) -> Result<&dyn Generations, Error> {
        self.backend.generations().ok_or_else(|| {
            Error::new(
                Kind::NoGenerations,
                format!("{}: this backend cannot run staged generations", self.route().host),
            )
        })
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, HostState> {
        // A panic while it was held leaves at worst a change that is not saved yet.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> MutexGuard<'_, Option<Gen>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every start belongs to that no request owns: of a sidecar, and of a slot that is
    /// started again. It ends with the lease, with a fence and with the close.
    pub(crate) fn launches(&self) -> Context {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the state and makes it durable. Where that fails it is changed in memory alone, until
    /// the next save.
    pub(crate) fn change(&self, change: impl FnOnce(&mut HostState)) -> Result<(), Error> {
        let mut store = self.store();
        change(&mut store);
        self.save(&store)
    }

    /// Whether the host is pinned to no other build.
    fn is_free_for(&self, build: &BuildName) -> Result<(), Error> {
        let host = &self.route().host;
        match &self.store().hold {
            Some(hold) if hold != build => Err(Error::new(
                Kind::Usage,
                format!("{host} is held at {hold}: release it first (hold {host} --release)"),
            )),
            _ => Ok(()),
        }
    }

    /// Sets one field durably, and gives what it was. Where that cannot be saved, it is as it was.
    fn set<T>(&self, field: fn(&mut HostState) -> &mut T, value: T) -> Result<T, Error> {
        let mut store = self.store();
        let before = std::mem::replace(field(&mut store), value);
        let saved = self.save(&store);
        match saved {
            Ok(()) => Ok(before),
            Err(error) => {
                *field(&mut store) = before;
                Err(error)
            }
        }
    }

    fn save(&self, store: &HostState) -> Result<(), Error> {
        let saved = self.directory.save(&self.lease, store);
        self.unsaved.store(saved.is_err(), Ordering::Relaxed);
        saved
    }

    /// The last save failed.
    fn is_unsaved(&self) -> bool {
        self.unsaved.load(Ordering::Relaxed)
    }

    /// What every start of this host must be allowed: the lease and the fence.
    pub(crate) fn may_launch(&self) -> Result<(), BoxError> {
        self.lease.check()?;
        match &self.store().fence {
            Some(reason) => Err(Error::new(
                Kind::Fenced,
                format!("{}: a fence allows no launch: {reason}", self.route().host),
            )
            .into()),
            None => Ok(()),
        }
    }

    /// Whether `build` may run: where overlap was declined, one that was woken from the live link
    /// is held to that.
    fn may_run(&self, build: &Staged) -> Result<(), BoxError> {
        match build.live && !self.overlaps {
            true => self.may_run_live(&build.name),
            false => Ok(()),
        }
    }

    /// `gate`, which asks what [`Shared::may_run`] asks too.
    fn hold_to_live(self: &Arc<Self>, gate: Gate, build: &Staged) -> Gate {
        if !build.live || self.overlaps {
            return gate;
        }
        let (shared, build) = (Arc::clone(self), build.clone());
        gate.live(move || shared.may_run(&build))
    }

    /// Whether the build that the live link named may still run: not one whose start failed and that
    /// never was healthy, not another than the one the host is pinned to, and still what the link
    /// names.
    fn may_run_live(&self, build: &BuildName) -> Result<(), BoxError> {
        let refuse = |why: String| Err(Error::new(Kind::Refused, why).into());
        let host = &self.route().host;
        let store = self.store();
        let was_healthy = store.swap.good.as_ref().is_some_and(|good| good.name == *build);
        if let Some(why) = store.failed.get(build).filter(|_| !was_healthy) {
            return refuse(format!("{host}: the live build {build} failed its start: {why}"));
        }
        if let Some(hold) = store.hold.as_ref().filter(|hold| *hold != build) {
            return refuse(format!("{host} is held at {hold}, and the live link named {build}"));
        }
        match self.directory.live_build()? {
            Some(live) if live == *build => Ok(()),
            _ => refuse(format!("{host}: the live link does not name {build} any more")),
        }
    }
}

/// What a request is, before it is the state machine's.
#[derive(Debug)]
pub(crate) enum Ask {
    Swap(BuildName),
    Rollback,
    Restart,
    Stop,
    Wake,
    Hold(BuildName),
}

/// A message to the host's task.
enum Input {
    Ask { ask: Ask, deadline: Option<Duration>, context: Context, reply: oneshot::Sender<Answer> },
    Fence { reason: Option<String>, reply: oneshot::Sender<Result<(), Error>> },
    Release(oneshot::Sender<Result<Option<BuildName>, Error>>),
    Status(oneshot::Sender<HostStatus>),
    Captured(oneshot::Sender<Vec<Staged>>),
    Event(Event<Staged>, Option<Error>),
    Started(GenerationNumber, Result<(Gen, Vec<Proc>), StartError>),
    Respawned(GenerationNumber, u32, Result<Proc, Error>),
    Adopted(GenerationNumber, Gen, Vec<Proc>),
    Exited { number: GenerationNumber, token: String, exit: Exit },
    Verdicts(GenerationNumber, Vec<(u32, Option<String>)>),
    Look,
    Close(oneshot::Sender<()>),
}

/// A handle to the task of one host. The task goes on until it is closed.
#[derive(Clone)]
pub(crate) struct Host {
    inbox: mpsc::UnboundedSender<Input>,
    pub(crate) shared: Arc<Shared>,
}

impl Host {
    /// Finds what ran, and starts the task.
    pub(crate) fn open(
        settings: Settings,
        backend: Arc<dyn Backend>,
        lease: Arc<Lease>,
        choices: Arc<Choices>,
        steps: broadcast::Sender<Step>,
    ) -> Result<Host, Error> {
        let directory = HostDirectory::open(lease.path(), &settings.route.host)?;
        let state = directory.load()?;
        // Before the fence, which hides the row's own layout.
        let layout = backend.gen_layout(&settings.route);
        backend.fence(&settings.route.host, state.fence.as_deref());
        let (swap, actions) = Swap::recover(state.swap.clone());
        let shared = Arc::new(Shared {
            overlaps: settings.route.overlap && layout != Layout::Foreign,
            settings,
            backend,
            lease,
            directory,
            choices,
            store: Mutex::new(state),
            unsaved: AtomicBool::new(false),
            current: Mutex::new(None),
            launches: Mutex::default(),
            steps,
        });
        let (inbox, messages) = mpsc::unbounded_channel();
        let (sidecar, wanted) = watch::channel(Wanted::Undecided);
        let sidecar_left = crate::sidecar::spawn(Arc::clone(&shared), wanted);
        let actor = Actor {
            backoff: Backoff::new(shared.settings.restart),
            patience: shared.settings.start_deadline,
            shared: Arc::clone(&shared),
            swap,
            inbox: inbox.clone(),
            running: HashMap::new(),
            waiters: HashMap::new(),
            context: Context::new(),
            deadline: None,
            awaiting: None,
            resting: None,
            timers: HashMap::new(),
            problem: None,
            reds: HashMap::new(),
            restarting: None,
            checked: Instant::now(),
            sidecar,
            sidecar_left,
        };
        tokio::spawn(actor.run(messages, actions));
        Ok(Host { inbox, shared })
    }

    pub(crate) async fn ask(
        &self,
        ask: Ask,
        deadline: Option<Duration>,
        context: Context,
    ) -> Result<Answer, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Ask { ask, deadline, context, reply })?;
        answer.await.map_err(|_| self.closed())
    }

    pub(crate) async fn fence(&self, reason: Option<String>) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Fence { reason, reply })?;
        answer.await.map_err(|_| self.closed())?
    }

    /// Pins the host to no build any more; gives the one that it was pinned to.
    pub(crate) async fn release(&self) -> Result<Option<BuildName>, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Release(reply))?;
        answer.await.map_err(|_| self.closed())?
    }

    pub(crate) async fn status(&self) -> Result<HostStatus, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Status(reply))?;
        answer.await.map_err(|_| self.closed())
    }

    /// The builds that run, may be started next, or were healthy last.
    pub(crate) async fn captured(&self) -> Result<Vec<Staged>, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Input::Captured(reply))?;
        answer.await.map_err(|_| self.closed())
    }

    pub(crate) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.send(Input::Close(reply)).is_ok() {
            let _closed = answer.await;
        }
    }

    /// As [`Host::close`], without waiting.
    pub(crate) fn let_go(&self) {
        let (reply, _) = oneshot::channel();
        let _closed = self.send(Input::Close(reply));
    }

    /// Runs `write` while `number` is the current generation, and says whether it ran: nothing
    /// switches meanwhile.
    pub(crate) fn write(&self, number: GenerationNumber, write: &mut dyn FnMut()) -> bool {
        let current = self.shared.current();
        let is_current = current.as_ref().is_some_and(|current| current.number == number);
        if is_current {
            write();
        }
        is_current
    }

    fn send(&self, input: Input) -> Result<(), Error> {
        self.inbox.send(input).map_err(|_| self.closed())
    }

    fn closed(&self) -> Error {
        Error::new(Kind::Ended, format!("{}: the activator is closed", self.shared.route().host))
    }
}

/// The processes of one generation that are in hand.
struct Running {
    generation: Gen,
    /// What its slots that are started again belong to.
    context: Context,
    /// By slot.
    slots: BTreeMap<u32, Slot>,
    /// [`Event::Died`] was sent.
    died: bool,
}

struct Slot {
    proc: Arc<Proc>,
    exit: Option<Exit>,
    respawning: bool,
    /// Until when it may be red, where nothing says that it was healthy before.
    ready_by: Option<Instant>,
}

struct Waiter {
    reply: oneshot::Sender<Answer>,
    /// How long its start may take.
    patience: Duration,
    context: Context,
    /// The host is pinned to this build once it serves.
    hold: Option<BuildName>,
    /// Holds of the very build that this request swaps to.
    holds: Vec<Waiter>,
}

struct Actor {
    shared: Arc<Shared>,
    swap: Swap<Staged>,
    inbox: mpsc::UnboundedSender<Input>,
    running: HashMap<GenerationNumber, Running>,
    waiters: HashMap<Attempt, Waiter>,
    /// What the start under way belongs to.
    context: Context,
    /// How long that may take, and from its beginning on until when it must be ready: what leaves
    /// before it drains on its own time.
    patience: Duration,
    deadline: Option<Instant>,
    awaiting: Option<AbortHandle>,
    resting: Option<AbortHandle>,
    /// The time to settle, then to drain, of each that leaves.
    timers: HashMap<GenerationNumber, AbortHandle>,
    /// The error of the attempt under way.
    problem: Option<Error>,
    /// Red verdicts in a row, by slot of the current generation.
    reds: HashMap<(GenerationNumber, u32), u32>,
    /// The backoff before a red generation is restarted.
    restarting: Option<(GenerationNumber, AbortHandle)>,
    checked: Instant,
    backoff: Backoff,
    sidecar: watch::Sender<Wanted>,
    /// `true` while no sidecar runs.
    sidecar_left: watch::Receiver<bool>,
}

/// Work that blocks, off the runtime's threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::because(Kind::Io, "a task of the activator failed", error)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::cgroup::Limit;
    use crate::swap::Record;

    /// A backend that must not be asked for anything.
    struct Uncalled;

    impl Backend for Uncalled {
        fn layout(&self, _: &Route) -> Layout {
            panic!("called back")
        }
    }

    fn build(name: &str) -> BuildName {
        BuildName::new(name).unwrap()
    }

    fn staged(name: &str) -> Staged {
        Staged {
            name: build(name),
            program: PathBuf::from("/nowhere"),
            digest: String::new(),
            tier: Limit::default(),
            live: true,
        }
    }

    /// A host that has declined overlap, whose live link names `live`. Its builds are nowhere.
    fn shared(state: &tempfile::TempDir, live: &str) -> Arc<Shared> {
        let second = Duration::from_secs(1);
        let route = Route { overlap: false, ..Route::new(HostName::new("orders").unwrap()) };
        let directory = HostDirectory::open(state.path(), &route.host).unwrap();
        directory.repoint_live(&state.path().join("nowhere"), &build(live)).unwrap();
        Arc::new(Shared {
            overlaps: false,
            choices: Arc::default(),
            backend: Arc::new(Uncalled),
            lease: Arc::new(Lease::take(state.path()).unwrap()),
            directory,
            settings: Settings {
                route,
                start_deadline: second,
                settle: second,
                drain: second,
                restart: Restart { red: 3, check: second, min: second, max: second, reset: second },
                max_age: MaxAge::DEFAULT,
            },
            store: Mutex::default(),
            unsaved: AtomicBool::new(false),
            current: Mutex::new(None),
            launches: Mutex::default(),
            steps: broadcast::channel(1).0,
        })
    }

    #[test]
    fn the_live_link_gate_answers_from_memory_the_row_and_the_live_link_alone() {
        let state = tempfile::tempdir().unwrap();
        let shared = shared(&state, "1");
        let refuses = |why: &str| {
            let gate = shared.hold_to_live(Gate::none(), &staged("1"));
            let refused = gate.pass(|| ()).unwrap_err().into_inner().to_string();
            assert!(refused.contains(why), "{refused}");
        };
        let passes = || shared.hold_to_live(Gate::none(), &staged("1")).pass(|| ()).unwrap();
        passes();

        shared.store().failed.insert(build("1"), "it died".to_owned());
        refuses("the live build 1 failed its start: it died");
        // What was healthy last may, whatever failed of it.
        shared.store().swap = Record { good: Some(staged("1")), ..Record::default() };
        passes();
        shared.store().hold = Some(build("2"));
        refuses("held at 2");
        shared.store().hold = Some(build("1"));
        passes();
        shared.directory.repoint_live(state.path(), &build("2")).unwrap();
        refuses("does not name 1 any more");
    }

    #[test]
    fn the_live_link_gate_answers_under_the_lock_of_what_is_known() {
        let state = tempfile::tempdir().unwrap();
        let shared = shared(&state, "1");
        let known = shared.store();
        let (answer, answered) = mpsc::channel();
        let asking = Arc::clone(&shared);
        let asks = move || answer.send(asking.may_run(&staged("1")).is_ok()).unwrap();
        let asked = thread::spawn(asks);
        assert!(answered.recv_timeout(Duration::from_millis(100)).is_err(), "while it changes");
        drop(known);
        assert!(answered.recv().unwrap());
        asked.join().unwrap();
    }
}
