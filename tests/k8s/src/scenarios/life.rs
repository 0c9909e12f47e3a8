//! 1 and 2: a worker that is well is left alone, and one that hangs is not.

use std::time::{Duration, Instant};

use crate::answer::{Report, Stop, Window, seconds};
use crate::clock::Clock;
use crate::stage::{Case, Done, PATIENCE, PROBE};

pub(super) const HEALTHY: &str = "1 process(es) healthy";

pub(super) fn comes_up(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let broker = case.broker()?;
    let host = case.virtual_host();
    let consumers = || {
        let queues = ["demo-0", "demo-1"].map(|queue| broker.consumers(&host, queue));
        let [first, second] = queues.map(|count| count.map(Option::unwrap_or_default));
        Ok::<u32, Stop>(first? + second?)
    };
    let plan = case.lapin(broker, "")?;
    case.apply(&plan)?;
    // How long a container and a connection take is the machine's. What was applied follows from here.
    case.step("waits for its consumers");
    let limit = Clock::of(&plan.object)?.startup_kill().at_most + PATIENCE;
    let begun = Instant::now();
    let mut asked = begun;
    let subscribed = loop {
        let before = std::mem::replace(&mut asked, Instant::now());
        if consumers()? == 2 {
            break Done { began: before, ended: Instant::now() };
        }
        if begun.elapsed() > limit {
            return Err(Stop::Late("its consumers never came".to_owned()));
        }
        case.pause(Duration::from_millis(20))?;
    };
    let mut pod = case.runs(&plan)?;
    let started = case.started(&mut pod)?;
    report.within(
        "both queues consumed → startup probe passed",
        Window { at_least: Duration::ZERO, at_most: pod.clock.start() },
        subscribed.until((started, started)),
        pod.calls,
    );
    let said = case.exec(&pod.name, &[PROBE])?;
    report.is("the probe's line", HEALTHY, &said.out);
    report.is("its exit status", 0, said.status.unwrap_or(-1));
    report.is("consumers on the broker", 2, consumers()?);
    // As long as it would take to be restarted.
    let while_well = pod.clock.kill().at_most;
    case.step("stays well");
    case.pause(while_well)?;
    case.stayed(&mut report, &pod)?;
    Ok(report)
}

pub(super) fn frozen(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let pod = case.start(&case.lapin(case.broker()?, "")?)?;
    // A process that hangs for whatever reason: it neither ticks nor answers.
    let stopped = case.signal(&pod.name, "STOP", None)?;
    let window = case.hung_kill(&pod.clock, true);
    let limit = window.at_most + pod.calls * 4;
    let killed = case.killed(&pod, stopped.began, "liveness", limit)?;
    report.within(
        "SIGSTOP → the kubelet ends the container",
        window,
        stopped.until(killed.happened),
        pod.calls,
    );
    if case.stage.probe.is_served {
        let line = case.complaint(&pod, stopped.began).unwrap_or_default();
        let holds = line.contains("/livez") && line.contains("Timeout exceeded");
        report.add("the kubelet's event", "…/livez…Timeout exceeded…", line, holds);
    } else {
        stale(case, &pod, 0, stopped.began, &mut report);
    }
    let after = case.restarted(&pod, 1)?;
    report.is("restarts", 1, after.restarts);
    report.is("the probe's line afterwards", HEALTHY, &case.exec(&pod.name, &[PROBE])?.out);
    Ok(report)
}

/// What the kubelet had from the probe before it ended the container.
pub(super) fn stale(
    case: &Case<'_>,
    pod: &crate::stage::Pod,
    slot: u32,
    after: Instant,
    report: &mut Report,
) {
    if case.stage.probe.is_served {
        // The kubelet does not say what was answered.
        let line = case.complaint(pod, after).unwrap_or_default();
        return report.is("the kubelet's event", "HTTP probe failed with statuscode: 503", &*line);
    }
    let limit = pod.clock.max_age.as_secs();
    let line = case.complaint(pod, after).unwrap_or_default();
    let (begin, end) = (format!("worker-{slot} stale "), format!("s > {limit}s"));
    let age = line.strip_prefix(&begin).and_then(|line| line.strip_suffix(&end));
    let holds = age.and_then(|age| age.parse::<u64>().ok()).is_some_and(|age| age > limit);
    report.add("the kubelet's event", format!("{begin}…{end}"), line, holds);
}

/// A line of what took how long, where nothing bounds it.
pub(super) fn told(report: &mut Report, what: &str, time: Duration) {
    report.add(what, "told only", seconds(time), true);
}
