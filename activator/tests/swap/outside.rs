//! A backend around the real one that says what is called, and lets a test act at each call: a
//! lease lost, a fence set or a context ended exactly there.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tickmark_activator::backend::{
    Backend, EmptyHost, Generations, Gone, KillHost, Proc, Sidecars, Start, StartError, Stopped,
};
use tickmark_activator::cgroup::Limit;
use tickmark_activator::gate::Gate;
use tickmark_activator::layout::{Layout, Sockets};
use tickmark_activator::process::Process;
use tickmark_activator::state::Ran;
use tickmark_activator::{BuildName, Error, Gen, GenerationNumber, HostName, LeafName, Route};

type Act = dyn Fn(&str) + Send + Sync;

pub(crate) struct Watched {
    inner: Arc<dyn Backend>,
    said: Arc<Mutex<Vec<String>>>,
    act: Arc<Act>,
}

impl Watched {
    /// `act` is called with each point, before it.
    pub(crate) fn around(
        inner: Arc<dyn Backend>,
        said: &Arc<Mutex<Vec<String>>>,
        act: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<dyn Backend> {
        Arc::new(Watched { inner, said: Arc::clone(said), act: Arc::new(act) })
    }

    fn at(&self, point: &str, of: impl std::fmt::Display) {
        self.said.lock().unwrap().push(format!("{point} {of}"));
        (self.act)(point);
    }

    fn inner(&self) -> &dyn Generations {
        self.inner.generations().unwrap()
    }

    /// A live check is asked after the caller's gate, before the record and after it.
    fn gate(&self, gate: &Gate, what: &'static str, number: GenerationNumber) -> Gate {
        let (said, act) = (Arc::clone(&self.said), Arc::clone(&self.act));
        let rounds = Mutex::new(0);
        gate.clone().live(move || {
            let mut rounds = rounds.lock().unwrap();
            *rounds += 1;
            let point = format!("{what}gate-{rounds}");
            said.lock().unwrap().push(format!("{point} {number}"));
            act(&point);
            Ok(())
        })
    }
}

/// A backend around the real one whose sidecars are another's.
pub(crate) struct OtherSidecars<S> {
    inner: Arc<dyn Backend>,
    sidecars: S,
}

impl<S: Sidecars + 'static> OtherSidecars<S> {
    pub(crate) fn around(inner: Arc<dyn Backend>, sidecars: S) -> Arc<dyn Backend> {
        Arc::new(OtherSidecars { inner, sidecars })
    }
}

impl<S: Sidecars> Backend for OtherSidecars<S> {
    fn layout(&self, route: &Route) -> Layout {
        self.inner.layout(route)
    }
    fn gen_layout(&self, route: &Route) -> Layout {
        self.inner.gen_layout(route)
    }
    fn gen_paths(&self, route: &Route, number: GenerationNumber) -> Option<Sockets> {
        self.inner.gen_paths(route, number)
    }
    fn fence(&self, host: &HostName, reason: Option<&str>) {
        self.inner.fence(host, reason);
    }
    fn generations(&self) -> Option<&dyn Generations> {
        self.inner.generations()
    }
    fn kill(&self) -> Option<&dyn KillHost> {
        self.inner.kill()
    }
    fn empty(&self) -> Option<&dyn EmptyHost> {
        self.inner.empty()
    }
    fn sidecars(&self) -> Option<&dyn Sidecars> {
        Some(&self.sidecars)
    }
}

impl Backend for Watched {
    fn layout(&self, route: &Route) -> Layout {
        self.inner.layout(route)
    }
    fn gen_layout(&self, route: &Route) -> Layout {
        self.at("layout", &route.host);
        self.inner.gen_layout(route)
    }
    fn gen_paths(&self, route: &Route, number: GenerationNumber) -> Option<Sockets> {
        self.inner.gen_paths(route, number)
    }
    fn fence(&self, host: &HostName, reason: Option<&str>) {
        self.inner.fence(host, reason);
    }
    fn generations(&self) -> Option<&dyn Generations> {
        Some(self)
    }
    fn kill(&self) -> Option<&dyn KillHost> {
        self.inner.kill()
    }
    fn empty(&self) -> Option<&dyn EmptyHost> {
        self.inner.empty()
    }
    fn sidecars(&self) -> Option<&dyn Sidecars> {
        Some(self)
    }
}

impl Sidecars for Watched {
    fn start_sidecar_gen(&self, start: &Start<'_>, generation: &Gen) -> Result<Proc, StartError> {
        self.at("sidecar-start", generation.number);
        let gate = self.gate(start.gate, "sidecar-", generation.number);
        let start = Start { gate: &gate, ..*start };
        self.inner.sidecars().unwrap().start_sidecar_gen(&start, generation)
    }
    fn start_sidecar(&self, start: &Start<'_>) -> Result<Proc, StartError> {
        self.inner.sidecars().unwrap().start_sidecar(start)
    }
    fn kill_sidecar(
        &self,
        route: &Route,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.at("sidecar-kill", &route.host);
        self.inner.sidecars().unwrap().kill_sidecar(route, leader, deadline)
    }
}

impl Generations for Watched {
    fn start_staged(&self, start: &Start<'_>, generation: Gen) -> Result<(Gen, Proc), StartError> {
        let number = generation.number;
        self.at("start", number);
        let noted = |ran: Ran| {
            self.at("note", number);
            (start.note)(ran)
        };
        let gate = self.gate(start.gate, "", number);
        let start = Start { note: &noted, gate: &gate, ..*start };
        let started = self.inner().start_staged(&start, generation);
        self.at("started", number);
        started
    }
    fn gen_tier(&self, route: &Route, build: Option<&BuildName>) -> Limit {
        self.inner().gen_tier(route, build)
    }
    fn gen_ready(&self, route: &Route, generation: &Gen) {
        self.at("ready", generation.number);
        self.inner().gen_ready(route, generation);
    }
    fn raise_parent(&self, route: &Route, one: &Limit, two: &Limit) -> Result<(), Error> {
        self.at("raise", Limit::overlap(one, two));
        self.inner().raise_parent(route, one, two)
    }
    fn restore_parent(&self, route: &Route, tier: &Limit) -> Result<(), Error> {
        self.at("restore", tier);
        self.inner().restore_parent(route, tier)
    }
    fn gen_switched(&self, route: &Route, generation: &Gen) -> Result<(), Error> {
        self.at("switch", generation.number);
        self.inner().gen_switched(route, generation)
    }
    fn gen_stopped(&self, route: &Route, stopped: Stopped<'_>) -> Result<(), Error> {
        self.at("unlink", &route.host);
        self.inner().gen_stopped(route, stopped)
    }
    fn end(
        &self,
        route: &Route,
        leaf: LeafName,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<Gone, Error> {
        self.at("end", leaf);
        let ended = self.inner().end(route, leaf, leader, deadline);
        self.at("ended", leaf);
        ended
    }
    fn adopt(&self, route: &Route, leaf: LeafName, ran: &Ran) -> Result<Option<Proc>, Error> {
        self.at("adopt", leaf);
        self.inner().adopt(route, leaf, ran)
    }
    fn leaves(&self, route: &Route) -> Result<Vec<LeafName>, Error> {
        self.inner().leaves(route)
    }
    fn sweep(&self, route: &Route, keep: &[LeafName]) {
        self.inner().sweep(route, keep);
    }
}
