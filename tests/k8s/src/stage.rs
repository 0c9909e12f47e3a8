//! Where a scenario plays: the cluster, the broker, the node's hand; and the verbs it is told in.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::answer::{Doing as _, Report, Stop, Took, Window};
use crate::backend;
use crate::broker::Broker;
use crate::clock::{Clock, Pace};
use crate::images::Images;
use crate::kubectl::{Kubectl, Said};
use crate::manifest::{self, Probe};
use crate::progress::Progress;
use crate::watch::{Container, Event, Seen, Watch};

/// What the way of the news may take. The probe calls themselves come on top: [`Pod::calls`].
pub(crate) const CALLS: Duration = Duration::from_secs(2);
/// A call is measured, and this many surround a verdict: those that fail, and one that just missed it.
const SURROUNDING: u32 = 4;
/// For what has no bound of its own: an image that is unpacked, a pod that is scheduled.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The container's name in every manifest.
pub(crate) const WORKER: &str = "worker";
pub(crate) const PROBE: &str = "/tickmark-probe";

pub(crate) struct Stage {
    pub(crate) kubectl: Kubectl,
    pub(crate) watch: Watch,
    pub(crate) images: Images,
    pub(crate) run: String,
    pub(crate) pace: Pace,
    pub(crate) probe: Probe,
    /// The one that no scenario kills; why there is none.
    pub(crate) broker: Result<Broker, Stop>,
    pub(crate) interrupted: Arc<AtomicBool>,
    pub(crate) progress: Progress,
}

/// One scenario's part of the stage.
pub(crate) struct Case<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) number: u8,
    /// What came late beside the others is played once more, alone.
    pub(crate) again: bool,
}

/// When something was done: it took effect between the two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

impl Done {
    /// Until what happened between the two others.
    pub(crate) fn until(self, (earliest, latest): (Instant, Instant)) -> Took {
        Took {
            at_least: earliest.saturating_duration_since(self.ended),
            at_most: latest.saturating_duration_since(self.began),
        }
    }
}

/// Does something, and says when.
pub(crate) fn timed<T>(act: impl FnOnce() -> Result<T, Stop>) -> Result<(T, Done), Stop> {
    let began = Instant::now();
    let done = act()?;
    Ok((done, Done { began, ended: Instant::now() }))
}

/// A deployment that is about to be made.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) app: String,
    pub(crate) object: Value,
}

/// A pod that runs.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) app: String,
    pub(crate) name: String,
    pub(crate) clock: Clock,
    /// What may come on top of a time that is computed without the calls.
    pub(crate) calls: Duration,
}

impl Stage {
    /// The virtual host of a scenario, which its queues are in; the second time another.
    pub(crate) fn virtual_host(number: u8, again: bool) -> String {
        format!("s{number:02}{}", if again { "again" } else { "" })
    }

    /// Whether the clock of each node shows what this machine's does, as nearly as its events need it.
    pub(crate) fn same_clock(kubectl: &Kubectl, watch: &Watch, app: &str) -> Result<bool, Stop> {
        const NEARLY: Duration = Duration::from_millis(500);
        let ours = || SystemTime::now().duration_since(UNIX_EPOCH).doing("read the clock");
        let hands: Vec<String> =
            watch.seen().latest(app).iter().map(|hand| hand.name.clone()).collect();
        for hand in hands {
            let before = ours()?;
            let said = kubectl.exec(&hand, "node", &["/node", "time"])?;
            let after = ours()?;
            let theirs = said.out.parse().doing(format_args!("read the clock of {hand}'s node"))?;
            let theirs = Duration::from_millis(theirs);
            if theirs + NEARLY < before || theirs > after + NEARLY {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// This machine's address as the pods of the cluster see it.
    pub(crate) fn find_host(kubectl: &Kubectl, watch: &Watch, app: &str) -> Result<IpAddr, Stop> {
        let seen = watch.seen();
        let addresses: Vec<String> =
            seen.latest(app).iter().flat_map(|pod| [pod.ip.clone(), pod.node_ip.clone()]).collect();
        addresses.iter().find_map(|other| backend::address_beside(other)).ok_or_else(|| {
            Stop::Skipped(format!(
                "this machine has no address beside {}: say with --host by which one the pods of {} \
                 reach it",
                addresses.join(" and "),
                kubectl.context
            ))
        })
    }
}

impl Plan {
    pub(crate) fn patch(mut self, yaml: &str) -> Result<Plan, Stop> {
        manifest::merge(&mut self.object, &manifest::parse(yaml)?);
        Ok(self)
    }

    /// A variable of the worker's container.
    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Plan {
        let variable = json!({ "name": name, "value": value.into() });
        let patch = json!({ "spec": { "template": { "spec": { "containers": [
            { "name": WORKER, "env": [variable] },
        ] } } } });
        manifest::merge(&mut self.object, &patch);
        self
    }
}

impl<'a> Case<'a> {
    pub(crate) fn step(&self, what: &str) {
        self.stage.progress.step(self.number, what);
    }

    pub(crate) fn virtual_host(&self) -> String {
        Stage::virtual_host(self.number, self.again)
    }

    /// The name of what is made for it.
    pub(crate) fn app(&self, suffix: &str) -> String {
        format!("{}{suffix}-{}", self.virtual_host(), self.stage.run)
    }

    pub(crate) fn broker(&self) -> Result<&'a Broker, Stop> {
        self.stage.broker.as_ref().map_err(Clone::clone)
    }

    /// The recommended manifest with an image in it, one replica of it, and a name of its own.
    pub(crate) fn plan(&self, image: &str, suffix: &str) -> Result<Plan, Stop> {
        let mut object = manifest::worker(self.stage.pace, self.stage.probe);
        let app = self.app(suffix);
        manifest::rename(&mut object, &app, &self.stage.run);
        object["spec"]["replicas"] = json!(1);
        manifest::merge(&mut object["spec"]["template"]["spec"], &manifest::pod()?);
        object["spec"]["template"]["spec"]["containers"][0]["image"] =
            json!(self.stage.images.reference(image)?);
        Ok(Plan { app, object })
    }

    /// A worker on lapin that consumes two queues of this scenario's virtual host.
    pub(crate) fn lapin(&self, broker: &Broker, suffix: &str) -> Result<Plan, Stop> {
        let plan = self.plan("lapin-worker", suffix)?;
        Ok(plan.env("DEMO_URI", broker.uri(&self.virtual_host())))
    }

    /// A worker whose queue is in its own process.
    pub(crate) fn demo(&self, suffix: &str) -> Result<Plan, Stop> {
        self.plan("demo-worker", suffix)
    }

    /// Makes it, without waiting for anything.
    pub(crate) fn apply(&self, plan: &Plan) -> Result<(), Stop> {
        self.stage.kubectl.apply(&plan.object)
    }

    /// Makes it and waits until its one pod has started, as the kubelet sees it.
    pub(crate) fn start(&self, plan: &Plan) -> Result<Pod, Stop> {
        let mut pod = self.begin(plan)?;
        self.started(&mut pod)?;
        Ok(pod)
    }

    /// Waits until the kubelet takes the worker for started, and returns when word of it came.
    pub(crate) fn started(&self, pod: &mut Pod) -> Result<Instant, Stop> {
        self.step("waits until the worker has started");
        let limit = pod.clock.startup_kill().at_most + PATIENCE;
        let started = self
            .until("the worker never started", limit, |seen| {
                let mut history = seen.history(&pod.name);
                let first = history.find(|pod| pod.container(WORKER).is_some_and(|it| it.started));
                first.map(|pod| pod.at)
            })
            .map_err(|stop| self.with_log(stop, &pod.name))?;
        pod.calls = self.calls(&pod.name)?;
        Ok(started)
    }

    /// What calls of the probe add now, on this machine with all else that it does: one is measured.
    pub(crate) fn calls(&self, pod: &str) -> Result<Duration, Stop> {
        let begun = Instant::now();
        self.exec(pod, &[PROBE])?;
        Ok(CALLS + begun.elapsed() * SURROUNDING)
    }

    /// Makes it and waits until its one pod has a running container.
    pub(crate) fn begin(&self, plan: &Plan) -> Result<Pod, Stop> {
        self.apply(plan)?;
        self.runs(plan)
    }

    /// Waits until the one pod has a running container.
    pub(crate) fn runs(&self, plan: &Plan) -> Result<Pod, Stop> {
        self.step("waits for its pod");
        let name = self.until("the pod never ran", PATIENCE, |seen| {
            let pods = seen.latest(&plan.app);
            let pod = pods.first()?;
            pod.container(WORKER)?.running.then(|| pod.name.clone())
        })?;
        let clock = Clock::of(&plan.object)?;
        Ok(Pod { app: plan.app.clone(), name, clock, calls: CALLS })
    }

    /// Waits for something in what the API server tells; `otherwise` says what did not come.
    pub(crate) fn until<T>(
        &self,
        otherwise: &str,
        limit: Duration,
        look: impl FnMut(&Seen) -> Option<T>,
    ) -> Result<T, Stop> {
        let found = self.stage.watch.until(limit, &self.stage.interrupted, look)?;
        found.ok_or_else(|| Stop::Late(format!("{otherwise} within {} s", limit.as_secs())))
    }

    /// Asks again and again for something that no watch tells.
    pub(crate) fn poll<T>(
        &self,
        otherwise: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<Option<T>, Stop>,
    ) -> Result<T, Stop> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if begun.elapsed() > limit {
                return Err(Stop::Late(format!("{otherwise} within {} s", limit.as_secs())));
            }
            self.pause(Duration::from_millis(500))?;
        }
    }

    pub(crate) fn pause(&self, time: Duration) -> Result<(), Stop> {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            if self.stage.interrupted.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            std::thread::sleep(left.min(Duration::from_millis(200)));
        }
        Ok(())
    }

    pub(crate) fn exec(&self, pod: &str, arguments: &[&str]) -> Result<Said, Stop> {
        self.stage.kubectl.exec(pod, WORKER, arguments)
    }

    /// What the probe says, in a container of the pod, as an object.
    pub(crate) fn report(&self, pod: &str) -> Result<Value, Stop> {
        let said = self.exec(pod, &[PROBE, "--json"])?;
        serde_json::from_str(&said.out)
            .map_err(|error| Stop::Failed(format!("the probe said {said:?}: {error}")))
    }

    /// The worker's container as it is now.
    pub(crate) fn container(&self, pod: &str) -> Result<Container, Stop> {
        let seen = self.stage.watch.seen();
        let found = seen.pod(pod).and_then(|pod| pod.container(WORKER));
        found.cloned().ok_or_else(|| Stop::Failed(format!("there is no {pod} any more")))
    }

    /// Sends a signal, from the node, to a container's main process or to one of its slots.
    pub(crate) fn signal(&self, pod: &str, name: &str, slot: Option<u32>) -> Result<Done, Stop> {
        let id = self.container(pod)?.id;
        let slot = slot.map(|slot| slot.to_string());
        let mut arguments = vec!["/node", "signal", name, &id];
        arguments.extend(slot.as_deref());
        Ok(timed(|| self.on_node_of(pod, &arguments))?.1)
    }

    /// Runs something on the node that a pod is on.
    pub(crate) fn on_node_of(&self, pod: &str, arguments: &[&str]) -> Result<String, Stop> {
        let hand = {
            let seen = self.stage.watch.seen();
            let node = seen.pod(pod).map(|pod| pod.node_ip.clone()).unwrap_or_default();
            let hands = seen.latest(&hand(&self.stage.run));
            hands.iter().find(|hand| hand.node_ip == node).map(|hand| hand.name.clone())
        };
        let hand = hand.ok_or_else(|| Stop::failed("the node's hand is not there"))?;
        let said = self.stage.kubectl.exec(&hand, "node", arguments)?;
        if said.status == Some(0) {
            return Ok(said.out);
        }
        Err(Stop::Failed(format!("{}: {}", arguments.join(" "), said.err)))
    }

    /// Waits until the kubelet says that it ends the container because a probe failed.
    pub(crate) fn killed(
        &self,
        pod: &Pod,
        after: Instant,
        probe: &str,
        limit: Duration,
    ) -> Result<Event, Stop> {
        self.step(&format!("waits for the kubelet to end the container ({probe} probe)"));
        let words = format!("failed {probe} probe");
        self.until("the kubelet did not end the container", limit, |seen| {
            let mut events = seen.events_of(&pod.name, "Killing");
            events.find(|event| event.at > after && event.message.contains(&words)).cloned()
        })
        .map_err(|stop| self.with_log(self.unless_green(stop, &pod.name), &pod.name))
    }

    /// A kubelet may be late, and its word too. A probe that is green for what it should have had ended is
    /// wrong, on any machine.
    fn unless_green(&self, stop: Stop, pod: &str) -> Stop {
        let Stop::Late(why) = stop else { return stop };
        let ended = self.container(pod).is_ok_and(|container| container.restarts > 0);
        match self.exec(pod, &[PROBE]) {
            Ok(said) if !ended && said.status == Some(0) => {
                Stop::Failed(format!("{why}, and the probe says: {}", said.out))
            }
            _ => Stop::Late(why),
        }
    }

    /// Waits until the container has been started again and its worker too, and returns it.
    pub(crate) fn restarted(&self, pod: &Pod, times: u64) -> Result<Container, Stop> {
        self.step("waits for the container that takes its place");
        let limit = pod.clock.termination_grace + pod.clock.startup_kill().at_most + PATIENCE;
        self.until("no container took its place", limit, |seen| {
            let container = seen.pod(&pod.name)?.container(WORKER)?;
            (container.restarts >= times && container.started).then(|| container.clone())
        })
        .map_err(|stop| self.with_log(stop, &pod.name))
    }

    /// The last line that the kubelet had from a liveness probe that failed.
    pub(crate) fn complaint(&self, pod: &Pod, after: Instant) -> Option<String> {
        const SAID: &str = "Liveness probe failed: ";
        let seen = self.stage.watch.seen();
        let mut events = seen.events_of(&pod.name, "Unhealthy");
        let last = events.rfind(|event| event.at > after && event.message.starts_with(SAID))?;
        Some(last.message[SAID.len()..].trim().to_owned())
    }

    /// From the moment in which a process hangs until the kubelet ends the container: by the age of its
    /// mark, or because it is the one that has to answer.
    pub(crate) fn hung_kill(&self, clock: &Clock, asked_itself: bool) -> Window {
        if asked_itself && self.stage.probe.is_served {
            clock.unanswered_kill()
        } else {
            clock.kill()
        }
    }

    /// The slot that answers the kubelet, where one does.
    pub(crate) fn serving(&self, pod: &str) -> Result<Option<u32>, Stop> {
        if !self.stage.probe.is_served {
            return Ok(None);
        }
        let log = self.log(pod, false)?;
        let line = log.lines().rfind(|line| line.contains("serving /livez"));
        let slot =
            line.and_then(|line| line.split_once("slot ")?.1.split(':').next()?.parse().ok());
        slot.map(Some).ok_or_else(|| Stop::failed("no process says that it serves"))
    }

    /// What liveness probes that failed said, each text once.
    pub(crate) fn complaints(&self, pod: &str) -> Vec<String> {
        let seen = self.stage.watch.seen();
        let mut said: Vec<String> = seen
            .events_of(pod, "Unhealthy")
            .filter(|event| event.message.starts_with("Liveness probe failed"))
            .map(|event| event.message.trim().to_owned())
            .collect();
        said.dedup();
        said
    }

    pub(crate) fn log(&self, pod: &str, previous: bool) -> Result<String, Stop> {
        let mut arguments = vec!["logs", pod, "-c", WORKER];
        if previous {
            arguments.push("--previous");
        }
        self.stage.kubectl.run(&arguments)
    }

    fn with_log(&self, stop: Stop, pod: &str) -> Stop {
        let with_log = |why: String| {
            let log = self.log(pod, false).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(8).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            format!("{why}; the worker's last lines:\n{}", last.join("\n"))
        };
        match stop {
            Stop::Late(why) => Stop::Late(with_log(why)),
            Stop::Failed(why) => Stop::Failed(with_log(why)),
            other => other,
        }
    }

    /// What every scenario whose worker must stay says at its end.
    pub(crate) fn stayed(&self, report: &mut Report, pod: &Pod) -> Result<(), Stop> {
        report.is("restarts", 0, self.container(&pod.name)?.restarts);
        none(report, "liveness probes that failed", &self.complaints(&pod.name));
        Ok(())
    }
}

/// A line that holds if there is nothing; else it says what there is.
pub(crate) fn none(report: &mut Report, what: &str, found: &[String]) {
    let observed = if found.is_empty() { "none".to_owned() } else { found.join(" / ") };
    report.add(what, "none", observed, found.is_empty());
}

/// The label of the pods, one on each node, that act on the node.
pub(crate) fn hand(run: &str) -> String {
    format!("node-{run}")
}
