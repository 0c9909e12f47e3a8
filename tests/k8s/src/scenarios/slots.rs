//! 8 and 14: several processes in one container, each with a file of its own.

use crate::answer::{Report, Stop};
use crate::stage::{Case, PATIENCE, PROBE};

use super::life::stale;

pub(super) fn one_ill(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let plan = case.lapin(case.broker()?, "")?.env("DEMO_SLOTS", "3");
    let pod = case.start(&plan)?;
    report.is(
        "the probe's line before",
        "3 process(es) healthy",
        &case.exec(&pod.name, &[PROBE])?.out,
    );
    // Not the one that answers the kubelet: the others must not hide what is ill.
    let ill = if case.serving(&pod.name)? == Some(1) { 2 } else { 1 };
    let stopped = case.signal(&pod.name, "STOP", Some(ill))?;
    let limit = pod.clock.kill().at_most + pod.calls * 4;
    let killed = case.killed(&pod, stopped.began, "liveness", limit)?;
    report.within(
        "one of three frozen → the kubelet ends the container",
        pod.clock.kill(),
        stopped.until(killed.happened),
        pod.calls,
    );
    // Nothing of the other two: their marks are fresh, and do not help.
    stale(case, &pod, ill, stopped.began, &mut report);
    let after = case.restarted(&pod, 1)?;
    report.is("restarts", 1, after.restarts);
    Ok(report)
}

pub(super) fn killed(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let pod = case.start(&case.lapin(case.broker()?, "")?.env("DEMO_SLOTS", "2"))?;
    let pid = |slot: u32| {
        let said = case.report(&pod.name)?;
        Ok::<_, Stop>((said["slots"][slot as usize]["pid"].as_u64(), said))
    };
    // The one that answers the kubelet, where one does: the other must take over.
    let victim = case.serving(&pod.name)?.unwrap_or(1);
    let survivor = 1 - victim;
    let (before, _) = pid(victim)?;
    let (other, _) = pid(survivor)?;
    case.signal(&pod.name, "KILL", Some(victim))?;
    case.step("waits for the slot's next process");
    let after = case.poll("the slot did not come back", PATIENCE, || {
        let (now, said) = pid(victim)?;
        let back = now.is_some() && now != before && said["healthy"] == true;
        Ok(back.then_some(said))
    })?;
    let slots = after["slots"].as_array().map_or(0, Vec::len);
    report.is("slots that the probe looks at", 2, slots);
    report.is("the verdict", "2 process(es) healthy", after["verdict"].as_str().unwrap_or("none"));
    let changed = after["slots"][victim as usize]["pid"].as_u64() != before;
    report.is("another process in its slot", true, changed);
    report.is(
        "the same process in the other",
        true,
        after["slots"][survivor as usize]["pid"].as_u64() == other,
    );
    case.pause(pod.clock.kill().at_most)?;
    if case.stage.probe.is_served {
        // Until the other has the port, at most a tick later, the connection is refused.
        report.is("restarts", 0, case.container(&pod.name)?.restarts);
        let failed = case.complaints(&pod.name);
        let holds =
            failed.len() <= 1 && failed.iter().all(|said| said.contains("connection refused"));
        let said = if failed.is_empty() { "none".to_owned() } else { failed.join(" / ") };
        report.add("liveness probes that failed", "one at most, refused", said, holds);
        let log = case.log(&pod.name, false)?;
        report.is("processes that served", 2, log.matches("serving /livez").count());
    } else {
        case.stayed(&mut report, &pod)?;
    }
    Ok(report)
}
