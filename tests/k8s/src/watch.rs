//! What the API server told us of the namespace's pods and events, as it came, with the time of its
//! arrival: one kubectl each for all scenarios, and no polling.

use std::io::{BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::answer::{Doing as _, Stop};
use crate::kubectl::Kubectl;

/// A container's status at some time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) name: String,
    /// Without the runtime's name; empty before there is one.
    pub(crate) id: String,
    pub(crate) running: bool,
    /// The startup probe has passed.
    pub(crate) started: bool,
    pub(crate) ready: bool,
    pub(crate) restarts: u64,
    /// Why it waits, such as `CrashLoopBackOff`.
    pub(crate) waiting: Option<String>,
    /// How the one before it ended.
    pub(crate) last_exit: Option<i64>,
}

/// A pod's status at some time.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) at: Instant,
    pub(crate) name: String,
    pub(crate) app: String,
    pub(crate) deleted: bool,
    pub(crate) ip: String,
    pub(crate) node_ip: String,
    pub(crate) containers: Vec<Container>,
}

impl Pod {
    pub(crate) fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// When word of it came.
    pub(crate) at: Instant,
    /// It happened between these two: when word of it came, or in the second that the kubelet gave
    /// it, where that was over already.
    pub(crate) happened: (Instant, Instant),
    pub(crate) pod: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// All of it so far, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) pods: Vec<Pod>,
    pub(crate) events: Vec<Event>,
}

impl Seen {
    /// The latest of each pod of `app`, those that are gone left out.
    pub(crate) fn latest<'a>(&'a self, app: &str) -> Vec<&'a Pod> {
        let mut latest: Vec<&Pod> = Vec::new();
        for pod in self.pods.iter().filter(|pod| pod.app == app) {
            latest.retain(|other| other.name != pod.name);
            latest.push(pod);
        }
        latest.retain(|pod| !pod.deleted);
        latest
    }

    pub(crate) fn pod<'a>(&'a self, name: &str) -> Option<&'a Pod> {
        self.pods.iter().rev().find(|pod| pod.name == name)
    }

    /// What was told since `begun` of a scenario's pods in this run, a line each: for whoever looks for
    /// what was wrong.
    pub(crate) fn story(&self, scenario: &str, run: &str, begun: Instant) -> Vec<String> {
        let ours = |pod: &str, at: Instant| {
            at >= begun && pod.starts_with(scenario) && pod.contains(&format!("-{run}"))
        };
        let mut told: Vec<(Instant, String)> = Vec::new();
        for event in self.events.iter().filter(|event| ours(&event.pod, event.at)) {
            let late = event.at.saturating_duration_since(event.happened.1);
            let late = if late.is_zero() { String::new() } else { format!(" ({late:.1?} late)") };
            let said = event.message.trim();
            told.push((event.at, format!("{}: {}{late}: {said}", event.pod, event.reason)));
        }
        let mut last: Option<&Pod> = None;
        for pod in self.pods.iter().filter(|pod| ours(&pod.name, pod.at)) {
            let same = |last: &Pod| last.name == pod.name && last.containers == pod.containers;
            if pod.deleted || !last.is_some_and(same) {
                let mut text =
                    format!("{}:{}", pod.name, if pod.deleted { " deleted" } else { "" });
                for container in &pod.containers {
                    let Container { name, running, started, ready, restarts, .. } = container;
                    let is = [(*running, "running"), (*started, "started"), (*ready, "ready")];
                    let is: Vec<_> =
                        is.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
                    text += &format!(" {name} [{}] restarts {restarts}", is.join(" "));
                }
                told.push((pod.at, text));
            }
            last = Some(pod);
        }
        told.sort_by_key(|(at, _)| *at);
        let line = |(at, text)| {
            let since = Instant::saturating_duration_since(&at, begun).as_secs_f64();
            format!("{since:6.1} s  {text}")
        };
        told.into_iter().map(line).collect()
    }

    pub(crate) fn history<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Pod> {
        self.pods.iter().filter(move |pod| pod.name == name)
    }

    pub(crate) fn events_of<'a>(
        &'a self,
        pod: &str,
        reason: &str,
    ) -> impl DoubleEndedIterator<Item = &'a Event> {
        self.events.iter().filter(move |event| event.pod == pod && event.reason == reason)
    }
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    news: Condvar,
    ending: AtomicBool,
    children: Mutex<Vec<Child>>,
    broken: Mutex<Option<String>>,
    same_clock: AtomicBool,
}

pub(crate) struct Watch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(kubectl: &Kubectl) -> Watch {
        let shared = Arc::new(Shared::default());
        let threads = ["pods", "events"]
            .into_iter()
            .map(|kind| {
                let (kubectl, shared) = (kubectl.clone(), Arc::clone(&shared));
                thread::spawn(move || shared.follow(&kubectl, kind))
            })
            .collect();
        Watch { shared, threads }
    }

    /// The kubelets' clocks show what ours does: how late word of an event comes can be told.
    pub(crate) fn same_clock(&self) {
        self.shared.same_clock.store(true, Ordering::Relaxed);
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.shared.seen)
    }

    /// Returns what `look` finds, looking again at each piece of news; `None` after `limit`.
    pub(crate) fn until<T>(
        &self,
        limit: Duration,
        interrupted: &AtomicBool,
        mut look: impl FnMut(&Seen) -> Option<T>,
    ) -> Result<Option<T>, Stop> {
        // Signals do not wake a thread that waits.
        const LOOK_UP: Duration = Duration::from_millis(200);
        let begun = Instant::now();
        let mut seen = self.seen();
        loop {
            if let Some(found) = look(&seen) {
                return Ok(Some(found));
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            if let Some(why) = lock(&self.shared.broken).clone() {
                return Err(Stop::Failed(why));
            }
            let Some(left) = limit.checked_sub(begun.elapsed()) else { return Ok(None) };
            let waited = self.shared.news.wait_timeout(seen, left.min(LOOK_UP));
            seen = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        for mut child in lock(&self.shared.children).drain(..) {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Shared {
    /// The server ends a watch now and then; then it is asked for again.
    fn follow(&self, kubectl: &Kubectl, kind: &str) {
        let mut failures = 0;
        while !self.ending.load(Ordering::Relaxed) {
            match self.follow_once(kubectl, kind) {
                Ok(()) => failures = 0,
                Err(why) => {
                    failures += 1;
                    if failures > 5 {
                        *lock(&self.broken) = Some(why.to_string());
                        self.news.notify_all();
                        return;
                    }
                }
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn follow_once(&self, kubectl: &Kubectl, kind: &str) -> Result<(), Stop> {
        let arguments = ["get", kind, "--watch", "--output-watch-events", "-o", "json"];
        let mut child = kubectl
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .doing("run kubectl get --watch")?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let id = child.id();
        lock(&self.children).push(child);
        let read = out.map_or(Ok(0), |out| self.read(out, kind));
        let mut said = String::new();
        if let Some(mut err) = err {
            let _unreadable = err.read_to_string(&mut said);
        }
        let mut children = lock(&self.children);
        if let Some(place) = children.iter().position(|child| child.id() == id) {
            let _reaped = children.swap_remove(place).wait();
        }
        match read {
            Ok(0) if !said.is_empty() => Err(Stop::Failed(format!("watch {kind}: {said}"))),
            Ok(_) => Ok(()),
            Err(error) => Err(Stop::Failed(format!("watch {kind}: {error}: {said}"))),
        }
    }

    /// Returns how much was read.
    fn read(&self, out: ChildStdout, kind: &str) -> Result<usize, serde_json::Error> {
        let mut count = 0;
        for told in serde_json::Deserializer::from_reader(BufReader::new(out)).into_iter::<Value>()
        {
            let told = told?;
            let (object, at) = (&told["object"], Instant::now());
            count += 1;
            let mut seen = lock(&self.seen);
            match kind {
                "pods" => seen.pods.push(pod(object, told["type"] == "DELETED", at)),
                _ => {
                    let same_clock = self.same_clock.load(Ordering::Relaxed);
                    let age = same_clock.then(|| age(&object["lastTimestamp"])).flatten();
                    seen.events.push(event(object, at, age.unwrap_or_default()));
                }
            }
            drop(seen);
            self.news.notify_all();
        }
        Ok(count)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn pod(object: &Value, deleted: bool, at: Instant) -> Pod {
    let containers = object["status"]["containerStatuses"].as_array();
    Pod {
        at,
        name: text(&object["metadata"]["name"]),
        app: text(&object["metadata"]["labels"]["app"]),
        deleted,
        ip: text(&object["status"]["podIP"]),
        node_ip: text(&object["status"]["hostIP"]),
        containers: containers.into_iter().flatten().map(container).collect(),
    }
}

fn container(status: &Value) -> Container {
    let id = text(&status["containerID"]);
    Container {
        name: text(&status["name"]),
        id: id.rsplit_once("//").map_or(String::new(), |(_, id)| id.to_owned()),
        running: status["state"]["running"].is_object(),
        started: status["started"] == true,
        ready: status["ready"] == true,
        restarts: status["restartCount"].as_u64().unwrap_or_default(),
        waiting: status["state"]["waiting"]["reason"].as_str().map(str::to_owned),
        last_exit: status["lastState"]["terminated"]["exitCode"].as_i64(),
    }
}

fn event(object: &Value, at: Instant, age: Duration) -> Event {
    let involved = &object["involvedObject"];
    Event {
        at,
        happened: happened(at, age),
        pod: text(&involved["name"]),
        reason: text(&object["reason"]),
        message: text(&object["message"]),
    }
}

/// The resolution of the kubelet's stamps.
const STAMPED: Duration = Duration::from_secs(1);

/// How long ago the second began that a stamp names.
fn age(stamp: &Value) -> Option<Duration> {
    let stamp = humantime::parse_rfc3339(stamp.as_str()?).ok()?;
    SystemTime::now().duration_since(stamp).ok()
}

fn happened(at: Instant, age: Duration) -> (Instant, Instant) {
    match (at.checked_sub(age), age.checked_sub(STAMPED)) {
        (Some(earliest), Some(late)) => (earliest, at.checked_sub(late).unwrap_or(at)),
        _ => (at, at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_late_happened_in_the_second_it_was_stamped_with() {
        let at = Instant::now();
        let soon = Duration::from_millis(900);
        let late = Duration::from_secs(7);
        assert!(age(&"2001-09-09T01:46:40Z".into()) > Some(late));
        assert_eq!(age(&Value::Null), None);
        assert_eq!(happened(at, Duration::ZERO), (at, at));
        assert_eq!(happened(at, soon), (at, at));
        assert_eq!(happened(at, late), (at - late, at - late + STAMPED));
    }
}
