//! A container deleted and made again over the same marks, which are still fresh: the new one
//! is not taken for started until every slot of it has published.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Case;
use crate::container::Container;
use crate::marks::Marks;
use crate::probing::{Probe, rejects_a_previous_container};
use crate::site::{PROBE, Site, WORKER, in_guest, patience};
use crate::spec::{Credentials, PidNamespace, Shape};

use super::with_each_credentials;

/// Far beyond what a restart takes: only the generation can tell the old marks apart.
const FRESH_FOR_LONG: [(&str, &str); 2] = [("TICKMARK_TICK", "1"), ("TICKMARK_MAX_AGE", "45")];
/// What each slot logs once its consumers are there and a mark says so.
const SLOT_HEALTHY: &str = ": healthy";
/// What each slot logs once it can be let go.
const HELD: &str = "consumers start at SIGUSR2";
const BOTH_HEALTHY: &str = "2 process(es) healthy";

fn restarts() -> usize {
    std::env::var("TICKMARK_RESTARTS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(if in_guest() { 10 } else { 50 })
}

pub(super) fn cases() -> Vec<Case> {
    [
        with_each_credentials("restarts: private PID namespace", false, |site, credentials| {
            series(site, credentials, "private", &|| PidNamespace::Private);
        }),
        with_each_credentials("restarts: a pause container's PIDs", false, |site, credentials| {
            let nothing = Marks::new(site);
            let pause = Container::pause(site, &nothing, Credentials::PAUSE);
            let pid = pause.pid();
            series(site, credentials, "shared", &|| PidNamespace::Of(pid));
        }),
        with_each_credentials("restarts: the host's PIDs", false, |site, credentials| {
            series(site, credentials, "host", &|| PidNamespace::Host);
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn series(site: &Arc<Site>, credentials: Credentials, whose: &str, pid: &dyn Fn() -> PidNamespace) {
    let marks = Marks::new(site);
    let probe = Probe::new(PROBE);
    let arguments = [WORKER, "--slots", "2", "--start-delay", "held"];
    let mut namespaces: BTreeMap<String, u32> = BTreeMap::new();
    let mut rejections = 0_u32;
    let restarts = restarts();
    for incarnation in 0..=restarts {
        let shape = Shape {
            credentials,
            pid: pid(),
            cgroup_namespace: site.unified_cgroup,
            read_only: false,
        };
        let started = Instant::now();
        let container = Container::start(site, &marks, &shape, &arguments, &FRESH_FOR_LONG);
        *namespaces.entry(container.mount_namespace()).or_default() += 1;
        // The first answer is often from before the new worker's first write.
        for _ in 0..if in_guest() { 1 } else { 3 } {
            let answer = probe.ask(&container);
            // Before the very first one there are no marks that could be taken for its own.
            assert!(
                answer.status == Some(1)
                    && (incarnation == 0 || rejects_a_previous_container(&answer)),
                "incarnation {incarnation}: {answer:?}\n{:?}\n{}",
                marks.listing(),
                container.log()
            );
            rejections += u32::from(incarnation > 0);
        }
        let both_logged = |line: &str| {
            while container.log().matches(line).count() < 2 {
                assert!(started.elapsed() < patience(), "{}", container.log());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        both_logged(HELD);
        container.signal("USR2");
        if in_guest() {
            // An answer takes seconds there, and what it would say meanwhile is seen elsewhere.
            both_logged(SLOT_HEALTHY);
        }
        loop {
            let answer = probe.ask(&container);
            if answer.status == Some(0) {
                assert_eq!(answer.line, BOTH_HEALTHY);
                break;
            }
            assert!(
                incarnation == 0 || rejects_a_previous_container(&answer),
                "incarnation {incarnation}: {answer:?}\n{:?}\n{}",
                marks.listing(),
                container.log()
            );
            assert!(
                started.elapsed() < patience(),
                "incarnation {incarnation} never became healthy: {answer:?}\n{}",
                container.log()
            );
            rejections += u32::from(incarnation > 0);
        }
        if whose == "private" {
            let log = container.log().to_lowercase();
            assert!(!log.contains("topology") && !log.contains("generation"), "{log}");
        }
        container.delete();
    }
    let inodes = namespaces.len();
    eprintln!(
        "{whose} PIDs, {}: {restarts} restarts told apart, {rejections} rejections, \
         {inodes} mount namespace inodes for {} containers",
        credentials.name(),
        restarts + 1
    );
}
