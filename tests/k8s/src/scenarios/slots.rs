//! 8 and 14: several processes in one container, each with a file of its own.

use crate::answer::{Report, Stop};
use crate::stage::{Case, PATIENCE, PROBE};

use super::life::stale;

pub(super) fn one_ill(case: &Case<'_>) -> Result<Report, Stop> {
    const ILL: u32 = 1;
    let mut report = Report::default();
    let plan = case.lapin(case.broker()?, "")?.env("DEMO_SLOTS", "3");
    let pod = case.start(&plan)?;
    report.is(
        "the probe's line before",
        "3 process(es) healthy",
        &case.exec(&pod.name, &[PROBE])?.out,
    );
    let stopped = case.signal(&pod.name, "STOP", Some(ILL))?;
    let limit = pod.clock.kill().at_most + pod.calls * 4;
    let killed = case.killed(&pod, stopped.began, "liveness", limit)?;
    report.within(
        "one of three frozen → the kubelet ends the container",
        pod.clock.kill(),
        stopped.until(killed.at),
        pod.calls,
    );
    // Nothing of the other two: their marks are fresh, and do not help.
    stale(case, &pod, ILL, stopped.began, &mut report);
    let after = case.restarted(&pod, 1)?;
    report.is("restarts", 1, after.restarts);
    Ok(report)
}

pub(super) fn killed(case: &Case<'_>) -> Result<Report, Stop> {
    const KILLED: u32 = 1;
    let mut report = Report::default();
    let pod = case.start(&case.lapin(case.broker()?, "")?.env("DEMO_SLOTS", "2"))?;
    let pid = |slot: u32| {
        let said = case.report(&pod.name)?;
        Ok::<_, Stop>((said["slots"][slot as usize]["pid"].as_u64(), said))
    };
    let (before, _) = pid(KILLED)?;
    let (other, _) = pid(0)?;
    case.signal(&pod.name, "KILL", Some(KILLED))?;
    case.step("waits for the slot's next process");
    let after = case.poll("the slot did not come back", PATIENCE, || {
        let (now, said) = pid(KILLED)?;
        let back = now.is_some() && now != before && said["healthy"] == true;
        Ok(back.then_some(said))
    })?;
    let slots = after["slots"].as_array().map_or(0, Vec::len);
    report.is("slots that the probe looks at", 2, slots);
    report.is("the verdict", "2 process(es) healthy", after["verdict"].as_str().unwrap_or("none"));
    let changed = after["slots"][KILLED as usize]["pid"].as_u64() != before;
    report.is("another process in worker-1", true, changed);
    report.is("the same process in worker-0", true, after["slots"][0]["pid"].as_u64() == other);
    case.pause(pod.clock.kill().at_most)?;
    case.stayed(&mut report, &pod)?;
    Ok(report)
}
