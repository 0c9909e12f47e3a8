//! How what runs is ended, by what it was started with: without a cgroup, as a unit, in a cgroup that
//! cannot be killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::backend::{
    Backend, Generations as _, Gone, Proc, Sidecars, Start, StartError,
};
use tickmark_activator::cgroup::{Delegation, Limit, Setting, Unproven};
use tickmark_activator::exec::{ExecBackend, NestedControl, StagedExe};
use tickmark_activator::gate::Gate;
use tickmark_activator::health::MarksRoot;
use tickmark_activator::process::Process;
use tickmark_activator::state::Ran;
use tickmark_activator::swap::Outcome;
use tickmark_activator::{BoxError, Error, Gen, GenerationNumber, HostName, LeafName, Route};

use crate::basics::Case;
use crate::outside::OtherSidecars;
use crate::site::{SIDECAR, Site, alive, host, kill, swap};

pub(crate) const ALL: &[Case] = &[
    ("what_was_started_without_a_cgroup_is_killed_where_there_are_cgroups_now", || {
        Box::pin(async { before_the_cgroups() })
    }),
    ("a_nested_row_ends_by_its_units_stop_and_not_without_a_channel", || {
        Box::pin(async { nested() })
    }),
    ("a_sidecar_whose_cgroup_cannot_be_killed_comes_back_and_goes", || {
        Box::pin(sidecar_without_kill())
    }),
    ("the_log_says_once_a_host_that_the_leaders_exit_is_the_only_proof", || {
        Box::pin(async { said_once() })
    }),
];

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn leaf(number: u64) -> LeafName {
    LeafName::Generation(GenerationNumber::new(number).unwrap(), 0)
}

fn backend(site: &Site, delegation: Option<Delegation>) -> ExecBackend {
    std::fs::create_dir_all(site.state()).unwrap();
    ExecBackend::new(&site.state(), MarksRoot::of(&site.state()).unwrap(), delegation)
}

/// A process that ends by SIGKILL alone, and how it was recorded.
fn start(site: &Site, backend: &ExecBackend, route: &Route, number: u64) -> (Proc, Ran) {
    site.stage_script("stays", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 60; done\n");
    let noted = Mutex::new(None);
    let note = |ran: Ran| -> Result<(), BoxError> {
        *noted.lock().unwrap() = Some(ran);
        Ok(())
    };
    let start = Start { route, slot: 0, gate: &Gate::none(), note: &note, deadline: soon() };
    let generation = Gen {
        staged: Some(site.builds().join("stays")),
        ..Gen::cold(GenerationNumber::new(number).unwrap())
    };
    let (_, proc) = backend.start_staged(&start, generation).unwrap();
    (proc, noted.into_inner().unwrap().unwrap())
}

fn before_the_cgroups() {
    let Some(site) = Site::contained() else { return };
    let route = Route::new(host());
    let earlier = backend(&site, None);
    let setting = Setting::Path(PathBuf::from(&site.cgroup));
    let now = backend(&site, Delegation::find(&setting).unwrap());
    assert!(now.contains());
    // Before the host has a cgroup, and with one.
    for number in [1, 2] {
        let (proc, ran) = start(&site, &earlier, &route, number);
        let adopted = now.adopt(&route, leaf(number), &ran).unwrap().expect("it runs");
        let begun = Instant::now();
        now.end(&route, leaf(number), Some(&adopted.process), soon()).expect("gone");
        assert!(begun.elapsed() < Duration::from_secs(5), "it was waited for");
        assert!(adopted.process.exited().unwrap().is_some());
        proc.launched.forget();
        now.restore_parent(&route, &Limit::default()).unwrap();
    }
    let (proc, ran) = start(&site, &earlier, &route, 3);
    let adopted = now.adopt(&route, LeafName::Sidecar, &ran).unwrap().expect("it runs");
    let uncovered = now.kill_sidecar(&route, Some(&adopted.process), soon()).unwrap_err();
    assert!(uncovered.is_no_containment(), "{uncovered:?}");
    assert!(adopted.process.exited().unwrap().is_some());
    proc.launched.forget();
}

/// A channel that answers as it is told.
#[derive(Default)]
pub(crate) struct Channel {
    pub(crate) broken: bool,
    pub(crate) stopped: Arc<Mutex<Vec<LeafName>>>,
}

impl NestedControl for Channel {
    fn start(
        &self,
        _: &Start<'_>,
        _: LeafName,
        _: Option<&StagedExe>,
        _: &Gen,
    ) -> Result<Proc, StartError> {
        unreachable!("nothing is started here")
    }
    fn stop(&self, _: &HostName, leaf: LeafName, _: Instant) -> Result<(), Error> {
        self.stopped.lock().unwrap().push(leaf);
        match self.broken {
            true => Err(Unproven::NoDelegation.into()),
            false => Ok(()),
        }
    }
}

fn nested() {
    let site = Site::new();
    let flat = Route::new(host());
    let nested = Route { nested: Some(site.path().join("run")), ..flat.clone() };
    let (proc, _) = start(&site, &backend(&site, None), &flat, 1);
    let stopped = Arc::default();
    let channel = |broken| {
        let channel = Channel { broken, stopped: Arc::clone(&stopped) };
        backend(&site, None).controlling(Arc::new(channel))
    };
    let end = |backend: &ExecBackend, leader: Option<&Process>| {
        backend.end(&nested, leaf(1), leader, Instant::now())
    };

    let lives = end(&channel(false), Some(&proc.process)).unwrap_err();
    assert!(lives.is_unproven(), "{lives:?}");
    assert!(proc.process.exited().unwrap().is_none(), "it is the unit's to stop");
    proc.process.signal(rustix::process::Signal::KILL).unwrap();
    assert!(proc.process.wait(soon()).unwrap().is_some());
    // Its leader has ended, and what it forked may live.
    end(&backend(&site, None), Some(&proc.process)).expect_err("no channel");
    end(&channel(true), Some(&proc.process)).expect_err("not stopped");
    end(&channel(true), None).expect_err("not stopped");
    assert_eq!(end(&channel(false), Some(&proc.process)).unwrap(), Gone::Unit);
    assert_eq!(end(&channel(false), None).unwrap(), Gone::Unit);
    assert_eq!(*stopped.lock().unwrap(), [leaf(1); 5]);
    proc.launched.forget();
}

/// As before Linux 5.14: a sidecar's cgroup cannot be killed, not even an empty one.
struct WithoutKill(Arc<dyn Backend>);

impl Sidecars for WithoutKill {
    fn start_sidecar_gen(&self, start: &Start<'_>, generation: &Gen) -> Result<Proc, StartError> {
        self.0.sidecars().unwrap().start_sidecar_gen(start, generation)
    }
    fn start_sidecar(&self, start: &Start<'_>) -> Result<Proc, StartError> {
        self.0.sidecars().unwrap().start_sidecar(start)
    }
    fn kill_sidecar(&self, _: &Route, _: Option<&Process>, _: Instant) -> Result<(), Error> {
        Err(Unproven::NoKill(PathBuf::from("sidecar")).into())
    }
}

async fn sidecar_without_kill() {
    let mut site = Site::contained().unwrap_or_else(Site::new);
    site.host = SIDECAR.to_owned();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site
        .open_wrapped(|inner| {
            let sidecars = WithoutKill(Arc::clone(&inner));
            OtherSidecars::around(inner, sidecars)
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let first = site.until_sidecar("1 1", None).await;
    kill(first);
    site.until_sidecar("1 1", Some(first)).await;
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    site.until_sidecar("2 2", None).await;
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
}

fn said_once() {
    let site = Site::new();
    let log = site.path().join("log");
    let backend = backend(&site, None);
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Arc::new(File::create(&log).unwrap()))
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        for name in ["orders", "mail"] {
            let route = Route::new(HostName::new(name).unwrap());
            for number in [1, 2, 3] {
                let (proc, _) = start(&site, &backend, &route, number);
                backend.end(&route, leaf(number), Some(&proc.process), soon()).expect("gone");
                proc.launched.forget();
            }
        }
    });
    let lines = lines(&log);
    let said: Vec<&String> = lines.iter().filter(|line| line.contains("only proof")).collect();
    assert_eq!(said.len(), 2, "{lines:#?}");
    assert!(said[0].contains("orders") && said[1].contains("mail"), "{said:#?}");
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}
