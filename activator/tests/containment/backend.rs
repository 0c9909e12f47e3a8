//! The backend over a real cgroup: what it kills whatever the layout, and what it answers where it
//! cannot.

use std::env;
use std::fs;
use std::path::Path;

use tickmark_activator::backend::{
    Backend as _, EmptyHost as _, Generations as _, Gone, KillHost as _, Proc, Sidecars as _,
    SplitBackend, Start,
};
use tickmark_activator::cgroup::{Delegation, Evidence};
use tickmark_activator::exec::ExecBackend;
use tickmark_activator::gate::Gate;
use tickmark_activator::health::MarksRoot;
use tickmark_activator::layout::Layout;
use tickmark_activator::process::Exit;
use tickmark_activator::{Backing, Gen, GenerationNumber, HostName, LeafName, Route};

use crate::cgroups::{mount_over, unmount};
use crate::site::{Site, generation, soon};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    Vec::from(cases![Cgroup:
        kill_host_ignores_the_layout
        a_unit_rows_processes_are_the_service_managers
        a_masked_kill_is_unproven_for_kill_host_and_the_leader_has_to_do_for_empty_host
        a_masked_kill_of_a_sidecar_is_unproven_and_kills_nothing
        no_delegation_has_an_answer_of_its_own_for_host_and_sidecar
    ])
}

fn backend(site: &Site, delegation: Option<&Delegation>) -> ExecBackend {
    let state = site.files.path("state");
    fs::create_dir_all(&state).expect("a state directory");
    let marks = MarksRoot::of(&state).expect("a place for marks");
    ExecBackend::new(&state, marks, delegation.cloned())
}

fn kill_host_ignores_the_layout(site: &Site) {
    let backend = backend(site, Some(&site.delegation));
    let row = |name| Route::new(HostName::new(name).expect("a good name"));
    let why = || "moved to node 2".to_owned();
    let rows = [
        (row("flat"), Layout::Flat),
        (Route { foreign: true, ..row("foreign") }, Layout::Foreign),
        (Route { nested: Some("/run/nested".into()), ..row("nested") }, Layout::Nested),
        (Route { conflict: Some(why()), ..row("conflict") }, Layout::Conflict(why())),
        (row("fenced"), Layout::Fenced(why())),
    ];
    for (route, layout) in rows {
        let host = site.delegation.host(&route.host).expect("a host");
        let leaf = host.fresh_leaf(generation(1)).expect("a leaf");
        let process = site.run(&leaf, "wait", &[]);
        if let Layout::Fenced(reason) = &layout {
            backend.fence(&route.host, Some(reason));
        }
        assert_eq!(backend.layout(&route), layout);
        backend.kill_host(&route, &[&process], soon()).expect("proven");
        assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)), "{layout:?}");
        assert!(!host.populated().unwrap());
        // What is absent is empty, whatever its layout.
        assert!(site.delegation.remove_host(&route.host).unwrap());
        backend.kill_host(&route, &[], soon()).expect("absent");
    }
}

fn a_unit_rows_processes_are_the_service_managers(site: &Site) {
    let split = SplitBackend {
        exec: std::sync::Arc::new(backend(site, Some(&site.delegation))),
        unit: None,
    };
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    let exec = Route::new(site.name.clone());
    let unit = Route { backing: Backing::Unit("orders.service".into()), ..exec.clone() };
    split.kill_host(&unit, &[&process], soon()).expect("nothing to do");
    split.empty_host(&unit, &[&process], soon()).expect("nothing to do");
    assert_eq!(process.exited().unwrap(), None);
    split.empty_host(&exec, &[&process], soon()).expect("proven");
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
}

fn mask(cgroup: &Path) {
    mount_over("/dev/null", &cgroup.join("cgroup.kill"));
}

fn unmask(cgroup: &Path) {
    unmount(&cgroup.join("cgroup.kill"));
}

fn a_masked_kill_is_unproven_for_kill_host_and_the_leader_has_to_do_for_empty_host(site: &Site) {
    let backend = backend(site, Some(&site.delegation));
    let route = Route::new(site.name.clone());
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    mask(&site.host_path());
    let error = backend.kill_host(&route, &[&process], soon()).unwrap_err();
    assert!(error.is_no_kill() && error.is_no_delegation() && error.is_unproven(), "{error:?}");
    assert_eq!(process.exited().unwrap(), None);
    backend.empty_host(&route, &[&process], soon()).expect("its leader's exit");
    assert_eq!(process.exited().unwrap(), Some(Exit::Signal(9)));
    unmask(&site.host_path());
}

/// A sidecar that waits, in the cgroup of its own.
fn sidecar(backend: &ExecBackend, site: &Site, route: &Route) -> Proc {
    let generation = Gen {
        staged: Some(env::current_exe().expect("this program has a path")),
        ..Gen::cold(GenerationNumber::FIRST)
    };
    let gate = Gate::none();
    let start = Start { route, slot: 0, gate: &gate, note: &|_| Ok(()), deadline: soon() };
    let proc = backend.start_sidecar_gen(&start, &generation).expect("it runs");
    let log = site.files.path("state").join(format!("hosts/{}/output.log", route.host));
    crate::site::until("the sidecar waits", || {
        fs::read_to_string(&log).is_ok_and(|said| said.ends_with("waits\n"))
    });
    proc
}

fn with_sidecar(site: &Site) -> Route {
    let arguments = ["worker", "wait"].map(str::to_owned);
    Route { sidecar: Some(Vec::from(arguments)), ..Route::new(site.name.clone()) }
}

fn a_masked_kill_of_a_sidecar_is_unproven_and_kills_nothing(site: &Site) {
    let backend = backend(site, Some(&site.delegation));
    let route = with_sidecar(site);
    let incumbent = site.run(&site.fresh(1), "wait", &[]);
    let proc = sidecar(&backend, site, &route);
    let path = site.leaf_path(LeafName::Sidecar);
    assert!(path.is_dir(), "it has a cgroup of its own");
    mask(&path);
    for leader in [Some(&proc.process), None] {
        let error = backend.kill_sidecar(&route, leader, soon()).unwrap_err();
        assert!(error.is_no_kill() && error.is_unproven(), "{error:?}");
        assert!(!error.is_no_containment(), "the proof on the host does not cover it: {error:?}");
    }
    assert_eq!(proc.process.exited().unwrap(), None);
    // Ended as a generation is: with no more proof than its leader's exit.
    let gone = backend.end(&route, LeafName::Sidecar, Some(&proc.process), soon()).unwrap();
    let Gone::Empty(empty) = gone else { panic!("{gone:?}") };
    assert_eq!(empty.evidence(), Evidence::LeaderExit);
    assert_eq!(proc.process.exited().unwrap(), Some(Exit::Signal(9)));
    proc.launched.forget();
    unmask(&path);

    // Unmasked, it returns once the cgroup is empty, and leaves its neighbour alone.
    let proc = sidecar(&backend, site, &route);
    backend.kill_sidecar(&route, Some(&proc.process), soon()).expect("proven");
    assert_eq!(proc.process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
    proc.launched.forget();
    let leaf = site.host.open_leaf(LeafName::Sidecar).unwrap().expect("a killed one is kept");
    assert!(!leaf.populated().unwrap());
    assert_eq!(incumbent.exited().unwrap(), None);
}

fn no_delegation_has_an_answer_of_its_own_for_host_and_sidecar(site: &Site) {
    let backend = backend(site, None);
    let route = with_sidecar(site);
    let proc = sidecar(&backend, site, &route);
    assert!(proc.leaf.is_none());
    let error = backend.kill_host(&route, &[&proc.process], soon()).unwrap_err();
    assert!(error.is_no_delegation() && error.is_unproven() && !error.is_no_kill(), "{error:?}");
    assert_eq!(proc.process.exited().unwrap(), None);
    let error = backend.kill_sidecar(&route, Some(&proc.process), soon()).unwrap_err();
    assert!(error.is_no_containment() && !error.is_unproven(), "{error:?}");
    assert_eq!(proc.process.exited().unwrap(), Some(Exit::Signal(9)), "its leader is killed");
    proc.launched.forget();
    let proc = sidecar(&backend, site, &route);
    backend.empty_host(&route, &[&proc.process], soon()).expect("its leader's exit");
    assert_eq!(proc.process.exited().unwrap(), Some(Exit::Signal(9)));
    proc.launched.forget();
}
