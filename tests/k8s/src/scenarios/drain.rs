//! 13: a SIGTERM that did not come from the kubelet, and a drain that never ends.

use crate::answer::{Report, Stop};
use crate::stage::{Case, PATIENCE};

use super::life::stale;

pub(super) fn stuck(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let pod = case.start(&case.lapin(case.broker()?, "")?)?;
    case.exec(&pod.name, &["/worker", "switch", "refuse-drain"])?;
    case.poll("the switch did not take", PATIENCE, || {
        Ok(case.log(&pod.name, false)?.contains("refuse-drain").then_some(()))
    })?;
    let asked = case.signal(&pod.name, "TERM", None)?;
    case.step("waits until its mark is stale");
    let limit = pod.clock.stuck_drain_kill().at_most + pod.calls * 4;
    let red = case.until("the probe was never red", limit, |seen| {
        let mut failed = seen.events_of(&pod.name, "Unhealthy");
        let found = failed.find(|event| {
            event.at > asked.began && event.message.starts_with("Liveness probe failed: ")
        });
        found.cloned()
    })?;
    report.within(
        "SIGTERM → the kubelet sees it red",
        pod.clock.stuck_drain_red(),
        asked.until(red.happened),
        pod.clock.liveness.period + pod.calls,
    );
    let killed = case.killed(&pod, asked.began, "liveness", limit)?;
    report.within(
        "SIGTERM → the kubelet ends the container",
        pod.clock.stuck_drain_kill(),
        asked.until(killed.happened),
        pod.calls,
    );
    stale(case, &pod, 0, asked.began, &mut report);
    case.restarted(&pod, 1)?;
    let grace = pod.clock.shutdown_grace.as_secs();
    let over = format!("shutdown grace of {grace}s is over: the mark is no longer refreshed");
    report.is("ERROR lines that say so", 1, case.log(&pod.name, true)?.matches(&over).count());
    Ok(report)
}
