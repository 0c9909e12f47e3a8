//! `TICKMARK_TOPOLOGY=strict`: a PID 1 that is provably elsewhere is unsafe, whatever is unique,
//! and one that is not provably elsewhere is not.

use std::time::Duration;

use crate::Case;
use crate::probing::{ONE_HEALTHY, Probe};
use crate::site::PROBE_HIDE;

use super::states::{PID1_WHEREABOUTS, Pids, Pod, elsewhere, ends_unsafe};
use super::with_each_credentials;

const STRICT: (&str, &str) = ("TICKMARK_TOPOLOGY", "strict");

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, pids) in elsewhere() {
        cases.extend(with_each_credentials(
            &format!("strict: unsafe, {name}"),
            true,
            move |site, credentials| ends_unsafe(site, credentials, pids, &[STRICT]),
        ));
        cases.extend(with_each_credentials(
            &format!("strict: nothing proven, nothing unsafe, {name}"),
            true,
            move |site, credentials| {
                let pod = Pod::new(site, credentials, pids);
                let worker = pod.start(&[STRICT, ("TICKMARK_TEST_HIDE", PID1_WHEREABOUTS)]);
                Probe::new(PROBE_HIDE).until(&worker, &pod.marks, 0, ONE_HEALTHY);
                assert!(!pod.marks.has("topology-unsafe"));
            },
        ));
    }
    for cgroup_namespace in [true, false] {
        cases.extend(with_each_credentials(
            &format!("strict: private PID namespace, cgroup namespace {cgroup_namespace}"),
            true,
            move |site, credentials| {
                let pod = Pod::new(site, credentials, Pids::Private)
                    .with_cgroup_namespace(cgroup_namespace);
                let worker = pod.start(&[STRICT]);
                let probe = Probe::new(PROBE_HIDE);
                probe.until(&worker, &pod.marks, 0, ONE_HEALTHY);
                probe.stays(&worker, Duration::from_millis(300), 0, ONE_HEALTHY);
                assert!(!pod.marks.has("topology-unsafe"));
            },
        ));
    }
    cases
}
