//! The sidecars of nested rows: what a start leaves in each of its outcomes, and what a stop proves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tickmark_activator::backend::{Backend as _, Proc, Start, StartError};
use tickmark_activator::cgroup::Limit;
use tickmark_activator::exec::{ExecBackend, NestedControl as _, StagedExe};
use tickmark_activator::gate::{Context, Ended, Gate};
use tickmark_activator::health::MarksRoot;
use tickmark_activator::staged::{Staged, capture};
use tickmark_activator::state::{HostDirectory, Ran};
use tickmark_activator::unit::{Bus, Manager, NestedUnits};
use tickmark_activator::{BoxError, BuildName, Gen, GenerationNumber, HostName, LeafName, Route};
use tokio::runtime::Runtime;

use crate::guest::{freeze_bus, freeze_manager, until};

const PATIENCE: Duration = Duration::from_secs(60);

/// A deadline that is to pass.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// Says that it ran, and runs on.
const SIDECAR: &str = "#!/bin/sh\necho $$ >>$OUT/ran\nexec sleep 1000\n";

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($rule:ident)*) => {
            vec![$(Trial::test(stringify!($rule), || {
                $rule(&Site::new(stringify!($rule)));
                Ok(())
            })),*]
        };
    }
    trials![
        a_sidecar_runs_the_captured_build_though_the_live_link_was_repointed
        a_sidecar_gets_its_arguments_and_variables_as_they_are
        what_is_not_what_was_captured_is_not_run
        a_refusal_at_the_gate_leaves_nothing
        a_build_that_cannot_be_executed_did_not_run
        a_sidecar_that_ends_at_once_may_have_run
        a_sidecar_that_cannot_be_recorded_is_stopped_again
        a_start_stops_what_was_left_under_its_name
        a_stop_returns_once_what_was_forked_is_gone
        a_stop_of_what_is_not_there_is_a_success
        a_nested_generation_is_refused
        a_bus_that_does_not_answer_is_an_error_at_the_deadline
        a_manager_that_does_not_answer_the_go_may_have_run_it
        the_backend_runs_and_kills_a_nested_sidecar_over_its_channel
    ]
}

/// One host, with a manager of its own asked for it.
struct Site {
    directory: PathBuf,
    marks: MarksRoot,
    route: Route,
    units: Arc<NestedUnits>,
    noted: RefCell<Vec<Ran>>,
    _runtime: Runtime,
}

impl Site {
    fn new(rule: &str) -> Site {
        let directory = Path::new("/run/nested").join(rule);
        let builds = directory.join("builds");
        fs::create_dir_all(&builds).unwrap();
        let marks = MarksRoot::of(&directory).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let manager = runtime.block_on(Manager::connect(Bus::Session)).expect("a manager");
        let units = Arc::new(NestedUnits::new(manager, runtime.handle().clone(), marks.clone()));
        let host = &rule[..rule.len().min(64)];
        let route = Route {
            nested: Some(directory.join("run")),
            builds,
            tier: Limit { memory: NonZeroU64::new(64 << 20), pids: NonZeroU32::new(32), cpu: None },
            sidecar: Some(vec!["sidecar".to_owned()]),
            env: BTreeMap::from([("OUT".to_owned(), directory.to_str().unwrap().to_owned())]),
            ..Route::new(HostName::new(host).unwrap())
        };
        Site { directory, marks, route, units, noted: RefCell::default(), _runtime: runtime }
    }

    fn build(&self, name: &str, script: &str) -> Staged {
        let path = self.route.builds.join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        capture(&self.route.builds, &BuildName::new(name).unwrap(), &self.route.tier).unwrap()
    }

    fn start(&self, staged: &Staged) -> Result<Proc, StartError> {
        self.start_gated(staged, &Gate::none(), PATIENCE)
    }

    fn start_gated(
        &self,
        staged: &Staged,
        gate: &Gate,
        patience: Duration,
    ) -> Result<Proc, StartError> {
        self.start_told(Some(&told(staged)), LeafName::Sidecar, gate, patience)
    }

    fn start_told(
        &self,
        staged: Option<&StagedExe>,
        leaf: LeafName,
        gate: &Gate,
        patience: Duration,
    ) -> Result<Proc, StartError> {
        let note = |ran: Ran| {
            self.noted.borrow_mut().push(ran);
            Ok(())
        };
        let deadline = Instant::now() + patience;
        let start = Start { route: &self.route, slot: 0, gate, note: &note, deadline };
        let generation = Gen { tier: self.route.tier, ..Gen::cold(GenerationNumber::FIRST) };
        self.units.start(&start, leaf, staged, &generation)
    }

    fn stop(&self) {
        let deadline = Instant::now() + PATIENCE;
        self.units.stop(&self.route.host, LeafName::Sidecar, deadline).unwrap();
    }

    fn unit(&self) -> String {
        format!("tickmark-{}-sidecar.service", self.route.host)
    }

    fn show(&self, property: &str) -> String {
        let property = format!("--property={property}");
        let output = Command::new("systemctl")
            .args(["--user", "show", "--value", &property, &self.unit()])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The processes that said that they ran.
    fn ran(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.directory.join("ran")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn is_untouched(&self) {
        assert!(self.ran().is_empty(), "nothing ran");
        assert!(self.noted.borrow().is_empty(), "nothing was recorded");
        self.has_no_marks();
        self.has_no_unit();
    }

    fn has_no_marks(&self) {
        assert!(self.marks.is_unused(), "no marks are left");
    }

    fn has_no_unit(&self) {
        until("the manager forgets it", || self.show("LoadState") == "not-found");
        let cgroup = Path::new("/sys/fs/cgroup/manager/app.slice").join(self.unit());
        assert!(!cgroup.exists());
    }
}

fn told(staged: &Staged) -> StagedExe {
    StagedExe {
        path: staged.program.clone(),
        version: Some(staged.name.clone()),
        digest: Some(staged.digest.clone()),
    }
}

/// It runs; a zombie does not.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
}

fn a_sidecar_runs_the_captured_build_though_the_live_link_was_repointed(site: &Site) {
    let script = |name: &str| format!("#!/bin/sh\necho $$ >>$OUT/ran\n: {name}\nsleep 1000\n");
    let [one, two] = ["1", "2"].map(|name| site.build(name, &script(name)));
    let directory = HostDirectory::open(&site.directory, &site.route.host).unwrap();
    directory.repoint_live(&site.route.builds, &one.name).unwrap();
    let captured =
        capture(&site.route.builds, &directory.live_build().unwrap().unwrap(), &site.route.tier)
            .unwrap();
    // In between, at the last moment that there is.
    let (live, builds, other) = (directory.clone(), site.route.builds.clone(), two.name.clone());
    let gate = Gate::asking(Context::new(), move || {
        live.repoint_live(&builds, &other).map_err(BoxError::from)
    });
    let proc = site.start_gated(&captured, &gate, PATIENCE).unwrap();
    let pid = proc.process.pid();
    assert_eq!(directory.live_build().unwrap().as_ref(), Some(&two.name));
    let command = format!("/bin/sh\0{}\0sidecar\0", one.program.display());
    assert_eq!(read(pid, "cmdline"), command);
    until("it says so", || site.ran() == [pid]);

    // It is recorded as who it is, and contained as its generation would be.
    let noted = site.noted.borrow();
    let [ran] = &noted[..] else { panic!("one record: {noted:?}") };
    assert_eq!(ran.identity, *proc.process.identity());
    assert!(ran.may_have_run);
    assert_eq!(ran.launched, proc.launched);
    let cgroup = format!("/manager/app.slice/{}", site.unit());
    assert_eq!(read(pid, "cgroup").trim(), format!("0::{cgroup}"));
    let limit = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup{cgroup}/{file}")).unwrap();
    assert_eq!(limit("memory.max"), "67108864\n");
    assert_eq!(limit("pids.max"), "32\n");
    assert_eq!(proc.process.exited().unwrap(), None);

    site.stop();
    assert!(!lives(pid));
    assert!(proc.process.wait(Instant::now() + PATIENCE).unwrap().is_some());
    site.has_no_unit();
}

fn a_sidecar_gets_its_arguments_and_variables_as_they_are(site: &Site) {
    let odd = ["$HOME", "${OUT}", "$$", "%n", "a b", "", "'\"\\", "-x", "é\t\n;"];
    let mut route = site.route.clone();
    route.sidecar = Some(odd.map(str::to_owned).to_vec());
    let value = "100%n of \"$HOME\" \\ '\té";
    route.env.insert("ODD".to_owned(), value.to_owned());
    // The manager has one, as a service's manager would.
    let told_of = Command::new("systemctl")
        .args(["--user", "set-environment", "NOTIFY_SOCKET=/run/x", "LISTEN_FDS=1"])
        .status()
        .unwrap();
    assert!(told_of.success());
    // No build has such a name; an executable in one may.
    let path = site.route.builds.join("an odd $HOME %n \"name\"");
    fs::write(&path, "#!/bin/sh\nsleep 1000\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let staged = StagedExe { path: path.clone(), version: None, digest: None };
    let gate = Gate::none();
    let start = Start {
        route: &route,
        slot: 0,
        gate: &gate,
        note: &|_| Ok(()),
        deadline: Instant::now() + PATIENCE,
    };
    let generation = Gen {
        build: Some(BuildName::new("7").unwrap()),
        socket: Some(site.directory.join("run/1.sock")),
        control: Some(site.directory.join("run/1.sock.control")),
        ..Gen::cold(GenerationNumber::FIRST)
    };
    let proc = site.units.start(&start, LeafName::Sidecar, Some(&staged), &generation).unwrap();
    let pid = proc.process.pid();
    let command = format!("/bin/sh\0{}\0{}\0", path.display(), odd.join("\0"));
    assert_eq!(read(pid, "cmdline"), command);
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), site.route.builds);

    let environment = read(pid, "environ");
    let variables: BTreeMap<&str, &str> =
        environment.split('\0').filter_map(|variable| variable.split_once('=')).collect();
    assert_eq!(variables["ODD"], value);
    assert_eq!(variables["TICKMARK_LAUNCH"], proc.launched.token);
    assert_eq!(variables["TICKMARK_DIR"], proc.launched.marks.to_str().unwrap());
    assert_eq!(variables["TICKMARK_GENERATION"], "1");
    assert_eq!(variables["TICKMARK_BUILD"], "7");
    assert!(variables["TICKMARK_SOCKET"].ends_with("run/1.sock"));
    for foreign in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        assert!(!variables.contains_key(foreign), "{foreign}");
    }
    site.stop();
    Command::new("systemctl")
        .args(["--user", "unset-environment", "NOTIFY_SOCKET", "LISTEN_FDS"])
        .status()
        .unwrap();
}

fn what_is_not_what_was_captured_is_not_run(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let live = site.route.builds.join("live");
    std::os::unix::fs::symlink(&staged.program, &live).unwrap();
    let wrong = StagedExe { digest: Some("0".repeat(64)), ..told(&staged) };
    let link = StagedExe { path: live, ..told(&staged) };
    let directory = StagedExe { path: site.directory.clone(), ..told(&staged) };
    let relative = StagedExe { path: "builds/1".into(), ..told(&staged) };
    let refused = [
        (Some(&wrong), "digest"),
        (Some(&link), "link"),
        (Some(&directory), "executable"),
        (Some(&relative), "absolute"),
        (None, "staged executable"),
    ];
    for (staged, why) in refused {
        let started = site.start_told(staged, LeafName::Sidecar, &Gate::none(), PATIENCE);
        match started {
            Err(StartError::Failed(error)) if error.to_string().contains(why) => {}
            other => panic!("{why}: {other:?}"),
        }
        site.is_untouched();
    }
}

fn a_refusal_at_the_gate_leaves_nothing(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let gate = Gate::asking(Context::new(), || Err("not now".into()));
    match site.start_gated(&staged, &gate, PATIENCE) {
        Err(StartError::Refused(refused)) => {
            assert_eq!(refused.into_inner().to_string(), "not now");
        }
        other => panic!("{other:?}"),
    }
    site.is_untouched();

    let context = Context::new();
    context.end(Ended::LeaseLost);
    let error = site.start_gated(&staged, &Gate::asking(context, || Ok(())), PATIENCE).unwrap_err();
    assert!(error.into_parts().1.is_lease_lost());
    site.is_untouched();

    // Asked once the record is written, and it is not.
    let gate = Gate::none().recording(|| Err("disk full".into()));
    assert!(matches!(site.start_gated(&staged, &gate, PATIENCE), Err(StartError::Refused(_))));
    site.is_untouched();
}

fn a_build_that_cannot_be_executed_did_not_run(site: &Site) {
    let broken = site.build("1", "#!/run/nested/no-such-interpreter\n");
    match site.start(&broken) {
        Err(StartError::Failed(error)) => {
            let said = error.to_string();
            assert!(said.contains(&site.unit()) && said.contains("not executed"), "{said}");
        }
        other => panic!("{other:?}"),
    }
    site.is_untouched();
    // Its name is free.
    let proc = site.start(&site.build("2", SIDECAR)).unwrap();
    until("it runs", || site.ran() == [proc.process.pid()]);
    site.stop();
}

fn a_sidecar_that_ends_at_once_may_have_run(site: &Site) {
    for status in [0, 7] {
        let staged = site.build(&format!("{status}"), &format!("#!/bin/sh\nexit {status}\n"));
        // It may be seen running, as any process that is about to end.
        match site.start(&staged) {
            Ok(proc) => {
                assert!(proc.process.wait(Instant::now() + PATIENCE).unwrap().is_some());
                site.stop();
                proc.launched.forget();
            }
            Err(StartError::MayHaveRun(None, error)) => {
                assert!(error.may_have_run());
                assert!(error.to_string().contains(&site.unit()), "{error}");
            }
            other => panic!("{other:?}"),
        }
        site.has_no_marks();
        site.has_no_unit();
    }
    let proc = site.start(&site.build("1", SIDECAR)).unwrap();
    until("it runs", || site.ran() == [proc.process.pid()]);
    site.stop();
}

fn a_sidecar_that_cannot_be_recorded_is_stopped_again(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let seen = RefCell::new(None);
    let note = |ran: Ran| {
        assert!(lives(ran.identity.pid));
        *seen.borrow_mut() = Some(ran.identity.pid);
        Err(BoxError::from("disk full"))
    };
    let gate = Gate::none();
    let start = Start {
        route: &site.route,
        slot: 0,
        gate: &gate,
        note: &note,
        deadline: Instant::now() + PATIENCE,
    };
    let generation = Gen::cold(GenerationNumber::FIRST);
    let started = site.units.start(&start, LeafName::Sidecar, Some(&told(&staged)), &generation);
    match started {
        Err(StartError::MayHaveRun(None, error)) => {
            assert!(error.may_have_run());
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(source, "disk full");
        }
        other => panic!("{other:?}"),
    }
    assert!(!lives(seen.borrow().expect("it ran")));
    site.has_no_marks();
    site.has_no_unit();
}

fn a_start_stops_what_was_left_under_its_name(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let left = site.start(&staged).unwrap();
    // Asked when the name is free already, and nothing runs.
    let (pid, was) = (left.process.pid(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&was);
    let gate = Gate::asking(Context::new(), move || {
        *seen.lock().unwrap() = Some(lives(pid));
        Ok(())
    });
    let next = site.start_gated(&staged, &gate, PATIENCE).unwrap();
    assert_eq!(*was.lock().unwrap(), Some(false), "gone before the gate was asked");
    assert_ne!(next.process.pid(), pid);
    assert!(lives(next.process.pid()));
    site.stop();
    site.has_no_unit();
}

fn a_stop_returns_once_what_was_forked_is_gone(site: &Site) {
    // Twice away from it, in a session of its own, and deaf to SIGTERM.
    let staged = site.build(
        "1",
        "#!/bin/sh\n\
         (trap '' TERM; setsid sh -c 'setsid sh -c \"echo \\$\\$ >>\\$OUT/ran; exec sleep 1000\" &')\n\
         exec sleep 1000\n",
    );
    let proc = site.start(&staged).unwrap();
    until("what it forked", || site.ran().len() == 1);
    let fork = site.ran()[0];
    assert!(read(fork, "cgroup").trim().ends_with(&site.unit()));
    let leader = proc.process.pid();
    assert!(lives(leader) && lives(fork));
    let asked = Instant::now();
    site.stop();
    assert!(!lives(leader) && !lives(fork), "both are gone once it returns");
    assert!(asked.elapsed() >= Duration::from_secs(1), "it did not end by itself");
    site.has_no_unit();
}

fn a_stop_of_what_is_not_there_is_a_success(site: &Site) {
    site.stop();
    let proc = site.start(&site.build("1", SIDECAR)).unwrap();
    assert!(proc.process.signal(rustix::process::Signal::KILL).unwrap());
    assert!(proc.process.wait(Instant::now() + PATIENCE).unwrap().is_some());
    site.stop();
    site.stop();
    site.has_no_unit();
}

fn a_nested_generation_is_refused(site: &Site) {
    let staged = told(&site.build("1", SIDECAR));
    let leaf = LeafName::Generation(GenerationNumber::FIRST, 0);
    let started = site.start_told(Some(&staged), leaf, &Gate::none(), PATIENCE);
    match started {
        Err(StartError::Failed(error)) if error.is_no_generations() => {}
        other => panic!("{other:?}"),
    }
    let stopped = site.units.stop(&site.route.host, leaf, Instant::now() + PATIENCE);
    assert!(stopped.unwrap_err().is_no_generations());
    site.is_untouched();
}

fn a_bus_that_does_not_answer_is_an_error_at_the_deadline(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let proc = site.start(&staged).unwrap();
    site.noted.borrow_mut().clear();
    let asked = Instant::now();
    {
        let _frozen = freeze_bus();
        let deadline = Instant::now() + IMPATIENCE;
        let stopped = site.units.stop(&site.route.host, LeafName::Sidecar, deadline);
        assert!(stopped.unwrap_err().is_unproven());
        match site.start_gated(&staged, &Gate::none(), IMPATIENCE) {
            Err(StartError::Failed(error)) => {
                assert!(error.to_string().contains("deadline"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(asked.elapsed() < PATIENCE / 2);
    assert!(site.noted.borrow().is_empty());
    site.stop();
    assert!(!lives(proc.process.pid()));
    site.has_no_unit();
}

fn a_manager_that_does_not_answer_the_go_may_have_run_it(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let frozen = Arc::new(Mutex::new(None));
    let freezes = Arc::clone(&frozen);
    let gate = Gate::asking(Context::new(), move || {
        *freezes.lock().unwrap() = Some(freeze_manager());
        Ok(())
    });
    // Long enough to come to the gate.
    match site.start_gated(&staged, &gate, Duration::from_secs(5)) {
        Err(StartError::MayHaveRun(None, error)) => assert!(error.may_have_run(), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(site.ran().is_empty() && site.noted.borrow().is_empty());
    drop(frozen.lock().unwrap().take());
    // It did. Its name is all that is known of it, and enough.
    until("it runs", || site.ran().len() == 1);
    let pid = site.ran()[0];
    site.stop();
    assert!(!lives(pid));
    let proc = site.start(&staged).unwrap();
    assert!(lives(proc.process.pid()));
    site.stop();
    site.has_no_unit();
}

fn the_backend_runs_and_kills_a_nested_sidecar_over_its_channel(site: &Site) {
    let staged = site.build("1", SIDECAR);
    let backend = ExecBackend::new(&site.directory, site.marks.clone(), None);
    let soon = || Instant::now() + PATIENCE;
    let kills =
        |backend: &ExecBackend| backend.sidecars().unwrap().kill_sidecar(&site.route, None, soon());
    let said = kills(&backend).unwrap_err().to_string();
    assert!(said.contains("no control channel"), "{said}");

    let backend = backend.controlling(Arc::clone(&site.units) as _);
    let sidecars = backend.sidecars().unwrap();
    let gate = Gate::none();
    let note = |ran: Ran| {
        site.noted.borrow_mut().push(ran);
        Ok(())
    };
    let start = Start { route: &site.route, slot: 0, gate: &gate, note: &note, deadline: soon() };
    // A cold wake's has none.
    let cold = Gen::cold(GenerationNumber::FIRST);
    let error = sidecars.start_sidecar_gen(&start, &cold).unwrap_err();
    assert!(error.nothing_ran());
    site.is_untouched();

    let generation = Gen {
        build: Some(staged.name.clone()),
        staged: Some(staged.program.clone()),
        digest: Some(staged.digest.clone()),
        tier: staged.tier,
        ..cold
    };
    let proc = sidecars.start_sidecar_gen(&start, &generation).unwrap();
    until("it runs", || site.ran() == [proc.process.pid()]);
    // The next activator finds it by its record, and ends it without one.
    let ran = site.noted.borrow()[0].clone();
    let generations = backend.generations().unwrap();
    let found = generations.adopt(&site.route, LeafName::Sidecar, &ran).unwrap().expect("it runs");
    assert_eq!(found.process.pid(), proc.process.pid());
    assert!(found.leaf.is_none());
    kills(&backend).unwrap();
    assert!(!lives(proc.process.pid()));
    kills(&backend).unwrap();
    assert!(generations.adopt(&site.route, LeafName::Sidecar, &ran).unwrap().is_none());

    // A generation of a nested row does not go to a service manager.
    let started = generations.start_staged(&start, generation).unwrap_err();
    assert!(started.into_parts().1.is_no_generations());
    site.has_no_unit();
}
