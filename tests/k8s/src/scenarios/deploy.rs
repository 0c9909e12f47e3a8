//! 6 and 9: deploys, which are not to be told from the outside by anything but their being over.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::answer::{Report, Stop};
use crate::stage::{CALLS, Case, PATIENCE, WORKER, none};

pub(super) fn ordinary(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let (broker, host) = (case.broker()?, case.virtual_host());
    // A job that is still worked on when the pod is deleted, for most of the grace.
    let plan = case.lapin(broker, "")?;
    let grace = crate::clock::Clock::of(&plan.object)?.termination_grace;
    let job = (grace / 2).min(Duration::from_secs(20));
    let plan = plan.env("DEMO_JOB", job.as_millis().to_string());
    let old = case.start(&plan)?;
    // Followed from before, because a pod's log goes with the pod.
    let followed = case
        .stage
        .kubectl
        .command(&["logs", "--follow", &old.name, "-c", WORKER])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let followed = crate::answer::Doing::doing(followed, "run kubectl logs")?;
    broker.publish(&host, "demo-0", 1)?;
    case.pause(Duration::from_millis(500))?;
    case.stage.kubectl.run(&["rollout", "restart", &format!("deployment/{}", plan.app)])?;
    case.step("waits for the new pod");
    let limit = old.clock.startup_kill().at_most + PATIENCE;
    let new = case.until("the new pod never started", limit, |seen| {
        let pods = seen.latest(&plan.app);
        let new = pods.iter().find(|pod| pod.name != old.name)?;
        new.container(WORKER)?.started.then(|| new.name.clone())
    })?;
    case.step("waits for the old pod to drain");
    let limit = old.clock.termination_grace + PATIENCE;
    case.until("the old pod is still there", limit, |seen| {
        seen.history(&old.name).any(|pod| pod.deleted).then_some(())
    })?;
    let output = followed.wait_with_output();
    let output = crate::answer::Doing::doing(output, "read kubectl logs")?;
    let old_log = String::from_utf8_lossy(&output.stdout).into_owned();
    let both = [old_log.clone(), case.log(&new, false)?].concat();
    let errors: Vec<String> =
        both.lines().filter(|line| line.contains(" ERROR ")).map(str::to_owned).collect();
    none(&mut report, "ERROR lines of the old pod and the new one", &errors);
    let place = |text: &str| old_log.lines().position(|line| line.contains(text));
    let shutting = place("[liveness] slot 0: shutting down: consumers are no longer checked");
    let drained = place("drained");
    report.add(
        "the old one's last words",
        "shutting down, then drained",
        format!("{shutting:?}, {drained:?}").replace("Some", "line ").replace("None", "never"),
        shutting.is_some() && drained > shutting,
    );
    // A call that the end of the container cut off says nothing, and over HTTP is refused, or finds nobody
    // at the address, which goes before the pod does; a verdict is a line, or a status.
    let cut_off = |said: &str| {
        said == "Liveness probe failed:" || said.ends_with(": connect: connection refused")
    };
    let gone = |said: &str| said.contains(": dial tcp ") && said.contains(": i/o timeout");
    let mut complaints = case.complaints(&old.name);
    complaints.retain(|said| !cut_off(said) && !gone(said));
    complaints.extend(case.complaints(&new).into_iter().filter(|said| !cut_off(said)));
    none(&mut report, "liveness probes that failed", &complaints);
    Ok(report)
}

pub(super) fn rolling(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let (broker, host) = (case.broker()?, case.virtual_host());
    let plan = case.lapin(broker, "")?.patch(include_str!("../../manifests/09-rolling.yaml"))?;
    let clock = crate::clock::Clock::of(&plan.object)?;
    case.apply(&plan)?;
    let limit = clock.startup_kill().at_most + PATIENCE;
    case.step("waits for two pods");
    let ready = |but: &[String]| {
        case.until("not two pods were ready", limit, |seen| {
            let pods = seen.latest(&plan.app);
            let ready: Vec<String> = pods
                .iter()
                .filter(|pod| pod.container(WORKER).is_some_and(|worker| worker.ready))
                .map(|pod| pod.name.clone())
                .filter(|name| !but.contains(name))
                .collect();
            (ready.len() == 2).then_some(ready)
        })
    };
    let old = ready(&[])?;
    let over = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let done =
                || over.load(Ordering::Relaxed) || case.stage.interrupted.load(Ordering::Relaxed);
            broker.follow_consumers(&host, "demo-0", done)
        });
        let rolled = || -> Result<(), Stop> {
            case.pause(Duration::from_secs(1))?;
            case.stage.kubectl.run(&["rollout", "restart", &format!("deployment/{}", plan.app)])?;
            case.step("counts consumers while it rolls");
            ready(&old)?;
            let limit = clock.termination_grace + PATIENCE;
            case.until("the old pods are still there", limit, |seen| {
                let gone = |name: &String| seen.history(name).any(|pod| pod.deleted);
                old.iter().all(gone).then_some(())
            })?;
            case.pause(CALLS.min(Duration::from_secs(1)))
        };
        let rolled = rolled();
        over.store(true, Ordering::Relaxed);
        let counts = counting.join().unwrap_or_else(|_| Err(Stop::failed("the count panicked")));
        rolled.and(counts)
    })?;
    let path: Vec<String> = counts.iter().map(u32::to_string).collect();
    let least = counts.iter().min().copied().unwrap_or_default();
    report.add("fewest consumers at any time", "2", least, least >= 2);
    report.is("most", 4, counts.iter().max().copied().unwrap_or_default());
    report.add(
        "their number, each time it changed",
        "2 → … → 4 → … → 2",
        path.join(" → "),
        counts.first() == Some(&2) && counts.last() == Some(&2),
    );
    Ok(report)
}
