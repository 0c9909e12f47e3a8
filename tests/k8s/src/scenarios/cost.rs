//! 18: what the kubelet's calls cost the node: the runtime's part, which an empty program has too, and
//! what the probe or a Ruby adds. It needs a node that does nothing else, so it runs only by name.

use std::time::Duration;

use serde_json::json;

use crate::answer::{Report, Stop};
use crate::manifest;
use crate::stage::{Case, PATIENCE};

/// Calls a second: one for each container.
const CONTAINERS: u32 = 8;
/// Long enough for a hundredth of a second to be little of it.
const WINDOW: Duration = Duration::from_secs(40);

const COMMANDS: [(&str, &[&str]); 4] = [
    ("no probe", &[]),
    ("an empty static program", &["/empty"]),
    // Without marks it says that nothing has started, and ends with 1: a file fewer than with them.
    ("tickmark-probe", &["/tickmark-probe", "--dir", "/marks"]),
    ("ruby -e 0", &["/usr/bin/ruby", "--disable-gems", "-e", "0"]),
];

/// Seconds of processor time.
#[derive(Debug, Clone, Copy)]
struct Spent {
    shim: f64,
    kubelet: f64,
    containerd: f64,
}

pub(super) fn node(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let mut idle = None;
    for (number, (name, command)) in COMMANDS.into_iter().enumerate() {
        case.step(&format!("measures {name} for {} s", WINDOW.as_secs()));
        let spent = measure(case, number, command)?;
        let Some(idle) = idle else {
            idle = Some(spent);
            continue;
        };
        let calls = f64::from(CONTAINERS) * WINDOW.as_secs_f64();
        let each = |of: fn(Spent) -> f64| (of(spent) - of(idle)) * 1e3 / calls;
        let (shim, kubelet, containerd) =
            (each(|spent| spent.shim), each(|spent| spent.kubelet), each(|spent| spent.containerd));
        report.add(
            &format!("CPU time of a call: {name}"),
            "told only",
            format!(
                "{:.1} ms: {shim:.1} in runtime and program, {kubelet:.1} in the kubelet, {containerd:.1} \
                 in containerd",
                shim + kubelet + containerd
            ),
            true,
        );
    }
    Ok(report)
}

fn measure(case: &Case<'_>, number: usize, command: &[&str]) -> Result<Spent, Stop> {
    let mut pod = manifest::parse(include_str!("../../manifests/18-cost.yaml"))?;
    let app = case.app(&format!("c{number}"));
    pod["metadata"]["name"] = json!(app);
    manifest::label(&mut pod["metadata"], &app, &case.stage.run);
    manifest::merge(&mut pod["spec"], &manifest::pod()?);
    let mut container = pod["spec"]["containers"][0].take();
    container["image"] = json!(case.stage.images.reference("ruby")?);
    container["livenessProbe"]["exec"]["command"] = json!(command);
    if command.is_empty() {
        manifest::merge(&mut container, &json!({ "livenessProbe": null }));
    }
    let containers: Vec<_> = (0..CONTAINERS)
        .map(|number| {
            let mut container = container.clone();
            container["name"] = json!(format!("cost-{number}"));
            container
        })
        .collect();
    pod["spec"]["containers"] = json!(containers);
    case.stage.kubectl.apply(&pod)?;
    let id = case.until("the pod never ran", PATIENCE * 2, |seen| {
        let pod = seen.pod(&app)?;
        let all = pod.containers.len() == CONTAINERS as usize
            && pod.containers.iter().all(|container| container.running);
        all.then(|| pod.containers[0].id.clone())
    })?;
    case.pause(Duration::from_secs(5))?;
    let before = spent(case, &app, &id)?;
    case.pause(WINDOW)?;
    let after = spent(case, &app, &id)?;
    case.stage.kubectl.run(&["delete", "pod", &app, "--grace-period=1", "--wait=true"])?;
    Ok(Spent {
        shim: after.shim - before.shim,
        kubelet: after.kubelet - before.kubelet,
        containerd: after.containerd - before.containerd,
    })
}

fn spent(case: &Case<'_>, pod: &str, container: &str) -> Result<Spent, Stop> {
    let said = case.on_node_of(pod, &["/node", "cpu", container])?;
    let numbers: Vec<f64> = said.split(' ').filter_map(|number| number.parse().ok()).collect();
    match numbers[..] {
        [shim, kubelet, containerd, hertz] if hertz > 0.0 => Ok(Spent {
            shim: shim / hertz,
            kubelet: kubelet / hertz,
            containerd: containerd / hertz,
        }),
        _ => Err(Stop::Failed(format!("the node's hand said {said:?}"))),
    }
}
