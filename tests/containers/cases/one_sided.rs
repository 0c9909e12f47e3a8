//! A probe that cannot prove what its worker proved, and the reverse: evidence hidden from one
//! side alone.

use std::sync::Arc;
use std::time::Duration;

use crate::Case;
use crate::probing::{ONE_HEALTHY, PREVIOUS, Probe, UNSUPPORTED, wait_for_log};
use crate::site::{PROBE, PROBE_HIDE, Site};
use crate::spec::Credentials;

use super::states::{PID1_WHEREABOUTS, Pids, Pod, UNIQUE, elsewhere};
use super::{case, with_each_credentials};

const EVERYTHING: &str =
    "launch,mntns-id,root-mount,cgroup,mntns-inode,pid1-start,pid1-ns,pid1-mountinfo,boot-id";
const ALL_BUT_THE_ROOT_MOUNT: &str = "launch,mntns-id,cgroup,mntns-inode,pid1-start";
const STRICT: (&str, &str) = ("TICKMARK_TOPOLOGY", "strict");

/// What each side cannot see, and what the probe then says of a running worker's marks.
const PRIVATE: [(&str, &str, &str, i32, &str); 6] = [
    ("the probe has only the gem's formula", "", UNIQUE, 0, ONE_HEALTHY),
    ("the worker had only the gem's formula", UNIQUE, "", 0, ONE_HEALTHY),
    ("the probe knows nothing: freshness alone", "", EVERYTHING, 0, ONE_HEALTHY),
    ("the worker knew nothing: the probe knows who it is", EVERYTHING, "", 1, PREVIOUS),
    ("the probe cannot place PID 1", "", PID1_WHEREABOUTS, 0, ONE_HEALTHY),
    ("the worker could not place PID 1", PID1_WHEREABOUTS, "", 0, ONE_HEALTHY),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, from_worker, from_probe, status, line) in PRIVATE {
        cases.extend(with_each_credentials(
            &format!("one-sided: {name}"),
            true,
            move |site, credentials| {
                let pod = Pod::new(site, credentials, Pids::Private);
                let worker = pod.start(&[("TICKMARK_TEST_HIDE", from_worker)]);
                wait_for_log(&worker, &["[liveness] slot 0: healthy"]);
                let changes = [("TICKMARK_TEST_HIDE", from_probe)];
                let probe = Probe::new(PROBE_HIDE).with(&changes);
                probe.until(&worker, &pod.marks, status, line);
                probe.stays(&worker, Duration::from_millis(300), status, line);
            },
        ));
    }
    cases.extend(with_each_credentials(
        "one-sided: no piece is in both generations",
        true,
        |site, credentials| {
            let pod = Pod::new(site, credentials, Pids::Private);
            let worker = pod.start(&[("TICKMARK_TEST_HIDE", UNIQUE)]);
            wait_for_log(&worker, &["[liveness] slot 0: healthy"]);
            // A kernel without ids for mounts leaves this probe with nothing at all.
            let (status, line) =
                if site.unique_mount_ids { (1, PREVIOUS) } else { (0, ONE_HEALTHY) };
            let changes = [("TICKMARK_TEST_HIDE", ALL_BUT_THE_ROOT_MOUNT)];
            let probe = Probe::new(PROBE_HIDE).with(&changes);
            probe.until(&worker, &pod.marks, status, line);
        },
    ));
    cases.push(case("one-sided: a probe of another user", true, another_user));
    for (name, pids) in elsewhere() {
        cases.extend(with_each_credentials(
            &format!("one-sided: only the worker proves it unsafe, {name}"),
            true,
            move |site, credentials| {
                let pod = Pod::new(site, credentials, pids);
                let worker = pod.start(&[STRICT]);
                wait_for_log(&worker, &["ERROR", "recreate the pod"]);
                let changes = [("TICKMARK_TEST_HIDE", EVERYTHING)];
                let probe = Probe::new(PROBE_HIDE).with(&changes);
                probe.until(&worker, &pod.marks, 1, UNSUPPORTED);
            },
        ));
        cases.extend(with_each_credentials(
            &format!("one-sided: only the probe proves it unsafe, {name}"),
            true,
            move |site, credentials| {
                let pod = Pod::new(site, credentials, pids);
                let worker = pod.start(&[STRICT, ("TICKMARK_TEST_HIDE", PID1_WHEREABOUTS)]);
                wait_for_log(&worker, &["[liveness] slot 0: healthy"]);
                let changes = [("TICKMARK_TEST_HIDE", "")];
                let probe = Probe::new(PROBE_HIDE).with(&changes);
                probe.until(&worker, &pod.marks, 1, UNSUPPORTED);
                assert!(!pod.marks.has("topology-unsafe"), "a probe writes nothing");
            },
        ));
    }
    cases
}

/// Who may not look into PID 1's namespace still finds its own mounts among PID 1's.
fn another_user(site: &Arc<Site>) {
    let users = [Credentials::ROOT, Credentials::NOBODY];
    for (main, probing) in [(users[0], users[1]), (users[1], users[0])] {
        let pod = Pod::new(site, main, Pids::Private);
        for setting in [STRICT, ("TICKMARK_FORMAT", "text")] {
            let worker = pod.start(&[setting]);
            Probe::new(PROBE).until(&worker, &pod.marks, 0, ONE_HEALTHY);
            let answer = worker.exec_as(probing, &[PROBE], &[]);
            assert_eq!((answer.status, answer.line.as_str()), (Some(0), ONE_HEALTHY));
        }
    }
}
