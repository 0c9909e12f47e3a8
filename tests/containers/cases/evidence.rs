//! The table of VERIFYING.md that needs no kubelet: kernel, PID namespace, credentials and mode, and
//! what the probe finds, says and rests on. Each row is checked, and printed for the document.

use std::sync::Arc;

use serde_json::json;

use crate::Case;
use crate::probing::{ONE_HEALTHY, Probe, UNSUPPORTED};
use crate::site::{PROBE_HIDE, Site, in_guest};
use crate::spec::Credentials;

use super::states::{Pids, Pod, UNIQUE};
use super::with_each_credentials;

const PIDS: [(&str, Pids); 3] =
    [("private", Pids::Private), ("shared", Pids::Pause(Credentials::PAUSE)), ("host", Pids::Host)];

const MODES: [(&str, &[(&str, &str)]); 3] = [
    ("auto", &[]),
    ("strict", &[("TICKMARK_TOPOLOGY", "strict")]),
    ("auto, no unique id", &[("TICKMARK_TEST_HIDE", UNIQUE)]),
];

pub(super) fn cases() -> Vec<Case> {
    // The slow guest has the same states among its other cases; there the table is made on request.
    if in_guest() && std::env::var_os("TICKMARK_OLD_KERNEL_ONLY").is_none() {
        return Vec::new();
    }
    let mut cases = Vec::new();
    for (name, pids) in PIDS {
        cases.extend(with_each_credentials(
            &format!("evidence: {name} PIDs"),
            true,
            move |site, credentials| {
                for (mode, environment) in MODES {
                    row(site, (name, pids), credentials, mode, environment);
                }
            },
        ));
    }
    cases
}

fn row(
    site: &Arc<Site>,
    (name, pids): (&str, Pids),
    credentials: Credentials,
    mode: &str,
    environment: &[(&str, &str)],
) {
    let pod = Pod::new(site, credentials, pids);
    let worker = pod.start(environment);
    let probe = Probe::new(PROBE_HIDE);
    let (status, line) = match (pids, mode) {
        (Pids::Private, _) | (_, "auto") => (0, ONE_HEALTHY),
        _ => (1, UNSUPPORTED),
    };
    probe.until(&worker, &pod.marks, status, line);
    let said = worker.exec(&[PROBE_HIDE, "--json"], &[]);
    let said: serde_json::Value = serde_json::from_str(&said.line).expect("the probe's JSON");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let version = kernel.split(['-', '+']).next().unwrap_or_default().trim().to_owned();
    let cgroup = if site.unified_cgroup { "cgroup v2" } else { "cgroup v1" };
    let row = json!({
        "kernel": format!("{version}, {cgroup}"),
        "pids": name,
        "credentials": credentials.name(),
        "mode": mode,
        "state": said["topology_state"],
        "line": said["verdict"],
        "evidence": said["generation"],
    });
    eprintln!("evidence-row: {row}");
}
