//! The rules, one module for what each group looks at. A rule fires on what the manifest says and never
//! on what it leaves to another object.

mod marks;
mod probes;
mod roles;
mod timing;
mod topology;
mod variables;

use k8s_openapi::api::core::v1::{Container, Probe};

use super::asking::Asking;
use super::environment::{Environment, Settings};
use super::finding::{Finding, Level};
use super::volume::Lying;
use super::workload::Workload;

/// What the cluster is like, where the caller said so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    pub(super) kernel: Option<(u32, u32)>,
    pub(super) cgroup: Option<Cgroup>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroup {
    V1,
    V2,
}

/// A container and what concerns marks in it.
struct Member<'a> {
    container: &'a Container,
    /// `containers[0]`.
    field: String,
    environment: Environment,
    settings: Settings,
    /// `None` where the directory comes from elsewhere.
    lying: Option<Lying<'a>>,
    probes: Vec<Asked<'a>>,
}

/// A probe of a container.
struct Asked<'a> {
    field: &'static str,
    probe: &'a Probe,
    asking: Asking<'a>,
}

const LIVENESS: &str = "livenessProbe";
const STARTUP: &str = "startupProbe";
const READINESS: &str = "readinessProbe";

impl<'a> Member<'a> {
    fn of(container: &'a Container, field: String, workload: &'a Workload<'_>) -> Self {
        let environment = Environment::of(container);
        let settings = environment.settings();
        let lying = settings
            .dir
            .value
            .as_deref()
            .map(|dir| Lying::of(dir, container, &workload.spec, &workload.claims));
        let probes = [
            (STARTUP, &container.startup_probe),
            (LIVENESS, &container.liveness_probe),
            (READINESS, &container.readiness_probe),
        ];
        let probes = probes.into_iter().filter_map(|(field, probe)| {
            let probe = probe.as_ref()?;
            Some(Asked { field, probe, asking: Asking::of(probe) })
        });
        Self { container, field, environment, settings, lying, probes: probes.collect() }
    }

    fn probe(&self, field: &str) -> Option<&Asked<'a>> {
        self.probes.iter().find(|asked| asked.field == field)
    }

    /// Whether one of its probes runs a program that reads marks.
    fn is_prober(&self) -> bool {
        self.probes.iter().any(Asked::reads_marks)
    }

    /// Whether it has to do with marks at all.
    fn is_ours(&self) -> bool {
        self.is_prober() || self.environment.has_ours()
    }
}

impl Asked<'_> {
    fn reads_marks(&self) -> bool {
        matches!(self.asking, Asking::Tickmark(_) | Asking::Gem | Asking::OneWord(_))
    }

    /// The kubelet's defaults are 10 s and 3.
    fn period(&self) -> u64 {
        positive(self.probe.period_seconds, 10)
    }

    fn failures(&self) -> u64 {
        positive(self.probe.failure_threshold, 3)
    }

    fn delay(&self) -> u64 {
        u64::try_from(self.probe.initial_delay_seconds.unwrap_or(0)).unwrap_or(0)
    }
}

/// A field that means its default where it is absent or zero.
fn positive(field: Option<i32>, default: u64) -> u64 {
    field.and_then(|value| u64::try_from(value).ok()).filter(|&value| value > 0).unwrap_or(default)
}

/// Takes what the rules find in one pod.
struct Findings<'a> {
    workload: &'a Workload<'a>,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn of_pod(
        &mut self,
        (level, rule): (Level, &'static str),
        path: &str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let place = self.workload.place(None, path);
        self.found.push(Finding { level, rule, place, what: what.into(), fix: fix.into() });
    }

    fn of(
        &mut self,
        (level, rule): (Level, &'static str),
        member: &Member<'_>,
        path: &str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let path =
            if path.is_empty() { member.field.clone() } else { format!("{}.{path}", member.field) };
        let place = self.workload.place(Some(&member.container.name), &path);
        self.found.push(Finding { level, rule, place, what: what.into(), fix: fix.into() });
    }
}

/// What is wrong with a pod; `None` where nothing of it has to do with marks.
pub(super) fn check(workload: &Workload<'_>, node: Node) -> Option<Vec<Finding>> {
    let spec = &workload.spec;
    let lasting = spec.init_containers.iter().flatten().enumerate().filter(|(_, container)| {
        // The others have ended before a probe is asked.
        container.restart_policy.as_deref() == Some("Always")
    });
    let members: Vec<_> = spec
        .containers
        .iter()
        .enumerate()
        .map(|(index, container)| (container, format!("containers[{index}]")))
        .chain(lasting.map(|(index, container)| (container, format!("initContainers[{index}]"))))
        .map(|(container, field)| Member::of(container, field, workload))
        .filter(Member::is_ours)
        .collect();
    if members.is_empty() {
        return None;
    }
    let mut findings = Findings { workload, found: Vec::new() };
    let roles = roles::decide(&members, &mut findings);
    for member in &members {
        probes::calls(member, &mut findings);
        variables::check(member, &mut findings);
    }
    for member in roles.workers(&members) {
        marks::check(member, &mut findings);
        timing::check(member, &mut findings);
        probes::startup_and_liveness(member, roles.is_asked_from_elsewhere(member), &mut findings);
    }
    topology::check(&members, node, &mut findings);
    Some(findings.found)
}
