//! The backend that runs generations itself: by exec through a stub that waits in its own cgroup,
//! with the gate asked immediately before.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::backend::{
    Backend, EmptyHost, Generations, Gone, KillHost, Proc, Sidecars, Start, StartError, Stopped,
};
use crate::cgroup::{Delegation, Empty, Evidence, HostCgroup, Limit, Unproven, leader_exit};
use crate::error::{BoxError, Doing as _, Error, Kind};
use crate::gate::{Gate, Refused};
use crate::generation::Gen;
use crate::health::MarksRoot;
use crate::layout::{self, Layout, Sockets, no_generation_path};
use crate::link;
use crate::name::{BuildName, GenerationNumber, HostName, LeafName};
use crate::process::Process;
use crate::route::Route;
use crate::staged;
use crate::state::{HostDirectory, Ran};
use crate::stub::{self, GoError, Launch};

/// Drops the responses that were stored for a host; says how many. They carry the generation's
/// number, so that none is served again in any case.
pub type Purge = dyn Fn(&HostName, GenerationNumber) -> Result<usize, BoxError> + Send + Sync;

/// Asked about the build that the live link named, where overlap was declined.
pub type LiveGate = dyn Fn(&Route, &BuildName) -> Result<(), BoxError> + Send + Sync;

/// Lays out and runs what is nested in a run directory that is root's.
pub trait NestedControl: Send + Sync {
    /// Starts one generation, or the sidecar, from `staged`, which root validates.
    ///
    /// # Errors
    /// [`StartError`] says what is left.
    fn start(
        &self,
        start: &Start<'_>,
        leaf: LeafName,
        staged: Option<&StagedExe>,
        generation: &Gen,
    ) -> Result<Proc, StartError>;

    /// Stops it, and returns once its cgroup is empty.
    ///
    /// # Errors
    /// It is not proven.
    fn stop(&self, host: &HostName, leaf: LeafName, deadline: Instant) -> Result<(), Error>;
}

/// What root is told of a build, and validates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedExe {
    /// The staged executable.
    pub path: PathBuf,
    /// The build's name.
    pub version: Option<BuildName>,
    /// SHA-256 of the executable, in hexadecimal.
    pub digest: Option<String>,
}

/// How often a start is tried again, where the executable is open for writing: a process that
/// another thread is just starting may hold a copy of the descriptor with which the build was
/// staged, until its exec (`ETXTBSY`).
const BUSY_TRIES: u32 = 20;

/// The pause between them.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The path where a launch has none of its own.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The backend itself.
pub struct ExecBackend {
    state: PathBuf,
    marks: MarksRoot,
    delegation: Option<Delegation>,
    fences: Mutex<BTreeMap<HostName, String>>,
    /// Hosts of which it was said that a leader's exit is the only proof.
    leader_alone: Mutex<BTreeSet<HostName>>,
    purge: Option<Arc<Purge>>,
    live: Option<Arc<LiveGate>>,
    control: Option<Arc<dyn NestedControl>>,
}

impl std::fmt::Debug for ExecBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecBackend")
            .field("state", &self.state)
            .field("delegation", &self.delegation)
            .finish_non_exhaustive()
    }
}

impl ExecBackend {
    /// State and logs below `state`; contained in `delegation` where there is one.
    #[must_use]
    pub fn new(state: &Path, marks: MarksRoot, delegation: Option<Delegation>) -> ExecBackend {
        ExecBackend {
            state: state.to_owned(),
            marks,
            delegation,
            fences: Mutex::default(),
            leader_alone: Mutex::default(),
            purge: None,
            live: None,
            control: None,
        }
    }

    /// Calls `purge` at each switch.
    #[must_use]
    pub fn purging(self, purge: Arc<Purge>) -> ExecBackend {
        ExecBackend { purge: Some(purge), ..self }
    }

    /// Asks `live` at each start from the live link, after the caller's gate.
    #[must_use]
    pub fn asking_live(self, live: Arc<LiveGate>) -> ExecBackend {
        ExecBackend { live: Some(live), ..self }
    }

    /// Runs nested rows over `control`.
    #[must_use]
    pub fn controlling(self, control: Arc<dyn NestedControl>) -> ExecBackend {
        ExecBackend { control: Some(control), ..self }
    }

    /// Whether generations have cgroups of their own.
    #[must_use]
    pub fn contains(&self) -> bool {
        self.delegation.is_some()
    }

    fn host(&self, route: &Route) -> Result<Option<HostCgroup>, Error> {
        self.delegation.as_ref().map(|delegation| delegation.host(&route.host)).transpose()
    }

    /// The host's cgroup as it is, to end what is in it.
    fn found(&self, route: &Route) -> Result<Option<HostCgroup>, Error> {
        match &self.delegation {
            Some(delegation) => delegation.open_host(&route.host),
            None => Ok(None),
        }
    }

    /// One process, in the leaf `name`, with the gate asked last.
    fn launch(
        &self,
        start: &Start<'_>,
        name: LeafName,
        program: &Path,
        arguments: &[String],
        generation: &Gen,
        gate: &Gate,
    ) -> Result<Proc, StartError> {
        let mut tries = 0;
        loop {
            match self.launch_once(start, name, program, arguments, generation, gate) {
                Err(StartError::Failed(error)) if is_busy(&error) && tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_PAUSE);
                }
                other => return other,
            }
        }
    }

    fn launch_once(
        &self,
        start: &Start<'_>,
        name: LeafName,
        program: &Path,
        arguments: &[String],
        generation: &Gen,
        gate: &Gate,
    ) -> Result<Proc, StartError> {
        let route = start.route;
        let launched = self.marks.launch()?;
        let forgotten = launched.clone();
        let undo_marks = Undo::by(move || forgotten.forget());
        let host = self.host(route)?;
        let leaf = host.as_ref().map(|host| host.fresh_leaf(name)).transpose()?;
        let undo_leaf = Undo::by(|| {
            if let Some(host) = &host
                && let Err(error) = host.remove_leaf(name)
            {
                tracing::warn!(host = %route.host, leaf = %name, %error, "cannot undo a start");
            }
        });
        if let Some(leaf) = &leaf {
            leaf.limit(&generation.tier)?;
        }
        let directory = route.directory.as_deref().or_else(|| program.parent());
        let launch = Launch {
            program: program.to_owned(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: environment(route, start.slot, generation, &launched),
            directory: directory.unwrap_or_else(|| Path::new("/")).to_owned(),
            output: self.log(route)?.into(),
        };
        let mut waiting = Some(stub::spawn(&launch, leaf.as_ref(), start.deadline)?);
        let identity = waiting.as_ref().map(|stub| stub.identity().clone());
        let noted = identity.map_or(Ok(()), |identity| {
            let launched = launched.clone();
            (start.note)(Ran { slot: start.slot, identity, launched, may_have_run: false })
        });
        let answer = noted
            .map_err(Refused::from)
            .and_then(|()| gate.pass(|| waiting.take().map(|stub| stub.go(start.deadline))));
        let proc = |process| Proc { process, leaf, launched, slot: start.slot };
        match answer {
            Ok(Some(Ok(process))) => {
                undo_leaf.keep();
                undo_marks.keep();
                Ok(proc(process))
            }
            Ok(Some(Err(GoError::MayHaveRun(left)))) => {
                undo_leaf.keep();
                undo_marks.keep();
                Err(StartError::MayHaveRun(Some(Box::new(proc(left.process))), left.error))
            }
            Ok(Some(Err(GoError::NotRun(error)))) => Err(StartError::Failed(error)),
            Ok(None) => Err(StartError::Failed(Error::new(Kind::Failed, "the gate went twice"))),
            Err(refused) => {
                // Gone before its leaf is removed.
                if let Some(Err(error)) = waiting.take().map(stub::Waiting::refuse) {
                    tracing::warn!(host = %route.host, %error, "a refused stub is still there");
                }
                Err(StartError::Refused(refused))
            }
        }
    }

    fn log(&self, route: &Route) -> Result<fs::File, Error> {
        let path = HostDirectory::open(&self.state, &route.host)?.log();
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&path)
            .doing(|| format!("open the log {}", path.display()))
    }

    fn live_build(&self, route: &Route) -> Result<Option<BuildName>, Error> {
        HostDirectory::open(&self.state, &route.host)?.live_build()
    }

    /// What a start without a staged path runs: the build that the live link names, as it is now.
    fn read_live(&self, route: &Route) -> Result<staged::Staged, Error> {
        let build = self.live_build(route)?.ok_or_else(|| {
            Error::new(
                Kind::Unknown,
                format!("{}: nothing was ever deployed: there is no live build", route.host),
            )
        })?;
        staged::capture(&route.builds, &build, &route.tier)
    }
}

/// Undoes a preparation when it is dropped, unless it was kept.
pub(crate) struct Undo<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Undo<F> {
    pub(crate) fn by(undo: F) -> Undo<F> {
        Undo(Some(undo))
    }

    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for Undo<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

fn is_busy(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return io.raw_os_error() == Some(Errno::TXTBSY.raw_os_error());
        }
        source = cause.source();
    }
    false
}

/// What a process of this launch is given as its environment.
pub(crate) fn environment(
    route: &Route,
    slot: u32,
    generation: &Gen,
    launched: &crate::health::Launched,
) -> Vec<(OsString, OsString)> {
    let mut variables: BTreeMap<OsString, OsString> = BTreeMap::new();
    variables.insert("PATH".into(), DEFAULT_PATH.into());
    for (name, value) in &route.env {
        variables.insert(name.into(), value.into());
    }
    let mut ours = |name: &str, value: OsString| variables.insert(name.into(), value);
    for (name, value) in launched.variables() {
        ours(name, value.to_owned());
    }
    // Each process judges itself alone: its directory is its own.
    ours("TICKMARK_SLOT", "0".into());
    ours("TICKMARK_PROCESSES", "1".into());
    ours("TICKMARK_INSTANCE", slot.to_string().into());
    ours("TICKMARK_GENERATION", generation.number.to_string().into());
    if let Some(build) = &generation.build {
        ours("TICKMARK_BUILD", build.as_str().into());
    }
    if let (Some(socket), Some(control)) = (&generation.socket, &generation.control) {
        ours("TICKMARK_SOCKET", socket.into());
        ours("TICKMARK_CONTROL", control.into());
    }
    variables.into_iter().collect()
}

impl Backend for ExecBackend {
    fn layout(&self, route: &Route) -> Layout {
        let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        layout::classify(route, fences.get(&route.host).map(String::as_str))
    }

    fn fence(&self, host: &HostName, reason: Option<&str>) {
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Some(reason) => fences.insert(host.clone(), reason.to_owned()),
            None => fences.remove(host),
        };
    }

    fn gen_layout(&self, route: &Route) -> Layout {
        layout::for_generations(self.layout(route), route)
    }

    fn gen_paths(&self, route: &Route, number: GenerationNumber) -> Option<Sockets> {
        layout::sockets(self.layout(route), route, number)
    }

    fn generations(&self) -> Option<&dyn Generations> {
        Some(self)
    }

    fn kill(&self) -> Option<&dyn KillHost> {
        Some(self)
    }

    fn empty(&self) -> Option<&dyn EmptyHost> {
        Some(self)
    }

    fn sidecars(&self) -> Option<&dyn Sidecars> {
        Some(self)
    }
}

impl Generations for ExecBackend {
    fn start_staged(
        &self,
        start: &Start<'_>,
        mut generation: Gen,
    ) -> Result<(Gen, Proc), StartError> {
        let route = start.route;
        let no_tier = generation.tier == Limit::default();
        if no_tier {
            generation.tier = self.gen_tier(route, generation.build.as_ref());
        }
        let name = LeafName::Generation(generation.number, start.slot);
        let sockets = match self.gen_layout(route) {
            Layout::Nested => return self.start_nested(start, name, generation),
            Layout::Flat => {
                let sockets = self.gen_paths(route, generation.number);
                for path in sockets.iter().flat_map(|sockets| [&sockets.socket, &sockets.control]) {
                    link::clear_own_socket(path)?;
                }
                sockets
            }
            Layout::Foreign => {
                if let Some(canonical) = &route.socket {
                    link::clear_leftover_link(canonical)?;
                }
                route.socket.clone().map(Sockets::at)
            }
            refusing @ (Layout::Fenced(_) | Layout::Conflict(_)) => {
                refusing.permits(route, "spawn")?;
                return Err(no_generation_path(route).into());
            }
        };
        let mut gate = start.gate.clone();
        let program = match &generation.staged {
            Some(program) => program.clone(),
            None => {
                let live = self.read_live(route)?;
                gate = self.ask_live(gate, route, &live.name);
                if no_tier {
                    // Read with the program: the link may have been repointed since.
                    generation.tier = live.tier;
                }
                generation.build = Some(live.name);
                generation.digest = Some(live.digest);
                live.program
            }
        };
        let bound = generation.bound_to(sockets);
        let proc = self.launch(start, name, &program, &route.args, &bound, &gate)?;
        Ok((bound, proc))
    }

    fn gen_tier(&self, route: &Route, build: Option<&BuildName>) -> Limit {
        let build = build.map_or_else(|| self.live_build(route), |build| Ok(Some(build.clone())));
        let own = build.and_then(|build| match build {
            Some(build) => staged::tier(&route.builds, &build, &route.tier),
            None => Ok(route.tier),
        });
        own.unwrap_or_else(|error| {
            tracing::warn!(host = %route.host, %error, "the build's own tier cannot be read");
            route.tier
        })
    }

    fn gen_ready(&self, route: &Route, generation: &Gen) {
        widen(route, generation);
    }

    fn raise_parent(
        &self,
        route: &Route,
        incumbent: &Limit,
        successor: &Limit,
    ) -> Result<(), Error> {
        self.restore_parent(route, &Limit::overlap(incumbent, successor))
    }

    fn restore_parent(&self, route: &Route, tier: &Limit) -> Result<(), Error> {
        match self.host(route)? {
            Some(host) => host.limit(tier),
            None => Ok(()),
        }
    }

    fn gen_switched(&self, route: &Route, generation: &Gen) -> Result<(), Error> {
        let (Some(canonical), Some(socket)) = (&route.socket, &generation.socket) else {
            // A pure worker has nothing that could name it.
            return match route.socket {
                None => Ok(()),
                Some(_) => Err(no_generation_path(route)),
            };
        };
        // A fence allows no launch; a switch is none.
        let paths = layout::sockets(layout::classify(route, None), route, generation.number);
        // In conflict it stays where it is: what the path names already serves on.
        if socket == canonical || (paths.is_none() && !link::names(canonical, socket)?) {
            return Err(no_generation_path(route));
        }
        // First, so that no client meets a closed mode behind the link.
        widen(route, generation);
        link::repoint(canonical, route.nested.as_deref(), socket)?;
        if let Some(purge) = &self.purge {
            // It is the caller's code, and the path is repointed: nothing of it may refuse the switch.
            let purge = || purge(&route.host, generation.number);
            let dropped = catch_unwind(AssertUnwindSafe(purge));
            match dropped.unwrap_or_else(|_| Err("the hook panicked".into())) {
                Ok(0) => {}
                Ok(dropped) => tracing::info!(
                    host = %route.host, generation = %generation.number, dropped,
                    "dropped stored responses at the switch"
                ),
                Err(error) => tracing::warn!(
                    host = %route.host, generation = %generation.number, %error,
                    "cannot drop stored responses: they miss by their generation"
                ),
            }
        }
        Ok(())
    }

    fn gen_stopped(&self, route: &Route, stopped: Stopped<'_>) -> Result<(), Error> {
        let Some(canonical) = &route.socket else { return Ok(()) };
        match stopped {
            Stopped::Generation(generation) => match &generation.socket {
                Some(socket) if socket != canonical => {
                    link::remove_if_names(canonical, socket).map(|_| ())
                }
                _ => Ok(()),
            },
            // The other row of a conflict numbers its generations, too.
            Stopped::Gone { .. } if route.conflict.is_some() => Ok(()),
            Stopped::Gone { next } => {
                link::remove_leftover(canonical, route.nested.as_deref(), next)
            }
        }
    }

    fn end(
        &self,
        route: &Route,
        leaf: LeafName,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<Gone, Error> {
        if route.nested.is_some() {
            self.nested_control(route)?.stop(&route.host, leaf, deadline)?;
            return match leader.map(|leader| leader.wait(deadline)).transpose()? {
                Some(None) => Err(Error::new(
                    Kind::Unproven,
                    format!("{}: {leaf} is stopped, and its leader lives", route.host),
                )),
                _ => Ok(Gone::Unit),
            };
        }
        let leaders: Vec<&Process> = leader.into_iter().collect();
        let Some(delegation) = self.containing(leader) else {
            return self.end_uncontained(&route.host, &leaders, deadline);
        };
        let ended = match delegation.open_host(&route.host)? {
            // What was started in it is gone with it.
            None => delegation.empty_host(&route.host, &leaders, deadline),
            Some(host) => match host.open_leaf(leaf)? {
                None => host.kill_leaf(leaf, &leaders, deadline),
                Some(open) => open.empty(&leaders, deadline),
            },
        };
        self.proven(&route.host, ended).map(Gone::Empty)
    }

    fn adopt(&self, route: &Route, leaf: LeafName, ran: &Ran) -> Result<Option<Proc>, Error> {
        let Some(process) = Process::adopt(&ran.identity)? else { return Ok(None) };
        let open = match self.found(route)? {
            Some(host) => host.open_leaf(leaf)?,
            None => None,
        };
        // The leaf that it was started in, or none at all.
        let open = open.filter(|open| Some(open.id()) == ran.identity.cgroup_id);
        Ok(Some(Proc { process, leaf: open, launched: ran.launched.clone(), slot: ran.slot }))
    }

    fn leaves(&self, route: &Route) -> Result<Vec<LeafName>, Error> {
        self.found(route)?.map_or(Ok(Vec::new()), |host| host.leaves())
    }

    fn sweep(&self, route: &Route, keep: &[LeafName]) {
        let Ok(Some(host)) = self.found(route) else { return };
        let Ok(leaves) = host.leaves() else { return };
        for leaf in leaves {
            if !keep.contains(&leaf)
                && let Err(error) = host.remove_leaf(leaf)
            {
                tracing::warn!(host = %route.host, %leaf, %error, "cannot remove a leaf");
            }
        }
    }
}

impl ExecBackend {
    /// The delegation, for a process that was started in it: one of an earlier activator that had
    /// none has no cgroup, whatever there is now.
    fn containing(&self, leader: Option<&Process>) -> Option<&Delegation> {
        let outside = leader.is_some_and(|leader| leader.identity().cgroup_id.is_none());
        self.delegation.as_ref().filter(|_| !outside)
    }

    /// Says once a host where the leader's exit has to do for a proof.
    fn proven(&self, host: &HostName, ended: Result<Empty, Unproven>) -> Result<Empty, Error> {
        let empty = ended?;
        if empty.evidence() == Evidence::LeaderExit {
            let mut said = self.leader_alone.lock().unwrap_or_else(PoisonError::into_inner);
            if said.insert(host.clone()) {
                let why = match &self.delegation {
                    None => "no cgroup is delegated",
                    Some(_) => "it was started without a cgroup, or in one without cgroup.kill",
                };
                tracing::warn!(%host, "the leader's exit is the only proof that it stopped: {why}");
            }
        }
        Ok(empty)
    }

    /// Without a cgroup: the leader, and those that stayed in its process group. Its exit is the
    /// only proof there is.
    fn end_uncontained(
        &self,
        host: &HostName,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<Gone, Error> {
        for leader in leaders {
            // It leads a session of its own; while it has not been waited for, its number is its own.
            if leader.exited()?.is_none()
                && let Some(group) = i32::try_from(leader.pid()).ok().and_then(Pid::from_raw)
            {
                let _none_left = kill_process_group(group, Signal::KILL);
            }
        }
        if leaders.is_empty() {
            tracing::warn!(%host, "the leader is gone, and nothing is known of what it forked");
            return Ok(Gone::Leader);
        }
        self.proven(host, leader_exit(leaders, Unproven::NoDelegation, deadline)).map(Gone::Empty)
    }

    fn ask_live(&self, gate: Gate, route: &Route, build: &BuildName) -> Gate {
        match &self.live {
            Some(live) => {
                let (live, route, build) = (Arc::clone(live), route.clone(), build.clone());
                gate.live(move || live(&route, &build))
            }
            None => gate,
        }
    }

    /// The unit binds what root lays out, so root is told what to run, and validates it.
    fn start_nested(
        &self,
        start: &Start<'_>,
        name: LeafName,
        generation: Gen,
    ) -> Result<(Gen, Proc), StartError> {
        let control = self.nested_control(start.route)?;
        let bound = {
            let sockets = self.gen_paths(start.route, generation.number);
            generation.bound_to(sockets)
        };
        let staged = staged_exe(&bound);
        let proc = control.start(start, name, staged.as_ref(), &bound)?;
        Ok((bound, proc))
    }

    fn nested_control(&self, route: &Route) -> Result<&dyn NestedControl, Error> {
        self.control.as_deref().ok_or_else(|| {
            Error::new(
                Kind::Failed,
                format!("{}: no control channel to whoever lays out its run directory", route.host),
            )
        })
    }
}

fn staged_exe(generation: &Gen) -> Option<StagedExe> {
    generation.staged.clone().map(|path| StagedExe {
        path,
        version: generation.build.clone(),
        digest: generation.digest.clone(),
    })
}

fn widen(route: &Route, generation: &Gen) {
    if let Some(socket) = &generation.socket
        && let Err(error) = link::widen(socket)
    {
        tracing::warn!(host = %route.host, %error, "clients of the socket's group may be shut out");
    }
}

impl KillHost for ExecBackend {
    fn kill_host(
        &self,
        route: &Route,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<(), Error> {
        let delegation =
            self.delegation.as_ref().ok_or_else(|| Error::from(Unproven::NoDelegation))?;
        delegation.kill_host(&route.host, leaders, deadline).map(drop).map_err(Error::from)
    }
}

impl EmptyHost for ExecBackend {
    fn empty_host(
        &self,
        route: &Route,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<(), Error> {
        let ended = match &self.delegation {
            Some(delegation) => delegation.empty_host(&route.host, leaders, deadline),
            None => leader_exit(leaders, Unproven::NoDelegation, deadline),
        };
        self.proven(&route.host, ended).map(drop)
    }
}

impl Sidecars for ExecBackend {
    fn start_sidecar_gen(&self, start: &Start<'_>, generation: &Gen) -> Result<Proc, StartError> {
        let route = start.route;
        let layout = self.layout(route);
        layout.permits(route, "start a sidecar")?;
        let Some(program) = &generation.staged else {
            return Err(Error::new(
                Kind::Failed,
                format!(
                    "{}: generation {} has no staged executable for its sidecar",
                    route.host, generation.number
                ),
            )
            .into());
        };
        if layout == Layout::Nested {
            let staged = staged_exe(generation);
            return self.nested_control(route)?.start(
                start,
                LeafName::Sidecar,
                staged.as_ref(),
                generation,
            );
        }
        let arguments = route.sidecar.clone().unwrap_or_default();
        self.launch(start, LeafName::Sidecar, program, &arguments, generation, start.gate)
    }

    fn start_sidecar(&self, start: &Start<'_>) -> Result<Proc, StartError> {
        Err(StartError::Failed(Error::new(
            Kind::Unit,
            format!("{}: only a unit has a sidecar of its own", start.route.host),
        )))
    }

    fn kill_sidecar(
        &self,
        route: &Route,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let layout = self.layout(route);
        layout.permits(route, "kill a sidecar")?;
        if layout == Layout::Nested {
            return self.nested_control(route)?.stop(&route.host, LeafName::Sidecar, deadline);
        }
        let leaders: Vec<&Process> = leader.into_iter().collect();
        let Some(delegation) = self.containing(leader) else {
            return match self.end_uncontained(&route.host, &leaders, deadline) {
                // Nothing is known of what it forked: the proof on the host covers it.
                Ok(_) => Err(Error::new(
                    Kind::NoContainment,
                    format!("{}: its sidecar has no cgroup of its own", route.host),
                )),
                Err(error) => Err(error),
            };
        };
        let killed = match delegation.open_host(&route.host)? {
            // What was started in it is gone with it.
            None => delegation.empty_host(&route.host, &leaders, deadline),
            Some(host) => host.kill_leaf(LeafName::Sidecar, &leaders, deadline),
        };
        killed.map(drop).map_err(Error::from)
    }
}
