//! A worker's whole life in a container whose root is read-only and whose only writable place
//! is the marks directory: as PID 1, ill, well again, and gone within its grace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Case;
use crate::container::Container;
use crate::marks::Marks;
use crate::probing::{ONE_HEALTHY, Probe};
use crate::site::{PROBE, Site, WORKER, in_guest, patience};
use crate::spec::{Credentials, PidNamespace, Shape};

use super::with_each_credentials;

/// Of the worker, and enough for a few probes.
fn drain() -> Duration {
    Duration::from_secs(if in_guest() { 24 } else { 6 })
}

const SETTINGS: [(&str, &str); 3] =
    [("TICKMARK_TICK", "1"), ("TICKMARK_MAX_AGE", "3"), ("TICKMARK_SHUTDOWN_GRACE", "30")];

pub(super) fn cases() -> Vec<Case> {
    with_each_credentials("life with a read-only root", false, life)
}

fn life(site: &Arc<Site>, credentials: Credentials) {
    let marks = Marks::new(site);
    let shape = Shape {
        credentials,
        pid: PidNamespace::Private,
        cgroup_namespace: site.unified_cgroup,
        read_only: true,
    };
    let drains_for = drain().as_millis().to_string();
    let arguments = [WORKER, "--start-delay", "300", "--drain", &drains_for];
    let worker = Container::start(site, &marks, &shape, &arguments, &SETTINGS);
    let probe = Probe::new(PROBE);
    probe.until(&worker, &marks, 0, ONE_HEALTHY);

    worker.signal("USR1");
    let started = Instant::now();
    let answer = loop {
        let answer = probe.ask(&worker);
        if answer.status != Some(0) {
            break answer;
        }
        assert!(started.elapsed() < patience(), "a lost consumer never shows");
    };
    assert!(
        answer.status == Some(1)
            && answer.line.starts_with("worker-0 stale ")
            && answer.line.ends_with("s > 3s"),
        "{answer:?}\n{}",
        worker.log()
    );
    worker.signal("USR2");
    probe.until(&worker, &marks, 0, ONE_HEALTHY);

    // PID 1 has no default action: that this ends it shows the worker's own handler.
    worker.signal("TERM");
    probe.stays(&worker, drain() / 2, 0, ONE_HEALTHY);
    let started = Instant::now();
    while worker.is_running() {
        assert!(started.elapsed() < patience(), "still there\n{}", worker.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = worker.log();
    assert!(log.contains("shutting down: consumers are no longer checked"), "{log}");
    assert!(log.trim_end().ends_with("drained"), "{log}");
}
