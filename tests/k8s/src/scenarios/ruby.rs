//! 16: what Ruby writes, the static probe judges: a pod whose worker leaves text.

use serde_json::json;

use crate::answer::{Report, Stop};
use crate::clock::Clock;
use crate::stage::{Case, PATIENCE, WORKER, timed};

use super::life::{HEALTHY, stale};

pub(super) fn marks(case: &Case<'_>) -> Result<Report, Stop> {
    if case.stage.probe.is_served {
        return Err(Stop::Skipped("a Ruby worker answers nobody over HTTP".to_owned()));
    }
    let mut report = Report::default();
    let mut plan = case.plan("ruby", "")?.patch(include_str!("../../manifests/16-ruby.yaml"))?;
    let clock = Clock::of(&plan.object)?;
    plan = plan
        .env("TICK", clock.tick.as_secs().to_string())
        .env("KICKS_LIVENESS_MAX_AGE", clock.max_age.as_secs().to_string());
    // Only the gem's names, so that what is read is what a Ruby worker's pod has.
    let worker = &mut plan.object["spec"]["template"]["spec"]["containers"][0];
    if let Some(variables) = worker["env"].as_array_mut() {
        variables.retain(|one| !one["name"].as_str().unwrap_or_default().starts_with("TICKMARK_"));
    }
    debug_assert_ne!(worker["env"], json!([]));
    let name = {
        case.apply(&plan)?;
        case.step("waits for Ruby");
        let limit = clock.startup_kill().at_most + PATIENCE;
        case.until("the worker never started", limit, |seen| {
            let pods = seen.latest(&plan.app);
            let pod = pods.first()?;
            pod.container(WORKER)?.started.then(|| pod.name.clone())
        })?
    };
    let calls = case.calls(&name)?;
    let pod = crate::stage::Pod { app: plan.app.clone(), name, clock, calls };
    let explained = case.report(&pod.name)?;
    report.is("the probe's line", HEALTHY, explained["verdict"].as_str().unwrap_or("none"));
    let format = explained["slots"][0]["format"].as_str().unwrap_or("none");
    report.is("the mark's format", "text", format);
    let from = explained["dir_from"].as_str().unwrap_or("none");
    report.is("the directory's name comes from", "KICKS_LIVENESS_DIR", from);
    // Its process works on, and no longer says that it is well.
    let (_, ill) = timed(|| {
        let script = "Process.kill(:USR1, 1)";
        case.exec(&pod.name, &["/usr/bin/ruby", "--disable-gems", "-e", script])
    })?;
    let limit = pod.clock.kill().at_most + pod.calls * 4;
    let killed = case.killed(&pod, ill.began, "liveness", limit)?;
    report.within(
        "no mark any more → the kubelet ends the container",
        pod.clock.kill(),
        ill.until(killed.happened),
        pod.calls,
    );
    stale(case, &pod, 0, ill.began, &mut report);
    let after = case.restarted(&pod, 1)?;
    report.is("restarts", 1, after.restarts);
    let explained = case.report(&pod.name)?;
    let generation = explained["generation"].as_str().unwrap_or("none");
    report.is(
        "the generation afterwards",
        "same by mount namespace inode and PID 1 start time",
        generation,
    );
    Ok(report)
}
