//! 3, 4, 5, 7 and 10: what the broker does, and what must come of it.

use std::time::{Duration, Instant};

use crate::answer::{Report, Stop, seconds};
use crate::broker::Broker;
use crate::stage::{CALLS, Case, PATIENCE, PROBE, Pod, WORKER, none};

use super::life::{HEALTHY, stale};

/// Kubernetes 1.20 acts on a startup probe that has failed for good only when it looks at the pod
/// for another reason: once in `syncFrequency`, a minute unless it is set, and half as much again.
const SYNC: Duration = Duration::from_secs(90);

const QUEUES: [&str; 2] = ["demo-0", "demo-1"];

pub(super) fn queue_deleted(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let (broker, host) = (case.broker()?, case.virtual_host());
    let pod = case.start(&case.lapin(broker, "")?)?;
    let ((), deleted) = crate::stage::timed(|| broker.delete_queue(&host, "demo-1"))?;
    let limit = pod.clock.kill().at_most + pod.calls * 4;
    let killed = case.killed(&pod, deleted.began, "liveness", limit)?;
    report.within(
        "queue deleted → the kubelet ends the container",
        pod.clock.kill(),
        deleted.until(killed.happened),
        pod.calls,
    );
    stale(case, &pod, 0, deleted.began, &mut report);
    let after = case.restarted(&pod, 1)?;
    let said = "[liveness] slot 0: became unhealthy (expected 2 consumers): demo-1 stopped";
    let log = case.log(&pod.name, true)?;
    report.is("ERROR lines that say so", 1, log.matches(said).count());
    report.is("restarts", 1, after.restarts);
    report.is("consumers of demo-1 afterwards", 1, consumers(broker, &host, "demo-1")?);
    Ok(report)
}

pub(super) fn dies(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let (broker, host) = (own(case)?, case.virtual_host());
    let pod = case.start(&case.lapin(&broker, "")?)?;
    broker.kill();
    let begun = Instant::now();
    case.step("the broker is dead");
    case.poll("the worker was never recovering", pod.clock.tick + CALLS * 2, || {
        Ok((phase(case, &pod)? == "recovering").then_some(()))
    })?;
    // As long as a restart would have taken, had it been counted as ill.
    case.pause(pod.clock.kill().at_most.saturating_sub(begun.elapsed()))?;
    report.is("the probe's line meanwhile", HEALTHY, &case.exec(&pod.name, &[PROBE])?.out);
    broker.start_again(&case.stage.interrupted)?;
    let back = Instant::now();
    case.step("the broker is back");
    case.poll("the consumers did not come back", PATIENCE, || {
        let all = QUEUES.map(|queue| consumers(&broker, &host, queue));
        let [first, second] = all;
        let running = phase(case, &pod)? == "running";
        Ok((first? == 1 && second? == 1 && running).then_some(()))
    })?;
    super::life::told(&mut report, "broker back → both queues consumed", back.elapsed());
    case.stayed(&mut report, &pod)?;
    Ok(report)
}

pub(super) fn stays_dead(case: &Case<'_>) -> Result<Report, Stop> {
    const TIMES: u32 = 3;
    let mut report = Report::default();
    let broker = own(case)?;
    let pod = case.start(&case.lapin(&broker, "")?)?;
    broker.kill();
    let long = pod.clock.kill().at_most * TIMES;
    case.step(&format!("the broker stays dead for {} s", long.as_secs()));
    case.pause(long)?;
    let said = case.exec(&pod.name, &[PROBE])?;
    report.is("the probe's line at the end", HEALTHY, &said.out);
    report.is("the mark's phase", "recovering", phase(case, &pod)?.as_str());
    case.stayed(&mut report, &pod)?;
    // lapin has its own: its connection is refused.
    let log = case.log(&pod.name, false)?;
    let ours = |line: &&str| line.contains(" ERROR ") && line.contains("[liveness]");
    let errors: Vec<String> = log.lines().filter(ours).map(str::to_owned).collect();
    none(&mut report, "ERROR lines of the liveness", &errors);
    Ok(report)
}

/// A supervisor brings the slot back each time, so the container itself stays.
pub(super) fn refused(case: &Case<'_>) -> Result<Report, Stop> {
    let mut report = Report::default();
    let uri = case.broker()?.uri_refused(&case.virtual_host());
    let plan = case.lapin(case.broker()?, "")?.env("DEMO_URI", uri).env("DEMO_SLOTS", "2");
    let pod = case.begin(&plan)?;
    let running = {
        let seen = case.stage.watch.seen();
        let mut history = seen.history(&pod.name);
        let first = history.find(|pod| pod.container(WORKER).is_some_and(|it| it.running));
        first.map_or_else(Instant::now, |pod| pod.at)
    };
    let budget = pod.clock.startup_kill();
    case.step("waits for the kubelet to give up on its start");
    // Not the event: a kubelet drops those of a pod that had many.
    let ended = case.until("it was not ended", budget.at_most + SYNC + CALLS * 4, |seen| {
        let pod = seen.pod(&pod.name)?;
        let ended =
            pod.container(WORKER).is_some_and(|worker| worker.restarts > 0 || !worker.running);
        ended.then_some(pod.at)
    })?;
    let took = ended.saturating_duration_since(running);
    report.add(
        "container runs → the kubelet ends it (startup probe)",
        format!("{budget}, and its next sync"),
        seconds(took),
        // The container ran a moment before word of it came.
        took + CALLS >= budget.at_least && took <= budget.at_most + SYNC + CALLS,
    );
    let log = case.poll("the log of the ended container did not come", PATIENCE, || {
        let ended = case.container(&pod.name)?.restarts > 0;
        ended.then(|| case.log(&pod.name, true)).transpose()
    })?;
    let passed = {
        let seen = case.stage.watch.seen();
        seen.history(&pod.name).any(|pod| pod.container(WORKER).is_some_and(|it| it.started))
    };
    report.is("startup probe passed", false, passed);
    let is_loop = |line: &&str| {
        line.contains(" ERROR ")
            && line.contains("slot 0: not healthy")
            && line.contains(" starts, ")
    };
    let reports: Vec<&str> = log.lines().filter(is_loop).collect();
    // One in each window of six ticks, for as long as the container ran.
    let window = pod.clock.tick * 6;
    let at_most = took.as_secs() / window.as_secs() + 1;
    let last = reports.last().and_then(|line| line.split("slot 0: ").nth(1)).unwrap_or("none");
    report.add(
        "ERROR lines of slot 0",
        format!("1 to {at_most}, one in {} s", window.as_secs()),
        format!("{}; the last: {last}", reports.len()),
        (1..=at_most).contains(&(reports.len() as u64)),
    );
    Ok(report)
}

/// The names are read from the documents, and the broker is asked what the scrape configuration
/// asks it.
pub(super) fn metric(case: &Case<'_>) -> Result<Report, Stop> {
    const RULES: &str = include_str!("../../../../docs/alerts/tickmark.rules.yml");
    const SCRAPE: &str = include_str!("../../../../docs/alerts/scrape.yml");
    let mut report = Report::default();
    let (broker, host) = (case.broker()?, case.virtual_host());
    let scrape = crate::manifest::parse(SCRAPE)?;
    let job = &scrape["scrape_configs"][0];
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let family = text(&job["params"]["family"][0]);
    let path = format!("{}?family={family}", text(&job["metrics_path"]));
    let names: std::collections::BTreeSet<&str> = RULES
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("rabbitmq_"))
        .collect();
    report.is("metrics that the rules name", 1, names.len());
    let metric = names.first().copied().unwrap_or_default();
    let plan = case.lapin(broker, "")?.env("DEMO_QUEUES", "orders,mails");
    let pod = case.start(&plan)?;
    let series = |queue: &str, consumers: u32| {
        format!("{metric}{{vhost=\"{host}\",queue=\"{queue}\"}} {consumers}")
    };
    let all = |consumers| {
        case.poll("the broker did not export it", PATIENCE, || {
            let page = broker.get(&path)?;
            let has = |queue| page.lines().any(|line| line == series(queue, consumers));
            Ok((has("orders") && has("mails")).then(|| series("orders", consumers)))
        })
    };
    case.step("waits for the metric");
    report.is("with a worker", series("orders", 1), all(1)?);
    let to_zero = ["scale", "deployment", &pod.app, "--replicas=0"];
    case.stage.kubectl.run(&to_zero)?;
    case.step("waits for the metric without a worker");
    report.is("scaled to none: the alert's condition", series("orders", 0), all(0)?);
    Ok(report)
}

/// A broker that this scenario may kill.
fn own(case: &Case<'_>) -> Result<Broker, Stop> {
    case.step("starts a broker of its own");
    let address = case.broker()?.address;
    Broker::start(address, &[case.virtual_host()], &case.stage.interrupted)
}

fn consumers(broker: &Broker, host: &str, queue: &str) -> Result<u32, Stop> {
    Ok(broker.consumers(host, queue)?.unwrap_or_default())
}

fn phase(case: &Case<'_>, pod: &Pod) -> Result<String, Stop> {
    let report = case.report(&pod.name)?;
    Ok(report["slots"][0]["phase"].as_str().unwrap_or("none").to_owned())
}
