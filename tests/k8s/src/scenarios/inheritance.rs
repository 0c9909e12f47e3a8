//! 11: restarts in one pod over marks that are still fresh. A new container must not count as
//! started before every slot of its own has published; a control shows that this can be seen.

use std::time::Instant;

use serde_json::{Value, json};

use crate::answer::{Report, Stop};
use crate::clock::{Clock, Pace};
use crate::manifest;
use crate::stage::{Case, PATIENCE};

/// Of each of the two containers; half by SIGKILL, half by a probe that fails.
const RESTARTS: usize = 10;
const WORKERS: [&str; 2] = ["worker-a", "worker-b"];
/// Knows nothing of itself, so that freshness alone decides: the gem before it had a generation.
const CONTROL: &str = "control";
const EVERYTHING: &str =
    "launch,mntns-id,root-mount,cgroup,mntns-inode,pid1-start,pid1-ns,pid1-mountinfo,boot-id";

#[derive(Default)]
struct Count {
    killed: usize,
    failed: usize,
    early: usize,
    fresh: usize,
}

pub(super) fn restarts(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let (pod, clock) = make(case)?;
    let count = std::thread::scope(|scope| {
        let players = WORKERS.map(|worker| {
            let pod = &pod;
            scope.spawn(move || series(case, pod, worker, &clock))
        });
        let mut all = Count::default();
        for player in players {
            let count =
                player.join().unwrap_or_else(|_| Err(Stop::failed("the scenario panicked")))?;
            all.killed += count.killed;
            all.failed += count.failed;
            all.early += count.early;
            all.fresh += count.fresh;
        }
        Ok::<_, Stop>(all)
    })?;
    let each = WORKERS.len() * RESTARTS / 2;
    report.is("restarts by SIGKILL to the main process", each, count.killed);
    report.is("restarts by a liveness probe that failed", each, count.failed);
    // Else there would have been nothing to inherit. A busy machine may be late now and then.
    report.add(
        "with fresh marks of every slot left behind",
        format!("at least {}", each * 3 / 2),
        count.fresh,
        count.fresh >= each * 3 / 2,
    );
    report.is("startup probe passed before the worker was healthy", 0, count.early);
    case.step("the control");
    let before = started(case, &pod, CONTROL, "")?;
    signal(case, &pod, CONTROL, "KILL", None)?;
    let _after = started(case, &pod, CONTROL, &before)?;
    let early = usize::from(!is_healthy(case, &pod, CONTROL)?);
    report.is("the same without any generation (control)", 1, early);
    Ok(report)
}

/// The pod, with two workers and the control in it.
fn make(case: &Case<'_>) -> Result<(String, Clock), Stop> {
    let mut plan = case.demo("")?.patch(include_str!("../../manifests/11-restarts.yaml"))?;
    if case.stage.pace == Pace::Short {
        plan = plan.patch(include_str!("../../manifests/11-restarts.short.yaml"))?;
    }
    let clock = Clock::of(&plan.object)?;
    // Several calls of the startup probe, all within the age up to which the old marks are fresh.
    let delay = clock.startup.period * 4;
    let plan = plan.env("DEMO_START_DELAY", delay.as_millis().to_string());
    let mut spec = plan.object["spec"]["template"]["spec"].clone();
    let (container, volume) = (spec["containers"][0].take(), spec["volumes"][0].take());
    let (mut containers, mut volumes) = (Vec::new(), Vec::new());
    for (number, name) in WORKERS.into_iter().chain([CONTROL]).enumerate() {
        let mut container = container.clone();
        if case.stage.probe.is_served {
            manifest::merge(&mut container, &own_port(number));
        }
        container["name"] = json!(name);
        container["volumeMounts"][0]["name"] = json!(name);
        if name == CONTROL {
            let command = json!({ "command": ["/tickmark-probe-hide"] });
            let probe = json!({ "exec": command, "httpGet": null });
            let patch = json!({
                "command": ["/worker-hide"],
                "env": [
                    { "name": "TICKMARK_TEST_HIDE", "value": EVERYTHING },
                    { "name": "TICKMARK_SERVE", "value": "" },
                ],
                "startupProbe": probe,
                "livenessProbe": probe,
            });
            manifest::merge(&mut container, &patch);
        }
        containers.push(container);
        let mut volume = volume.clone();
        volume["name"] = json!(name);
        volumes.push(volume);
    }
    spec["containers"] = json!(containers);
    spec["volumes"] = json!(volumes);
    let mut metadata = json!({ "name": plan.app });
    manifest::label(&mut metadata, &plan.app, &case.stage.run);
    case.stage.kubectl.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
    }))?;
    Ok((plan.app, clock))
}

/// The containers of a pod share their ports.
fn own_port(number: usize) -> Value {
    let port = 8086 + number;
    let probe = json!({ "httpGet": { "port": port } });
    json!({
        "env": [{ "name": "TICKMARK_SERVE", "value": format!("0.0.0.0:{port}") }],
        "ports": null,
        "startupProbe": probe,
        "livenessProbe": probe,
    })
}

fn series(case: &Case<'_>, pod: &str, worker: &str, clock: &Clock) -> Result<Count, Stop> {
    let mut count = Count::default();
    let mut id = started(case, pod, worker, "")?;
    let names = case.stage.images.references("demo-worker")?;
    for number in 0..RESTARTS {
        case.step(&format!("{worker}: restart {} of {RESTARTS}", number + 1));
        let last_mark = if number % 2 == 0 {
            signal_current(case, pod, worker, "KILL", None, &mut id)?;
            count.killed += 1;
            Some(Instant::now())
        } else {
            let at = fail_the_probe(case, pod, worker, clock, &mut id)?;
            count.failed += 1;
            at
        };
        // Under another name of the same image the kubelet starts it at once; under the same it would
        // wait longer from time to time, up to five minutes, and the marks would not be fresh.
        let name = names.get(number + 1).ok_or_else(|| Stop::failed("too few names"))?;
        rename_image(case, pod, worker, name)?;
        let running = running(case, pod, worker, &id)?;
        // Until its slots publish it has the old marks alone, and is asked once a period.
        let asked_by = running + clock.startup.period * 2;
        let fresh = last_mark.is_some_and(|mark| asked_by < mark + clock.max_age);
        count.fresh += usize::from(fresh);
        id = started(case, pod, worker, &id)?;
        count.early += usize::from(!is_healthy(case, pod, worker)?);
    }
    Ok(count)
}

/// One slot hangs until the kubelet gives up on the container, and is let go then: in the drain that
/// follows it refreshes its mark, so that what is left behind is fresh. Returns a time before the last
/// mark of the other one; `None` where the kubelet was faster and killed the frozen one.
fn fail_the_probe(
    case: &Case<'_>,
    pod: &str,
    worker: &str,
    clock: &Clock,
    id: &mut String,
) -> Result<Option<Instant>, Stop> {
    const FROZEN: u32 = 1;
    signal_current(case, pod, worker, "STOP", Some(FROZEN), id)?;
    // Not the event: a kubelet drops those of a pod that had many. The other slot logs its drain, and
    // leaves its last mark in it: not before this was asked the time before.
    case.pause(clock.kill().at_least)?;
    let limit = clock.kill().at_most + PATIENCE;
    let (mut before, mut now) = (Instant::now(), Instant::now());
    case.poll("the kubelet did not end the container", limit, || {
        before = std::mem::replace(&mut now, Instant::now());
        Ok(log(case, pod, worker)?.contains("draining for").then_some(()))
    })?;
    let let_go = signal(case, pod, worker, "CONT", Some(FROZEN)).is_ok();
    Ok(let_go.then_some(before))
}

/// Waits for a container other than `before` that runs; returns when it was seen.
fn running(case: &Case<'_>, pod: &str, worker: &str, before: &str) -> Result<Instant, Stop> {
    case.until(&format!("no container took the place of {worker}"), PATIENCE * 2, |seen| {
        let pod = seen.pod(pod)?;
        let container = pod.container(worker)?;
        (container.running && container.id != before).then_some(pod.at)
    })
}

/// Waits until the kubelet takes a container other than `before` for started; returns its id.
fn started(case: &Case<'_>, pod: &str, worker: &str, before: &str) -> Result<String, Stop> {
    case.until(&format!("{worker} never started"), PATIENCE * 3, |seen| {
        let container = seen.pod(pod)?.container(worker)?;
        let is_new = container.started && container.id != before && !container.id.is_empty();
        is_new.then(|| container.id.clone())
    })
}

/// Asked the moment that the kubelet took it for started: had that been too early, the slots would
/// still wait for their consumers.
fn is_healthy(case: &Case<'_>, pod: &str, worker: &str) -> Result<bool, Stop> {
    let log = log(case, pod, worker)?;
    Ok(["slot 0: healthy", "slot 1: healthy"].iter().all(|line| log.contains(line)))
}

fn log(case: &Case<'_>, pod: &str, worker: &str) -> Result<String, Stop> {
    case.stage.kubectl.run(&["logs", pod, "-c", worker])
}

fn signal(
    case: &Case<'_>,
    pod: &str,
    worker: &str,
    name: &str,
    slot: Option<u32>,
) -> Result<(), Stop> {
    let id = {
        let seen = case.stage.watch.seen();
        let found = seen.pod(pod).and_then(|pod| pod.container(worker));
        found.map(|container| container.id.clone()).unwrap_or_default()
    };
    let slot = slot.map(|slot| slot.to_string());
    let mut arguments = vec!["/node", "signal", name, &id];
    arguments.extend(slot.as_deref());
    case.on_node_of(pod, &arguments).map(drop)
}

/// The same, if need be to the container after this one: a kubelet that had started it again before it
/// saw the new name starts it once more.
fn signal_current(
    case: &Case<'_>,
    pod: &str,
    worker: &str,
    name: &str,
    slot: Option<u32>,
    id: &mut String,
) -> Result<(), Stop> {
    if signal(case, pod, worker, name, slot).is_ok() {
        return Ok(());
    }
    *id = started(case, pod, worker, id)?;
    signal(case, pod, worker, name, slot)
}

fn rename_image(case: &Case<'_>, pod: &str, worker: &str, image: &str) -> Result<(), Stop> {
    let patch: Value = json!({ "spec": { "containers": [{ "name": worker, "image": image }] } });
    let patch = patch.to_string();
    case.stage.kubectl.run(&["patch", "pod", pod, "--patch", &patch]).map(drop)
}

const _: () = assert!(RESTARTS * WORKERS.len() == 20 && RESTARTS.is_multiple_of(2));
