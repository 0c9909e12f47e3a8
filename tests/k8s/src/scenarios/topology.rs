//! 12: whose PID 1 it is, what can be known of that with which credentials, and what the kubelet
//! makes of it: one pod for each PID namespace, a container for each row.

use std::time::Duration;

use serde_json::{Value, json};

use crate::answer::{Report, Stop};
use crate::manifest;
use crate::stage::{Case, PATIENCE};

/// All that never repeats, hidden by the switch that only test builds have.
const UNIQUE: &str = "launch,mntns-id,root-mount,cgroup";
const PROBE: &str = "/tickmark-probe-hide";

/// What a pod sets.
const PIDS: [(&str, &str); 3] =
    [("private", "{}"), ("shared", "{shareProcessNamespace: true}"), ("host", "{hostPID: true}")];

/// What a container sets. An added capability reaches a process that is not root's only where the
/// runtime makes it ambient.
const CREDENTIALS: [(&str, &str); 4] = [
    ("root, default capabilities", "{runAsUser: 0}"),
    ("root, + SYS_PTRACE", "{runAsUser: 0, capabilities: {add: [SYS_PTRACE]}}"),
    (
        "uid 1000, none",
        "{runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}",
    ),
    ("uid 1000, + SYS_PTRACE", "{runAsUser: 1000, capabilities: {add: [SYS_PTRACE]}}"),
];

const MODES: [(&str, &str, &str); 3] = [
    ("auto", "TICKMARK_TOPOLOGY", "auto"),
    ("strict", "TICKMARK_TOPOLOGY", "strict"),
    ("auto, no unique id", "TICKMARK_TEST_HIDE", UNIQUE),
];

struct Row {
    pod: String,
    container: String,
    what: String,
    expected: Seen,
}

/// What the probe says and what the kubelet made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    state: &'static str,
    started: bool,
}

impl Seen {
    fn of(pids: &str, mode: &str) -> Seen {
        match (pids, mode) {
            ("private", _) => Seen { state: "verified", started: true },
            (_, "auto") => Seen { state: "verified by unique id", started: true },
            _ => Seen { state: "unsafe", started: false },
        }
    }
}

pub(super) fn table(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let mut rows = Vec::new();
    for (pids, setting) in PIDS {
        rows.extend(pod(case, pids, setting)?);
    }
    case.step("waits until each row is settled");
    let started = |row: &Row| {
        let seen = case.stage.watch.seen();
        let found = seen.pod(&row.pod).and_then(|pod| pod.container(&row.container));
        found.is_some_and(|container| container.started)
    };
    for row in rows.iter().filter(|row| row.expected.started) {
        // Told in the table, with the others, if it does not.
        let _late = case.until("not started", PATIENCE, |seen| {
            seen.pod(&row.pod)?.container(&row.container)?.started.then_some(())
        });
    }
    // Those that must not start are asked once more at least.
    case.pause(Duration::from_secs(16))?;
    for row in &rows {
        let said = case.stage.kubectl.exec(&row.pod, &row.container, &[PROBE, "--json"])?;
        let found: Value = serde_json::from_str(&said.out).unwrap_or_default();
        let text = |key: &str| found[key].as_str().unwrap_or("?").to_owned();
        let started = started(row);
        let healthy = found["healthy"] == true;
        let state = text("topology_state");
        let by = match found["generation"].as_str() {
            Some(generation) if !generation.is_empty() => format!(", {generation}"),
            _ => String::new(),
        };
        let kubelet = |started| if started { "started" } else { "not started" };
        let holds = state == row.expected.state
            && started == row.expected.started
            && healthy == row.expected.started;
        report.add(
            &row.what,
            format!("{}, {}", row.expected.state, kubelet(row.expected.started)),
            format!("{state}, {}{by}", kubelet(started)),
            holds,
        );
    }
    Ok(report)
}

/// Makes one pod; returns its rows.
fn pod(case: &Case<'_>, pids: &str, setting: &str) -> Result<Vec<Row>, Stop> {
    let mut pod = manifest::parse(include_str!("../../manifests/12-topology.yaml"))?;
    let app = case.app(pids);
    pod["metadata"]["name"] = json!(app);
    manifest::label(&mut pod["metadata"], &app, &case.stage.run);
    manifest::merge(&mut pod["spec"], &manifest::pod()?);
    manifest::merge(&mut pod["spec"], &manifest::parse(setting)?);
    let container = pod["spec"]["containers"][0].take();
    let volume = pod["spec"]["volumes"][0].take();
    let (mut containers, mut volumes, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (who, credentials) in CREDENTIALS {
        for (mode, variable, value) in MODES {
            let name = format!("row-{}", rows.len());
            let mut container = container.clone();
            let patch = json!({
                "name": name,
                "image": case.stage.images.reference("demo-worker")?,
                "securityContext": manifest::parse(credentials)?,
                "env": [{ "name": variable, "value": value }],
            });
            manifest::merge(&mut container, &patch);
            container["volumeMounts"][0]["name"] = json!(name);
            containers.push(container);
            let mut volume = volume.clone();
            volume["name"] = json!(name);
            volumes.push(volume);
            rows.push(Row {
                pod: app.clone(),
                container: name,
                what: format!("{pids} PIDs; {who}; {mode}"),
                expected: Seen::of(pids, mode),
            });
        }
    }
    pod["spec"]["containers"] = json!(containers);
    pod["spec"]["volumes"] = json!(volumes);
    case.stage.kubectl.apply(&pod)?;
    Ok(rows)
}
