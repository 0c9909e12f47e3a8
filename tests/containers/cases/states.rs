//! Every state of the topology, provoked by hiding single pieces of evidence: what the worker
//! logs and publishes, and what the probe answers.

use std::sync::Arc;
use std::time::Duration;

use crate::Case;
use crate::container::Container;
use crate::marks::Marks;
use crate::probing::{ONE_HEALTHY, Probe, UNSUPPORTED, wait_for_log};
use crate::site::{PROBE_HIDE, Site, WORKER_HIDE};
use crate::spec::{Credentials, PidNamespace, Shape};

use super::{case, with_each_credentials};

/// No consumer until the test says so.
const HELD: [&str; 2] = ["--start-delay", "held"];

/// All that never repeats.
pub(super) const UNIQUE: &str = "launch,mntns-id,root-mount,cgroup";
/// All that could say whose PID 1 is.
pub(super) const PID1_WHEREABOUTS: &str = "pid1-ns,pid1-mountinfo";

const RECREATE: &str = "recreate the pod without those settings";
const UNVERIFIED: [&str; 3] = [
    "WARN",
    "[liveness] slot 0: PID topology unverified (",
    "): the container generation still scopes the heartbeat, but shareProcessNamespace and \
     hostPID cannot be ruled out",
];
const NO_GENERATION: [&str; 3] = [
    "WARN",
    "[liveness] slot 0: no container generation (",
    "): falling back to freshness only, which cannot reject a heartbeat inherited from a \
     previous container",
];

/// Whose PID 1 the container sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pids {
    Private,
    Pause(Credentials),
    Host,
}

/// A pod of one worker, and a pause container where its PIDs are shared.
pub(super) struct Pod {
    site: Arc<Site>,
    pub(super) marks: Marks,
    pause: Option<Container>,
    shape: Shape,
}

impl Pod {
    pub(super) fn new(site: &Arc<Site>, credentials: Credentials, pids: Pids) -> Self {
        let marks = Marks::new(site);
        let pause = match pids {
            Pids::Pause(whose) => Some(Container::pause(site, &marks, whose)),
            Pids::Private | Pids::Host => None,
        };
        let pid = match (pids, &pause) {
            (Pids::Host, _) => PidNamespace::Host,
            (_, Some(pause)) => PidNamespace::Of(pause.pid()),
            (_, None) => PidNamespace::Private,
        };
        let shape =
            Shape { credentials, pid, cgroup_namespace: site.unified_cgroup, read_only: true };
        Self { site: Arc::clone(site), marks, pause, shape }
    }

    /// A worker whose container has a cgroup namespace, or has none, whatever is usual here.
    pub(super) fn with_cgroup_namespace(mut self, cgroup_namespace: bool) -> Self {
        self.shape.cgroup_namespace = cgroup_namespace;
        self
    }

    pub(super) fn start(&self, environment: &[(&str, &str)]) -> Container {
        self.start_with(&[], environment)
    }

    pub(super) fn start_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Container {
        let arguments: Vec<&str> = [WORKER_HIDE].iter().chain(arguments).copied().collect();
        let environment: Vec<(&str, &str)> = [("TICKMARK_TICK", "1"), ("TICKMARK_MAX_AGE", "30")]
            .iter()
            .chain(environment)
            .copied()
            .collect();
        Container::start(&self.site, &self.marks, &self.shape, &arguments, &environment)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // The kernel kills everyone in the PID namespace with it, so the pause goes last; the
        // field would do that too, but only because of where it is declared.
        drop(self.pause.take());
    }
}

fn hiding(pieces: &[&str]) -> String {
    pieces.join(",")
}

/// The lines of the log about the topology or the generation.
fn topology_lines(container: &Container) -> Vec<String> {
    let log = container.log();
    log.lines()
        .filter(|line| {
            line.contains("topology") || line.contains("generation") || line.contains("PID 1")
        })
        .map(str::to_owned)
        .collect()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(with_each_credentials("state: verified", true, |site, credentials| {
        let pod = Pod::new(site, credentials, Pids::Private);
        for environment in [&[][..], &[("TICKMARK_FORMAT", "text")]] {
            let worker = pod.start(environment);
            Probe::new(PROBE_HIDE).until(&worker, &pod.marks, 0, ONE_HEALTHY);
            assert_eq!(topology_lines(&worker), [""; 0]);
            assert!(!pod.marks.has("topology-unsafe") && !pod.marks.has("topology-report"));
        }
    }));
    cases.extend(with_each_credentials(
        "state: verified by the gem's formula alone",
        true,
        |site, credentials| {
            let pod = Pod::new(site, credentials, Pids::Private);
            let hide = [("TICKMARK_TEST_HIDE", UNIQUE)];
            let worker = pod.start(&hide);
            Probe::new(PROBE_HIDE).until(&worker, &pod.marks, 0, ONE_HEALTHY);
            assert_eq!(topology_lines(&worker), [""; 0]);
            worker.delete();
            let worker = pod.start_with(&HELD, &hide);
            Probe::new(PROBE_HIDE).rejects(&worker, Duration::from_millis(200));
        },
    ));
    for (name, pids) in elsewhere() {
        cases.extend(with_each_credentials(
            &format!("state: verified by unique id, {name}"),
            true,
            move |site, credentials| verified_by_unique_id(site, credentials, pids),
        ));
        cases.extend(with_each_credentials(
            &format!("state: unsafe for want of a unique id, {name}"),
            true,
            move |site, credentials| {
                ends_unsafe(site, credentials, pids, &[("TICKMARK_TEST_HIDE", UNIQUE)]);
            },
        ));
        cases.extend(with_each_credentials(
            &format!("state: unsafe in text, {name}"),
            true,
            move |site, credentials| {
                ends_unsafe(site, credentials, pids, &[("TICKMARK_FORMAT", "text")]);
            },
        ));
    }
    cases.push(case(
        "state: unsafe with a pause of the same credentials, whose namespace can be read",
        true,
        |site| {
            let pids = Pids::Pause(Credentials::ROOT);
            let hide = hiding(&[UNIQUE, "pid1-mountinfo"]);
            ends_unsafe(site, Credentials::ROOT, pids, &[("TICKMARK_TEST_HIDE", &hide)]);
        },
    ));
    cases.extend(with_each_credentials(
        "state: PID 1 unknown, but a unique id",
        true,
        |site, credentials| {
            let pod = Pod::new(site, credentials, Pids::Private);
            let hide = [("TICKMARK_TEST_HIDE", PID1_WHEREABOUTS)];
            let worker = pod.start(&hide);
            Probe::new(PROBE_HIDE).until(&worker, &pod.marks, 0, ONE_HEALTHY);
            assert_eq!(topology_lines(&worker), [""; 0]);
        },
    ));
    cases.extend(with_each_credentials("state: unverifiable", true, |site, credentials| {
        let hide = hiding(&[UNIQUE, PID1_WHEREABOUTS]);
        unverifiable(site, credentials, &[("TICKMARK_TEST_HIDE", &hide)]);
    }));
    cases.extend(with_each_credentials(
        "state: unverifiable in text, whatever is unique",
        true,
        |site, credentials| {
            let hide = [("TICKMARK_TEST_HIDE", PID1_WHEREABOUTS), ("TICKMARK_FORMAT", "text")];
            unverifiable(site, credentials, &hide);
        },
    ));
    cases.extend(with_each_credentials(
        "state: unavailable without PID 1's start time",
        true,
        |site, credentials| {
            unavailable(site, credentials, &hiding(&[UNIQUE, "pid1-start"]));
        },
    ));
    cases.extend(with_each_credentials(
        "state: unavailable without anything",
        true,
        |site, credentials| {
            let hide = hiding(&[UNIQUE, PID1_WHEREABOUTS, "mntns-inode,pid1-start,boot-id"]);
            unavailable(site, credentials, &hide);
        },
    ));
    cases
}

/// The two ways a pod can have a PID 1 that is not the container's.
pub(super) fn elsewhere() -> [(&'static str, Pids); 2] {
    [("a pause container's PIDs", Pids::Pause(Credentials::PAUSE)), ("the host's PIDs", Pids::Host)]
}

fn verified_by_unique_id(site: &Arc<Site>, credentials: Credentials, pids: Pids) {
    let pod = Pod::new(site, credentials, pids);
    for _ in 0..2 {
        let worker = pod.start(&[]);
        Probe::new(PROBE_HIDE).until(&worker, &pod.marks, 0, ONE_HEALTHY);
        let lines = topology_lines(&worker);
        assert!(
            matches!(&lines[..], [line] if line.contains(" INFO ")),
            "one INFO was due: {lines:?}"
        );
        assert!(!pod.marks.has("topology-unsafe"));
    }
}

/// The worker proves it, says so once and publishes the terminal verdict; the probe answers
/// with it, and nobody over the same volume is healthy again.
pub(super) fn ends_unsafe(
    site: &Arc<Site>,
    credentials: Credentials,
    pids: Pids,
    environment: &[(&str, &str)],
) {
    let pod = Pod::new(site, credentials, pids);
    let worker = pod.start(environment);
    let line = wait_for_log(&worker, &["ERROR", RECREATE]);
    assert!(line.contains("[liveness] slot 0: "), "{line}");
    let probe = Probe::new(PROBE_HIDE);
    probe.until(&worker, &pod.marks, 1, UNSUPPORTED);
    assert!(pod.marks.has("topology-unsafe"));
    for never in ["expected", "generation", "worker-0"] {
        assert!(!pod.marks.has(never), "{never} beside an unsafe topology");
    }
    std::thread::sleep(Duration::from_millis(1200));
    let log = worker.log();
    assert_eq!(log.matches(RECREATE).count(), 1, "{log}");
    worker.delete();

    let healthy = Pod {
        site: Arc::clone(site),
        marks: Marks::new(site),
        pause: None,
        shape: Shape { pid: PidNamespace::Private, ..pod.shape.clone() },
    };
    let later = Container::start(
        site,
        &pod.marks,
        &healthy.shape,
        &[WORKER_HIDE],
        &[("TICKMARK_TICK", "1"), ("TICKMARK_MAX_AGE", "30")],
    );
    wait_for_log(&later, &["ERROR", "topology-unsafe was left", "until the volume is recreated"]);
    probe.stays(&later, Duration::from_millis(1500), 1, UNSUPPORTED);
}

fn unverifiable(site: &Arc<Site>, credentials: Credentials, environment: &[(&str, &str)]) {
    let pod = Pod::new(site, credentials, Pids::Private);
    let worker = pod.start(environment);
    let probe = Probe::new(PROBE_HIDE);
    probe.until(&worker, &pod.marks, 0, ONE_HEALTHY);
    assert_one_warning(&worker, &UNVERIFIED);
    worker.delete();
    // A new generation, so it is said again; and the old marks are rejected as ever.
    let worker = pod.start_with(&HELD, environment);
    probe.rejects(&worker, Duration::from_millis(200));
    wait_for_log(&worker, &["consumers start at SIGUSR2"]);
    worker.signal("USR2");
    probe.until(&worker, &pod.marks, 0, ONE_HEALTHY);
    assert_one_warning(&worker, &UNVERIFIED);
}

fn unavailable(site: &Arc<Site>, credentials: Credentials, hide: &str) {
    let pod = Pod::new(site, credentials, Pids::Private);
    let environment = [("TICKMARK_TEST_HIDE", hide)];
    let worker = pod.start(&environment);
    let probe = Probe::new(PROBE_HIDE);
    probe.until(&worker, &pod.marks, 0, ONE_HEALTHY);
    assert_one_warning(&worker, &NO_GENERATION);
    worker.delete();
    // Freshness alone: what this state cannot do is part of what it is.
    let worker = pod.start_with(&HELD, &environment);
    probe.stays(&worker, Duration::from_millis(200), 0, ONE_HEALTHY);
    // The state did not change in between, so the second container has nothing new to say.
    wait_for_log(&worker, &["[liveness] slot 0: started"]);
    assert_eq!(topology_lines(&worker), [""; 0]);
}

fn assert_one_warning(container: &Container, words: &[&str; 3]) {
    let lines = topology_lines(container);
    assert!(
        matches!(&lines[..], [line] if words.iter().all(|word| line.contains(word))),
        "one line with {words:?} was due: {lines:?}\n{}",
        container.log()
    );
}
