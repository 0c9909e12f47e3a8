//! The real backend by itself: what a start runs and what it fills in, what each of its outcomes
//! says, and what it refuses.

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::backend::{
    Backend as _, Generations as _, Proc, Sidecars as _, SplitBackend, Start, StartError,
};
use tickmark_activator::cgroup::{Delegation, Limit, Setting};
use tickmark_activator::exec::{ExecBackend, NestedControl, StagedExe};
use tickmark_activator::gate::{Context, Ended, Gate};
use tickmark_activator::health::MarksRoot;
use tickmark_activator::process::Exit;
use tickmark_activator::{
    Backing, BoxError, Error, Gen, GenerationNumber, HostName, LeafName, Route,
};

use crate::basics::Case;
use crate::lease::Lease;
use crate::site::{PATIENCE, Site, build, host, until};

pub(crate) const ALL: &[Case] = &[
    ("a_start_without_a_staged_path_runs_what_the_live_link_names", || {
        Box::pin(async { live_link() })
    }),
    ("a_zero_tier_is_filled_from_the_build_else_from_the_live_one", || Box::pin(async { tiers() })),
    ("socket_and_control_are_filled_in_on_success_only", || Box::pin(async { sockets() })),
    ("a_build_that_has_its_go_at_the_deadline_may_have_run_and_has_a_handle", || {
        Box::pin(may_have_run())
    }),
    ("no_handle_and_no_unproven_outcome_mean_that_nothing_ran", || {
        Box::pin(async { nothing_ran() })
    }),
    ("fence_and_conflict_refuse_a_start_and_a_sidecars_with_the_reason", || {
        Box::pin(async { fenced_and_in_conflict() })
    }),
    ("a_nested_sidecar_without_a_staged_path_refuses", || Box::pin(async { nested_sidecar() })),
    ("gen_ready_widens_a_socket_and_does_nothing_for_a_unit_row", || {
        Box::pin(async { gen_ready() })
    }),
];

/// Says to the file `said`, beside the builds, what it was given.
pub(crate) const SAYS: &str = "#!/bin/sh\n\
    echo \"$0 $TICKMARK_BUILD $TICKMARK_SOCKET $TICKMARK_CONTROL\" >../said\n";

pub(crate) fn backend(site: &Site) -> ExecBackend {
    fs::create_dir_all(site.state()).unwrap();
    let setting: Setting = site.cgroup.parse().unwrap();
    let delegation = Delegation::find(&setting).unwrap();
    ExecBackend::new(&site.state(), MarksRoot::of(&site.state()).unwrap(), delegation)
}

pub(crate) fn row(site: &Site) -> Route {
    Route { socket: Some(site.socket()), builds: site.builds(), ..Route::new(host()) }
}

pub(crate) fn staged(site: &Site, name: &str) -> Gen {
    let program = Some(site.builds().join(name));
    Gen { build: Some(build(name)), staged: program, ..cold() }
}

pub(crate) fn cold() -> Gen {
    Gen::cold(GenerationNumber::FIRST)
}

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

pub(crate) fn start(
    backend: &ExecBackend,
    route: &Route,
    generation: Gen,
    gate: &Gate,
) -> Result<(Gen, Proc), StartError> {
    let start = Start { route, slot: 0, gate, note: &|_| Ok(()), deadline: soon() };
    backend.start_staged(&start, generation)
}

/// Starts what ends by itself, and gives what it said.
fn run(backend: &ExecBackend, site: &Site, route: &Route, generation: Gen) -> (Gen, String) {
    let (bound, proc) = start(backend, route, generation, &Gate::none()).unwrap();
    assert_eq!(proc.process.wait(soon()).unwrap(), Some(Exit::Code(0)));
    proc.launched.forget();
    (bound, fs::read_to_string(site.path().join("said")).unwrap())
}

pub(crate) fn end(backend: &ExecBackend, route: &Route, proc: &Proc) {
    let leaf = LeafName::Generation(GenerationNumber::FIRST, proc.slot);
    backend.end(route, leaf, Some(&proc.process), soon()).unwrap();
    proc.launched.forget();
}

fn live_link() {
    let site = Site::new();
    let (backend, route) = (backend(&site), row(&site));
    for name in ["1", "2"] {
        site.stage_script(name, SAYS);
    }
    let error = start(&backend, &route, cold(), &Gate::none()).unwrap_err();
    assert!(error.nothing_ran());
    assert!(error.into_parts().1.is_unknown(), "there is no live link");
    for name in ["1", "2"] {
        site.point_live_at(name);
        let (bound, said) = run(&backend, &site, &route, cold());
        assert_eq!((bound.build, bound.digest.is_some()), (Some(build(name)), true));
        let program = site.builds().join(name);
        assert!(said.starts_with(&format!("{} {name} ", program.display())), "{said}");
    }
    // A staged path is what runs, whatever the link names.
    let (_, said) = run(&backend, &site, &route, staged(&site, "1"));
    assert!(said.contains("builds/1 1 "), "{said}");
}

fn pids(pids: u32) -> Limit {
    Limit { pids: NonZeroU32::new(pids), ..Limit::default() }
}

fn tiers() {
    let site = Site::new();
    let (backend, route) = (backend(&site), Route { tier: pids(7), ..row(&site) });
    for name in ["live", "own", "plain"] {
        site.stage_script(name, SAYS);
    }
    for (name, pids) in [("live", 20), ("own", 30)] {
        let manifest = site.builds().join(format!("{name}.toml"));
        fs::write(manifest, format!("tier = {{ pids = {pids} }}\n")).unwrap();
    }
    assert_eq!(backend.gen_tier(&route, None), pids(7), "there is no live build");
    site.point_live_at("live");
    assert_eq!(backend.gen_tier(&route, None), pids(20));
    let unnamed = || Gen { build: None, ..staged(&site, "plain") };
    for (generation, tier) in
        [(staged(&site, "own"), 30), (staged(&site, "plain"), 7), (unnamed(), 20), (cold(), 20)]
    {
        let captured = Gen { tier: pids(99), ..generation.clone() };
        assert_eq!(run(&backend, &site, &route, generation).0.tier, pids(tier));
        let (kept, _) = run(&backend, &site, &route, captured);
        assert_eq!(kept.tier, pids(99), "one that was captured is not read again");
    }
}

fn sockets() {
    let site = Site::new();
    let backend = backend(&site);
    site.stage_script("1", SAYS);
    let flat = row(&site);
    let foreign = Route { foreign: true, ..row(&site) };
    let worker = Route { socket: None, ..row(&site) };
    let numbered = site.path().join("s.1");
    for (route, socket) in [(flat.clone(), Some(numbered.clone())), (foreign, Some(site.socket()))]
        .into_iter()
        .chain([(worker, None)])
    {
        let (bound, said) = run(&backend, &site, &route, staged(&site, "1"));
        let control = socket.as_ref().map(|socket| format!("{}.control", socket.display()));
        let told = |path: Option<String>| path.unwrap_or_default();
        let shown = socket.as_ref().map(|socket| socket.display().to_string());
        let paths = format!(" 1 {} {}\n", told(shown), told(control.clone()));
        assert!(said.ends_with(&paths), "{said}");
        assert_eq!((bound.socket, bound.control), (socket, control.map(PathBuf::from)));
    }
    // A start that fails gives back no generation at all, and what was there stays.
    let _listens = UnixListener::bind(&numbered).unwrap();
    let error = start(&backend, &flat, staged(&site, "1"), &Gate::none()).unwrap_err();
    let (proc, error) = error.into_parts();
    assert!(proc.is_none() && error.is_occupied(), "{error}");
    assert!(numbered.exists());
}

async fn may_have_run() {
    let site = Site::new();
    let (backend, route) = (backend(&site), row(&site));
    site.stage("1", "trace");
    let trace = site.path().join("trace");
    let mut patience = Duration::from_secs(1);
    let (lease, error) = loop {
        let lease = Lease::on(&site.builds().join("1"));
        let start = Start {
            route: &route,
            slot: 0,
            gate: &Gate::none(),
            note: &|_| Ok(()),
            deadline: Instant::now() + patience,
        };
        let error = backend.start_staged(&start, staged(&site, "1")).unwrap_err();
        if !error.nothing_ran() {
            break (lease, error);
        }
        // A busy machine had no stub by then.
        assert!(patience < PATIENCE / 4, "{error:?}");
        patience *= 4;
    };
    assert!(matches!(error, StartError::MayHaveRun(..)), "{error:?}");
    let (proc, error) = error.into_parts();
    assert!(error.may_have_run(), "{error:?}");
    let proc = proc.expect("a live handle");
    assert_eq!(proc.process.exited().unwrap(), None);
    assert!(!trace.exists());
    assert!(proc.launched.marks.is_dir(), "what was prepared is there, should it run");
    drop(lease);
    until("it runs, as it may", || trace.exists()).await;
    end(&backend, &route, &proc);
    assert!(proc.process.exited().unwrap().is_some(), "by its handle it can be ended");
}

fn nothing_ran() {
    // In cgroups where there can be some.
    let site = Site::contained().unwrap_or_else(Site::new);
    let backend = backend(&site);
    let route = row(&site);
    site.stage("1", "trace");
    site.stage("plain", "trace");
    site.stage_script("garbage", ":");
    let plain = site.builds().join("plain");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();

    let good = || staged(&site, "1");
    let refuses = || Gate::asking(Context::new(), || Err("no".into()));
    let revoked = Context::new();
    revoked.end(Ended::Superseded);
    let nowhere = Route { directory: Some(site.path().join("none")), ..route.clone() };
    let unwritten = Gate::none().recording(|| Err("a full disk".into()));
    let noted: Result<(), &str> = Ok(());
    let cases = [
        ("a missing program", &route, staged(&site, "2"), Gate::none(), noted),
        ("one that is not executable", &route, staged(&site, "plain"), Gate::none(), noted),
        ("one of no format", &route, staged(&site, "garbage"), Gate::none(), noted),
        ("no live link", &route, cold(), Gate::none(), noted),
        ("no directory", &nowhere, good(), Gate::none(), noted),
        ("the gate", &route, good(), refuses(), noted),
        ("the record", &route, good(), unwritten, noted),
        ("the note", &route, good(), Gate::none(), Err("a full disk")),
        ("the context", &route, good(), Gate::asking(revoked, || Ok(())), noted),
    ];
    let marks = MarksRoot::of(&site.state()).unwrap();
    for (what, route, generation, gate, noted) in cases {
        let note = |_| noted.map_err(BoxError::from);
        let start = Start { route, slot: 0, gate: &gate, note: &note, deadline: soon() };
        let error = backend.start_staged(&start, generation).unwrap_err();
        assert!(error.nothing_ran(), "{what}: {error:?}");
        assert!(error.into_parts().0.is_none(), "{what}");
        assert!(backend.leaves(route).unwrap().is_empty(), "{what}: its cgroup is left");
        assert!(marks.is_unused(), "{what}: its marks are left");
    }
    assert!(!site.path().join("trace").exists(), "something ran");
    // What the trace says is that it runs where nothing keeps it.
    let (_, proc) = start(&backend, &route, good(), &Gate::none()).unwrap();
    let begun = Instant::now();
    while !site.path().join("trace").exists() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    end(&backend, &route, &proc);
}

fn fenced_and_in_conflict() {
    let site = Site::new();
    let backend = backend(&site);
    site.stage("1", "trace");
    let generation = staged(&site, "1");
    let conflict = Route { conflict: Some("host two has it".to_owned()), ..row(&site) };
    let fenced = Route { host: HostName::new("fenced").unwrap(), ..row(&site) };
    backend.fence(&fenced.host, Some("moved to node 2"));
    for (route, reason) in [(&conflict, "host two has it"), (&fenced, "moved to node 2")] {
        let asked = Gate::asking(Context::new(), || panic!("nothing is left to ask"));
        let spawned = start(&backend, route, generation.clone(), &asked).unwrap_err();
        let gate = Gate::none();
        let start = Start { route, slot: 0, gate: &gate, note: &|_| Ok(()), deadline: soon() };
        let sidecar = backend.start_sidecar_gen(&start, &generation).unwrap_err();
        assert!(spawned.nothing_ran() && sidecar.nothing_ran());
        let killed = backend.kill_sidecar(route, None, soon()).unwrap_err();
        for (error, what) in [
            (spawned.into_parts().1, "spawn"),
            (sidecar.into_parts().1, "start a sidecar"),
            (killed, "kill a sidecar"),
        ] {
            assert!(error.is_layout(), "{error:?}");
            let said = format!("{}: refusing to {what}: {reason}", route.host);
            assert_eq!(error.to_string(), said);
        }
    }
    assert!(!site.path().join("trace").exists());
    // Lifted, it starts again.
    backend.fence(&fenced.host, None);
    let (_, proc) = start(&backend, &fenced, generation, &Gate::none()).unwrap();
    end(&backend, &fenced, &proc);
}

/// Whoever lays out a run directory, which is root's own and no part of this crate.
#[derive(Default)]
pub(crate) struct Control(pub(crate) Mutex<Vec<(LeafName, Option<StagedExe>)>>);

impl NestedControl for Control {
    fn start(
        &self,
        _: &Start<'_>,
        leaf: LeafName,
        staged: Option<&StagedExe>,
        _: &Gen,
    ) -> Result<Proc, StartError> {
        self.0.lock().unwrap().push((leaf, staged.cloned()));
        Err(StartError::Refused(BoxError::from("it is asked").into()))
    }
    fn stop(&self, _: &HostName, _: LeafName, _: Instant) -> Result<(), Error> {
        Ok(())
    }
}

fn nested_sidecar() {
    let site = Site::new();
    site.stage("1", "trace");
    let control = Arc::new(Control::default());
    let backend = backend(&site).controlling(Arc::clone(&control) as _);
    let nested = Some(site.path().join("run"));
    let route = Route { nested, sidecar: Some(Vec::new()), ..row(&site) };
    // The live link is there, and is not read.
    site.point_live_at("1");
    let gate = Gate::none();
    let start = Start { route: &route, slot: 0, gate: &gate, note: &|_| Ok(()), deadline: soon() };
    let error = backend.start_sidecar_gen(&start, &cold()).unwrap_err();
    assert!(error.nothing_ran());
    let (proc, error) = error.into_parts();
    assert!(proc.is_none() && error.to_string().contains("no staged executable"), "{error}");
    assert!(control.0.lock().unwrap().is_empty(), "nobody is asked");
    let generation = Gen { digest: Some("d1".to_owned()), ..staged(&site, "1") };
    let asked = backend.start_sidecar_gen(&start, &generation).unwrap_err();
    assert!(matches!(asked, StartError::Refused(_)), "{asked:?}");
    let told = StagedExe {
        path: site.builds().join("1"),
        version: Some(build("1")),
        digest: Some("d1".to_owned()),
    };
    assert_eq!(*control.0.lock().unwrap(), [(LeafName::Sidecar, Some(told))]);
    assert!(!site.path().join("trace").exists());
}

fn gen_ready() {
    let site = Site::new();
    let socket = site.path().join("s.1");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    let split = SplitBackend { exec: Arc::new(backend(&site)), unit: None };
    let generation = Gen { socket: Some(socket.clone()), ..cold() };
    let unit = Route { backing: Backing::Unit("orders.service".into()), ..row(&site) };
    for (route, mode) in [(unit, 0o600), (row(&site), 0o660)] {
        split.gen_ready(&route, &generation);
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, mode);
    }
}
