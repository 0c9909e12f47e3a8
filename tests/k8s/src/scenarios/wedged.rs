//! 15: a worker whose process is alive and whose work is not.

use std::time::Duration;

use crate::answer::{Report, Stop, Window};
use crate::stage::{Case, PATIENCE, timed};

use super::life::stale;

pub(super) fn both(case: &Case<'_>) -> Result<Report, Stop> {
    std::thread::scope(|scope| {
        let runtime = scope.spawn(|| runtime(case));
        let jobs = jobs(case);
        let runtime = runtime.join().unwrap_or_else(|_| Err(Stop::failed("the scenario panicked")));
        let mut report = runtime?;
        report.lines.extend(jobs?.lines);
        Ok(report)
    })
}

/// Every thread of the runtime blocked: nothing can be cancelled, asked or stopped.
fn runtime(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let pod = case.start(&case.lapin(case.broker()?, "r")?)?;
    let (_, blocked) = timed(|| case.exec(&pod.name, &["/worker", "switch", "block-runtime"]))?;
    // The runtime is asked once a tick, and what it did not answer shows a tick later.
    let window = one_tick_later(pod.clock.kill(), pod.clock.tick);
    let killed = case.killed(&pod, blocked.began, "liveness", window.at_most + pod.calls * 4)?;
    report.within(
        "runtime blocked → the kubelet ends the container",
        window,
        blocked.until(killed.happened),
        pod.calls,
    );
    stale(case, &pod, 0, blocked.began, &mut report);
    report.is("restarts", 1, case.restarted(&pod, 1)?.restarts);
    Ok(report)
}

/// Every place taken by a job that does not end.
fn jobs(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let (broker, host) = (case.broker()?, case.virtual_host());
    let plan = case.lapin(broker, "j")?;
    let clock = crate::clock::Clock::of(&plan.object)?;
    let deadline = clock.tick * 3;
    let plan = plan
        .env("DEMO_PREFETCH", "2")
        .env("DEMO_DEADLINE", deadline.as_millis().to_string())
        .env("DEMO_QUEUES", "stuck-0,stuck-1");
    let pod = case.start(&plan)?;
    case.exec(&pod.name, &["/worker", "switch", "endless-jobs"])?;
    case.poll("the switch did not take", PATIENCE, || {
        Ok(case.log(&pod.name, false)?.contains("endless-jobs").then_some(()))
    })?;
    let (_, published) = timed(|| {
        broker.publish(&host, "stuck-0", 2)?;
        broker.publish(&host, "stuck-1", 2)
    })?;
    let kill = clock.kill();
    let window = Window { at_least: kill.at_least + deadline, at_most: kill.at_most + deadline };
    let window = one_tick_later(window, clock.tick);
    let killed = case.killed(&pod, published.began, "liveness", window.at_most + pod.calls * 4)?;
    report.within(
        "four of four places taken → deadline → the kubelet ends the container",
        window,
        published.until(killed.happened),
        pod.calls,
    );
    stale(case, &pod, 0, published.began, &mut report);
    report.is("restarts", 1, case.restarted(&pod, 1)?.restarts);
    Ok(report)
}

fn one_tick_later(window: Window, tick: Duration) -> Window {
    Window { at_least: window.at_least, at_most: window.at_most + tick }
}
