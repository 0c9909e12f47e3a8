//! What runs a host's processes: the traits that a backend implements, the outcomes of a start as
//! types, and the backend that picks by row.

use std::sync::Arc;
use std::time::Instant;

use crate::cgroup::{Empty, Leaf, Limit};
use crate::error::{BoxError, Error, Kind};
use crate::gate::{Gate, Refused};
use crate::generation::Gen;
use crate::health::Launched;
use crate::layout::{Layout, Sockets};
use crate::name::{BuildName, GenerationNumber, HostName, LeafName};
use crate::process::Process;
use crate::route::Route;
use crate::state::Ran;

/// A process that was started, with all that is needed to end it and to prove that.
#[derive(Debug)]
pub struct Proc {
    /// The leader.
    pub process: Process,
    /// Its own cgroup, where it has one.
    pub leaf: Option<Leaf>,
    /// Its launch.
    pub launched: Launched,
    /// Its slot.
    pub slot: u32,
}

/// What proves that a process of a generation is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// With all that it forked.
    Empty(Empty),
    /// The same, as whoever laid out its run directory answers, and its leader has ended.
    Unit,
    /// Its leader alone, which an earlier activator started without a cgroup: of what it forked
    /// nothing is known. It was logged.
    Leader,
}

/// Whose canonical link a stop removes.
#[derive(Debug, Clone, Copy)]
pub enum Stopped<'a> {
    /// That of this generation.
    Generation(&'a Gen),
    /// One that a generation left of which nothing is recorded any more: a switch may have been
    /// under way when an activator crashed.
    Gone {
        /// The host's next number: what is not below it was never this host's.
        next: GenerationNumber,
    },
}

/// Persists who is about to run, before the gate is asked; its failure refuses the start.
pub type Note<'a> = dyn Fn(Ran) -> Result<(), BoxError> + 'a;

/// One start attempt.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// Whose.
    pub route: &'a Route,
    /// Its slot.
    pub slot: u32,
    /// Asked at the last point before the exec.
    pub gate: &'a Gate,
    /// See [`Note`].
    pub note: &'a Note<'a>,
    /// For the preparation and the exec; a frozen cgroup stops a stub.
    pub deadline: Instant,
}

impl std::fmt::Debug for Start<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start")
            .field("host", &self.route.host)
            .field("slot", &self.slot)
            .finish_non_exhaustive()
    }
}

/// Why a start gave no running generation.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// Refused at the gate: nothing ran, and what was prepared is undone.
    Refused(Refused),
    /// It could not be started: nothing ran.
    Failed(Error),
    /// Nothing says whether it ran. There may be a handle.
    MayHaveRun(Option<Box<Proc>>, Error),
    /// It ran and was killed, and the kill is not proven. There may be a handle.
    KillUnproven(Option<Box<Proc>>, Error),
}

impl StartError {
    /// Nothing of the build ran. Without a handle and none of the two unproven outcomes, that is
    /// so.
    #[must_use]
    pub fn nothing_ran(&self) -> bool {
        matches!(self, StartError::Refused(_) | StartError::Failed(_))
    }

    /// The handle, and the error in words.
    #[must_use]
    pub fn into_parts(self) -> (Option<Box<Proc>>, Error) {
        match self {
            StartError::Refused(refused) => (None, refused.into_error()),
            StartError::Failed(error) => (None, error),
            StartError::MayHaveRun(proc, error) | StartError::KillUnproven(proc, error) => {
                (proc, error)
            }
        }
    }
}

impl From<Error> for StartError {
    fn from(error: Error) -> StartError {
        StartError::Failed(error)
    }
}

/// What every backend has. The capabilities beyond are asked for.
pub trait Backend: Send + Sync {
    /// The row's layout.
    fn layout(&self, route: &Route) -> Layout;

    /// The layout as generations see it; asked before [`Backend::layout`] in all that concerns a
    /// swap.
    fn gen_layout(&self, route: &Route) -> Layout {
        self.layout(route)
    }

    /// The sockets of a generation; `None` for a row that has no generation paths.
    fn gen_paths(&self, _route: &Route, _number: GenerationNumber) -> Option<Sockets> {
        None
    }

    /// Sets or lifts a host's fence: from then on its layout refuses.
    fn fence(&self, _host: &HostName, _reason: Option<&str>) {}

    /// It can run staged generations.
    fn generations(&self) -> Option<&dyn Generations> {
        None
    }

    /// It can kill a host and prove that.
    fn kill(&self) -> Option<&dyn KillHost> {
        None
    }

    /// It can prove a host empty without killing what has ended already.
    fn empty(&self) -> Option<&dyn EmptyHost> {
        None
    }

    /// It can run sidecars.
    fn sidecars(&self) -> Option<&dyn Sidecars> {
        None
    }
}

/// What a swap needs.
pub trait Generations: Send + Sync {
    /// Starts one process of a generation from its staged path, or from the live link where it has
    /// none, and returns once it runs, with the sockets filled in; it never waits for health. An
    /// unlimited tier is filled in from [`Generations::gen_tier`].
    ///
    /// # Errors
    /// [`StartError`] says what is left.
    fn start_staged(&self, start: &Start<'_>, generation: Gen) -> Result<(Gen, Proc), StartError>;

    /// A build's own tier, or the live build's where none is named; the host's where that says none.
    fn gen_tier(&self, route: &Route, build: Option<&BuildName>) -> Limit;

    /// A pinned wake is healthy: its socket's mode is widened.
    fn gen_ready(&self, route: &Route, generation: &Gen);

    /// Gives the host's parent what both tiers need together.
    ///
    /// # Errors
    /// It could not be set, or is not ours to set.
    fn raise_parent(
        &self,
        route: &Route,
        incumbent: &Limit,
        successor: &Limit,
    ) -> Result<(), Error>;

    /// Gives the host's parent `tier` alone.
    ///
    /// # Errors
    /// As [`Generations::raise_parent`].
    fn restore_parent(&self, route: &Route, tier: &Limit) -> Result<(), Error>;

    /// Points the canonical path at the generation. The caller holds the host's one lock, and sets
    /// the current generation in the same critical section.
    ///
    /// # Errors
    /// The link failed, which refuses the switch; or the row has no generation path.
    fn gen_switched(&self, route: &Route, generation: &Gen) -> Result<(), Error>;

    /// Removes the canonical link where it names what has stopped, and only then: one that leads to
    /// what still accepts is only a known generation's to remove. The same lock.
    ///
    /// # Errors
    /// The link cannot be read or removed.
    fn gen_stopped(&self, route: &Route, stopped: Stopped<'_>) -> Result<(), Error>;

    /// Ends whatever is left of one process of a generation, and proves it. `populated` is read
    /// first; what took a kill is kept until the next start.
    ///
    /// # Errors
    /// It is not proven.
    fn end(
        &self,
        route: &Route,
        leaf: LeafName,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<Gone, Error>;

    /// Finds a process of an earlier activator; `None` where its leader is gone.
    ///
    /// # Errors
    /// It cannot be looked for.
    fn adopt(&self, route: &Route, leaf: LeafName, ran: &Ran) -> Result<Option<Proc>, Error>;

    /// The leaves of the host that are there.
    ///
    /// # Errors
    /// They cannot be listed.
    fn leaves(&self, route: &Route) -> Result<Vec<LeafName>, Error>;

    /// Removes leaves that are empty and that `keep` does not name: of generations that are proven
    /// gone.
    fn sweep(&self, route: &Route, keep: &[LeafName]);
}

/// Kills a host, whatever its layout.
pub trait KillHost: Send + Sync {
    /// Kills what is left in the host's own cgroup, and proves it empty. An absent cgroup is empty;
    /// no delegation is unproven.
    ///
    /// # Errors
    /// It is not proven.
    fn kill_host(
        &self,
        route: &Route,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<(), Error>;
}

/// Proves a host empty.
pub trait EmptyHost: Send + Sync {
    /// Reads `populated` first, and kills only what is left. Without containment the leader's exit
    /// is the only proof there is.
    ///
    /// # Errors
    /// It is not proven.
    fn empty_host(
        &self,
        route: &Route,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<(), Error>;
}

/// Runs the sidecar of a host.
pub trait Sidecars: Send + Sync {
    /// Starts the sidecar from the generation's captured staged path, never from the live link.
    ///
    /// # Errors
    /// [`StartError`] says what is left.
    fn start_sidecar_gen(&self, start: &Start<'_>, generation: &Gen) -> Result<Proc, StartError>;

    /// A unit's own sidecar.
    ///
    /// # Errors
    /// [`StartError`] says what is left.
    fn start_sidecar(&self, start: &Start<'_>) -> Result<Proc, StartError>;

    /// Kills whatever is left of the sidecar, and returns once its own cgroup is empty.
    ///
    /// # Errors
    /// It is not proven; [`Error::is_no_containment`] where the proof on the host covers it.
    fn kill_sidecar(
        &self,
        route: &Route,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<(), Error>;
}

/// Exec rows go to one half, unit rows to the other. Unit rows keep stop-then-start: what concerns
/// a swap refuses for them, and what concerns their processes is the service manager's.
pub struct SplitBackend {
    /// For exec rows.
    pub exec: Arc<dyn Backend>,
    /// For unit rows.
    pub unit: Option<Arc<dyn Backend>>,
}

impl std::fmt::Debug for SplitBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SplitBackend").field("unit", &self.unit.is_some()).finish_non_exhaustive()
    }
}

impl SplitBackend {
    /// The half that runs generations of this row.
    fn pick(&self, route: &Route) -> Result<&dyn Generations, Error> {
        if route.is_unit() {
            return Err(Error::new(
                Kind::Unit,
                format!("{}: unit-backed rows keep stop-then-start", route.host),
            ));
        }
        self.exec.generations().ok_or_else(|| {
            Error::new(
                Kind::NoGenerations,
                format!("{}: this backend cannot run staged generations", route.host),
            )
        })
    }

    fn half(&self, route: &Route) -> &dyn Backend {
        match &self.unit {
            Some(unit) if route.is_unit() => &**unit,
            _ => &*self.exec,
        }
    }

    fn sidecar_half(&self, route: &Route) -> Result<&dyn Sidecars, StartError> {
        self.half(route).sidecars().ok_or_else(|| {
            StartError::Failed(Error::new(
                Kind::NoGenerations,
                format!("{}: this backend runs no sidecars", route.host),
            ))
        })
    }
}

impl Backend for SplitBackend {
    fn layout(&self, route: &Route) -> Layout {
        self.half(route).layout(route)
    }

    fn gen_layout(&self, route: &Route) -> Layout {
        // A unit row reads as its layout does.
        if route.is_unit() { self.layout(route) } else { self.exec.gen_layout(route) }
    }

    fn gen_paths(&self, route: &Route, number: GenerationNumber) -> Option<Sockets> {
        if route.is_unit() { None } else { self.exec.gen_paths(route, number) }
    }

    fn fence(&self, host: &HostName, reason: Option<&str>) {
        self.exec.fence(host, reason);
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

impl Generations for SplitBackend {
    fn start_staged(&self, start: &Start<'_>, generation: Gen) -> Result<(Gen, Proc), StartError> {
        self.pick(start.route)?.start_staged(start, generation)
    }

    fn gen_tier(&self, route: &Route, build: Option<&BuildName>) -> Limit {
        self.pick(route).map_or_else(|_| Limit::default(), |half| half.gen_tier(route, build))
    }

    fn gen_ready(&self, route: &Route, generation: &Gen) {
        if let Ok(half) = self.pick(route) {
            half.gen_ready(route, generation);
        }
    }

    fn raise_parent(
        &self,
        route: &Route,
        incumbent: &Limit,
        successor: &Limit,
    ) -> Result<(), Error> {
        self.pick(route)?.raise_parent(route, incumbent, successor)
    }

    fn restore_parent(&self, route: &Route, tier: &Limit) -> Result<(), Error> {
        self.pick(route)?.restore_parent(route, tier)
    }

    fn gen_switched(&self, route: &Route, generation: &Gen) -> Result<(), Error> {
        self.pick(route)?.gen_switched(route, generation)
    }

    fn gen_stopped(&self, route: &Route, stopped: Stopped<'_>) -> Result<(), Error> {
        self.pick(route)?.gen_stopped(route, stopped)
    }

    fn end(
        &self,
        route: &Route,
        leaf: LeafName,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<Gone, Error> {
        self.pick(route)?.end(route, leaf, leader, deadline)
    }

    fn adopt(&self, route: &Route, leaf: LeafName, ran: &Ran) -> Result<Option<Proc>, Error> {
        self.pick(route)?.adopt(route, leaf, ran)
    }

    fn leaves(&self, route: &Route) -> Result<Vec<LeafName>, Error> {
        self.pick(route)?.leaves(route)
    }

    fn sweep(&self, route: &Route, keep: &[LeafName]) {
        if let Ok(half) = self.pick(route) {
            half.sweep(route, keep);
        }
    }
}

impl KillHost for SplitBackend {
    fn kill_host(
        &self,
        route: &Route,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<(), Error> {
        match self.exec.kill() {
            Some(half) if !route.is_unit() => half.kill_host(route, leaders, deadline),
            _ => Ok(()),
        }
    }
}

impl EmptyHost for SplitBackend {
    fn empty_host(
        &self,
        route: &Route,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<(), Error> {
        match self.exec.empty() {
            Some(half) if !route.is_unit() => half.empty_host(route, leaders, deadline),
            _ => self.kill_host(route, leaders, deadline),
        }
    }
}

impl Sidecars for SplitBackend {
    fn start_sidecar_gen(&self, start: &Start<'_>, generation: &Gen) -> Result<Proc, StartError> {
        let half = self.sidecar_half(start.route)?;
        if start.route.is_unit() {
            half.start_sidecar(start)
        } else {
            half.start_sidecar_gen(start, generation)
        }
    }

    fn start_sidecar(&self, start: &Start<'_>) -> Result<Proc, StartError> {
        self.sidecar_half(start.route)?.start_sidecar(start)
    }

    fn kill_sidecar(
        &self,
        route: &Route,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<(), Error> {
        match self.exec.sidecars() {
            Some(half) if !route.is_unit() => half.kill_sidecar(route, leader, deadline),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::HostName;
    use crate::route::Backing;
    use std::sync::Mutex;

    /// A half with chosen capabilities, that says what was called.
    #[derive(Default)]
    struct Half {
        kills: bool,
        empties: bool,
        runs_sidecars: bool,
        called: Mutex<Vec<&'static str>>,
    }

    impl Half {
        fn call(&self, what: &'static str) {
            self.called.lock().unwrap().push(what);
        }
    }

    impl Backend for Half {
        fn layout(&self, _: &Route) -> Layout {
            Layout::Flat
        }
        fn kill(&self) -> Option<&dyn KillHost> {
            self.kills.then_some(self)
        }
        fn empty(&self) -> Option<&dyn EmptyHost> {
            self.empties.then_some(self)
        }
        fn sidecars(&self) -> Option<&dyn Sidecars> {
            self.runs_sidecars.then_some(self)
        }
    }

    impl KillHost for Half {
        fn kill_host(&self, _: &Route, _: &[&Process], _: Instant) -> Result<(), Error> {
            self.call("kill");
            Ok(())
        }
    }

    impl EmptyHost for Half {
        fn empty_host(&self, _: &Route, _: &[&Process], _: Instant) -> Result<(), Error> {
            self.call("empty");
            Ok(())
        }
    }

    impl Sidecars for Half {
        fn start_sidecar_gen(&self, _: &Start<'_>, _: &Gen) -> Result<Proc, StartError> {
            self.call("the generation's");
            Err(failed().into())
        }
        fn start_sidecar(&self, _: &Start<'_>) -> Result<Proc, StartError> {
            self.call("the unit's own");
            Err(failed().into())
        }
        fn kill_sidecar(&self, _: &Route, _: Option<&Process>, _: Instant) -> Result<(), Error> {
            self.call("kill the sidecar");
            Ok(())
        }
    }

    fn failed() -> Error {
        Error::new(Kind::Failed, "it does not start")
    }

    fn split(kills: bool, empties: bool) -> (SplitBackend, Arc<Half>) {
        let half = Arc::new(Half { kills, empties, ..Half::default() });
        (SplitBackend { exec: Arc::clone(&half) as Arc<dyn Backend>, unit: None }, half)
    }

    fn exec() -> Route {
        Route::new(HostName::new("orders").unwrap())
    }

    fn unit() -> Route {
        Route { backing: Backing::Unit("orders.service".into()), ..exec() }
    }

    fn start_of<'a>(route: &'a Route, gate: &'a Gate) -> Start<'a> {
        Start { route, slot: 0, gate, note: &|_| Ok(()), deadline: Instant::now() }
    }

    #[test]
    fn only_an_outcome_that_is_not_proven_may_have_a_handle() {
        let refused = StartError::Refused(BoxError::from("no").into());
        for (error, ran) in [
            (refused, false),
            (StartError::Failed(failed()), false),
            (StartError::MayHaveRun(None, failed()), true),
            (StartError::KillUnproven(None, failed()), true),
        ] {
            assert_eq!(error.nothing_ran(), !ran, "{error:?}");
            assert!(error.into_parts().0.is_none());
        }
        for unproven in [StartError::MayHaveRun, StartError::KillUnproven] {
            let process = Process::of_child(std::process::id()).unwrap();
            let launched = Launched { token: String::new(), marks: "/none".into() };
            let proc = Proc { process, leaf: None, launched, slot: 3 };
            let error = unproven(Some(Box::new(proc)), failed());
            assert!(!error.nothing_ran());
            assert_eq!(error.into_parts().0.expect("its handle").slot, 3);
        }
    }

    #[test]
    fn a_unit_rows_sidecar_is_the_units_own() {
        let half = |runs_sidecars| Arc::new(Half { runs_sidecars, ..Half::default() });
        let (exec_half, unit_half) = (half(true), half(true));
        let split = SplitBackend {
            exec: Arc::clone(&exec_half) as Arc<dyn Backend>,
            unit: Some(Arc::clone(&unit_half) as Arc<dyn Backend>),
        };
        let gate = Gate::none();
        let generation = Gen::cold(GenerationNumber::FIRST);
        for route in [unit(), exec()] {
            let start = start_of(&route, &gate);
            assert!(split.start_sidecar_gen(&start, &generation).is_err());
            split.kill_sidecar(&route, None, Instant::now()).unwrap();
        }
        assert_eq!(*unit_half.called.lock().unwrap(), ["the unit's own"]);
        assert_eq!(*exec_half.called.lock().unwrap(), ["the generation's", "kill the sidecar"]);
        // A half that runs none says so, and to kill one is no error.
        let split = SplitBackend { exec: half(false), unit: Some(half(false)) };
        for route in [unit(), exec()] {
            let start = start_of(&route, &gate);
            let error = split.start_sidecar_gen(&start, &generation).unwrap_err();
            assert!(error.nothing_ran() && error.into_parts().1.is_no_generations());
            split.kill_sidecar(&route, None, Instant::now()).unwrap();
        }
    }

    #[test]
    fn a_unit_row_and_a_backend_without_generations_have_each_its_own_error() {
        let (split, _) = split(true, true);
        let gate = Gate::none();
        let start = |route: &Route| {
            let start = start_of(route, &gate);
            let error = split.start_staged(&start, Gen::cold(GenerationNumber::FIRST)).unwrap_err();
            assert!(error.nothing_ran());
            error.into_parts().1
        };
        assert!(start(&unit()).is_unit() && !start(&unit()).is_no_generations());
        assert!(start(&exec()).is_no_generations() && !start(&exec()).is_unit());
        let tier = Limit::default();
        assert!(split.raise_parent(&unit(), &tier, &tier).unwrap_err().is_unit());
        assert!(split.restore_parent(&unit(), &tier).unwrap_err().is_unit());
        let generation = Gen::cold(GenerationNumber::FIRST);
        assert!(split.gen_switched(&unit(), &generation).unwrap_err().is_unit());
        let stopped = Stopped::Generation(&generation);
        assert!(split.gen_stopped(&unit(), stopped).unwrap_err().is_unit());
        let leaf = LeafName::Generation(generation.number, 0);
        assert!(split.end(&unit(), leaf, None, Instant::now()).unwrap_err().is_unit());
        assert!(split.leaves(&unit()).unwrap_err().is_unit());
        assert_eq!(split.gen_tier(&unit(), None), Limit::default());
    }

    #[test]
    fn kill_and_empty_succeed_for_a_unit_row() {
        let (split, half) = split(true, true);
        split.kill_host(&unit(), &[], Instant::now()).unwrap();
        split.empty_host(&unit(), &[], Instant::now()).unwrap();
        split.kill_sidecar(&unit(), None, Instant::now()).unwrap();
        assert!(half.called.lock().unwrap().is_empty());
    }

    #[test]
    fn a_half_without_empty_is_killed_and_one_with_neither_succeeds() {
        for (kills, empties, called) in
            [(true, true, &["empty"][..]), (true, false, &["kill"]), (false, false, &[])]
        {
            let (split, half) = split(kills, empties);
            split.empty_host(&exec(), &[], Instant::now()).unwrap();
            assert_eq!(*half.called.lock().unwrap(), called);
            split.kill_host(&exec(), &[], Instant::now()).unwrap();
        }
    }
}
