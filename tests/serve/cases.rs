//! The cases: each a name, whether it needs Prometheus, and what is done.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::prometheus::Prometheus;
use crate::worker::{Container, fresh_address, get, send, until};

type Case = (&'static str, bool, fn());

pub(crate) const ALL: &[Case] = &[
    ("the_probes_text", false, the_probes_text),
    ("another_takes_over", false, another_takes_over),
    ("stopped_and_continued", false, stopped_and_continued),
    ("two_containers_and_one_port", false, two_containers_and_one_port),
    ("metrics_are_well_formed", true, metrics_are_well_formed),
    ("dashboard_and_rules", true, dashboard_and_rules),
];

/// A tick of the workers here.
const TICK: Duration = Duration::from_secs(1);

/// `/livez` and `/explain` beside the probe in each state.
fn the_probes_text() {
    let container = Container::new(fresh_address(), 3);
    let worker = container.start(&["--slots=2", "--start-delay=held", "--drain=never"]);
    let not_started = container.wait_for(503);
    let same = |state: &str| {
        let mut compared = (String::new(), String::new());
        // An age may pass a second, or a mark come, between the two.
        until(&format!("the same answers, {state}"), || {
            let (line, healthy) = container.probe(&[]);
            let (status, body) = container.get("/livez");
            let (json, _) = container.probe(&["--json"]);
            let (explained_status, explained) = container.get("/explain");
            compared = (without_ages(&json), without_ages(&explained));
            (line == body && compared.0 == compared.1)
                && (status == 200) == healthy
                && explained_status == status
        });
        assert!(compared.0.contains(r#""verdict""#), "{compared:?}");
        container.get("/livez").1
    };
    assert!(not_started.ends_with('\n'));
    assert_eq!(same("not started"), "worker-0 missing; worker-1 missing\n");
    worker.signal(Signal::USR2);
    container.wait_for(200);
    assert_eq!(same("healthy"), "2 process(es) healthy\n");
    // Slot 0 loses a consumer.
    worker.signal(Signal::USR1);
    let stale = container.wait_for(503);
    assert!(stale.starts_with("worker-0 stale ") && stale.ends_with("s > 3s\n"), "{stale}");
    same("stale");
    worker.signal(Signal::USR2);
    container.wait_for(200);
    // What the probe reads it reads too: a damaged header, a mark that is no file.
    for (file, spoiled) in [("expected", "x"), ("generation", "x"), ("topology-unsafe", "")] {
        let file = container.marks().join(file);
        fs::write(&file, spoiled).expect("a spoiled file");
        // The worker mends the first two within a tick, so the texts are compared, not waited for.
        same("spoiled");
        let _mended = fs::remove_file(file);
    }
}

/// One line of JSON without what changes from one moment to the next.
fn without_ages(json: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(json) else { return json.to_owned() };
    for slot in value["slots"].as_array_mut().into_iter().flatten() {
        if let Some(slot) = slot.as_object_mut() {
            slot.remove("age_ms");
            slot.remove("problem");
        }
    }
    if let Some(object) = value.as_object_mut()
        && object["healthy"] == false
    {
        object.remove("verdict");
        object.insert("verdict".into(), Value::Null);
    }
    value.to_string()
}

/// The process that serves is killed; another does within a tick, and nobody makes noise.
fn another_takes_over() {
    let container = Container::new(fresh_address(), 10);
    let worker = container.start(&["--slots=3", "--drain=never"]);
    container.wait_for(200);
    let mut gaps = Vec::new();
    for kills in 1..=3 {
        let (_, pid) = worker.serving();
        send(pid, Signal::KILL);
        let killed = Instant::now();
        worker.wait_to_say("serving /livez", kills + 1);
        gaps.push(killed.elapsed());
        // The slot comes back into its own file; its mark is younger than the limit all along.
        assert_eq!(container.wait_for(200), "3 process(es) healthy\n");
    }
    // What comes on top is the machine's: the tests run beside each other.
    assert!(gaps.iter().all(|gap| *gap < TICK + Duration::from_secs(2)), "{gaps:?}");
    let serving = worker.said("serving /livez");
    assert_eq!(serving.len(), 4, "{serving:?}");
    assert_eq!(worker.said("cannot serve"), [""; 0]);
    assert_eq!(worker.said("ERROR"), [""; 0]);
}

/// Stopped, it holds the port and answers nobody; continued, it tells the truth at once.
fn stopped_and_continued() {
    let container = Container::new(fresh_address(), 2);
    let worker = container.start(&["--drain=never"]);
    container.wait_for(200);
    worker.signal(Signal::STOP);
    // The thread that answers may run on for a moment on another processor.
    until("every thread stopped", || worker.is_stopped());
    let unanswered = container.try_get("/livez", TICK).expect_err("no answer while stopped");
    assert!(
        matches!(unanswered.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
        "{unanswered}"
    );
    until("a stale mark", || container.probe(&[]).0.starts_with("worker-0 stale "));
    worker.signal(Signal::CONT);
    container.wait_for(200);
}

/// Two containers of a pod share their ports: the second is loud once, works on, and takes the port
/// when it is free.
fn two_containers_and_one_port() {
    let address = fresh_address();
    let (first, second) = (Container::new(address, 10), Container::new(address, 10));
    let has_it = first.start(&["--drain=never"]);
    first.wait_for(200);
    let lacks_it = second.start(&["--slots=2", "--drain=never"]);
    let said = "something else has the port, and it is no process of this container";
    lacks_it.wait_to_say(said, 2);
    thread::sleep(TICK * 4);
    let errors = lacks_it.said("ERROR");
    assert_eq!(errors.len(), 2, "one of each process: {errors:?}");
    assert!(errors.iter().all(|line| line.contains(&format!("cannot serve on {address}: "))));
    assert_eq!(second.probe(&[]), ("2 process(es) healthy\n".to_owned(), true));
    assert_eq!(has_it.said("ERROR"), [""; 0]);
    drop(has_it);
    lacks_it.wait_to_say("serving /livez", 1);
    assert_eq!(second.wait_for(200), "2 process(es) healthy\n");
}

/// By promtool, and by what OpenMetrics asks beyond it.
fn metrics_are_well_formed() {
    let container = Container::new(fresh_address(), 10);
    let worker = container.start(&["--slots=2", "--drain=never"]);
    container.wait_for(200);
    for state in ["healthy", "draining", "nothing there"] {
        match state {
            "draining" => {
                worker.signal(Signal::TERM);
                until("a drain", || container.get("/metrics").1.contains("grace_left_seconds{"));
            }
            "nothing there" => {
                fs::remove_file(container.marks().join("worker-1")).expect("a mark");
                fs::write(container.marks().join("worker-0"), "x").expect("a spoiled mark");
            }
            _ => {}
        }
        let (status, head, body) =
            get(container.address, "/metrics", Duration::from_secs(5)).expect("metrics");
        assert_eq!(status, 200);
        let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
        assert!(head.contains(kind), "{head}");
        check_openmetrics(&body);
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool");
        promtool.stdin.take().expect("its input").write_all(body.as_bytes()).expect("a pipe");
        let output = promtool.wait_with_output().expect("promtool");
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.is_empty(), "{state}: {said}\n{body}");
    }
}

/// Each family once, its metadata before its samples, its unit at the end of its name, and the end.
fn check_openmetrics(body: &str) {
    let (lines, end) = body.split_at(body.len() - "# EOF\n".len());
    assert_eq!(end, "# EOF\n");
    let mut families = BTreeSet::new();
    let mut samples = BTreeSet::new();
    let mut family = "";
    for line in lines.lines() {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("#"), Some("TYPE"), Some(name)) => {
                assert!(families.insert(name), "twice: {line}");
                assert!(line.ends_with(" gauge"), "{line}");
                family = name;
            }
            (Some("#"), Some("UNIT"), Some(name)) => {
                assert_eq!(name, family);
                let unit = words.next().expect("a unit");
                assert!(name.ends_with(&format!("_{unit}")), "{line}");
            }
            (Some("#"), Some("HELP"), Some(name)) => assert_eq!(name, family),
            _ => {
                let (series, value) = line.rsplit_once(' ').expect("a sample");
                assert_eq!(series.split('{').next(), Some(family), "{line}");
                assert!(samples.insert(series), "twice: {line}");
                assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            }
        }
    }
    assert!(families.len() > 10 && samples.len() > 10, "{body}");
}

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

/// Every query of every panel, and every rule, by a real Prometheus that scrapes the demo worker.
fn dashboard_and_rules() {
    let container = Container::new(fresh_address(), 4);
    let worker = container.start(&["--slots=2", "--drain=never"]);
    container.wait_for(200);
    let rules = document("alerts/worker.rules.yml");
    let prometheus = Prometheus::start(container.address, &[rules]);
    until("a scrape", || !prometheus.query("tickmark_build_info").is_empty());
    assert_eq!(value(&prometheus.query("up{job=\"orders-worker\"}")), Some("1".into()));
    // Drains for ever: the grace is only told then.
    worker.signal(Signal::TERM);
    until("a drain", || !prometheus.query("tickmark_shutdown_grace_left_seconds").is_empty());

    let text = fs::read_to_string(document("dashboards/tickmark.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{}", panel["title"]);
        for target in targets {
            let query = target["expr"].as_str().expect("a query");
            // As Grafana puts in "All".
            let query = query.replace("$job", ".+").replace("$instance", ".+");
            assert!(!query.contains('$'), "{query}");
            assert!(!prometheus.query(&query).is_empty(), "{}: {query}", panel["title"]);
            asked.extend(names(&query));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        if variable["type"] == "query" {
            let query = variable["definition"].as_str().expect("a query");
            let metric = query.trim_start_matches("label_values(");
            let (metric, label) = metric.trim_end_matches(')').rsplit_once(", ").expect("a label");
            let found = prometheus.query(&metric.replace("$job", ".+"));
            assert!(found.iter().any(|series| series["metric"][label].is_string()), "{query}");
        }
    }
    // What the worker exports and the dashboard shows are the same; and each rule was evaluated.
    let exported: BTreeSet<String> = container
        .get("/metrics")
        .1
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(String::from))
        .collect();
    asked.remove("up");
    assert_eq!(asked, exported);
    until("an evaluation of each rule", || {
        let groups = prometheus.api("/api/v1/rules")["groups"].clone();
        let rules: Vec<&Value> = groups
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        for rule in &rules {
            let used = names(rule["query"].as_str().unwrap_or_default());
            assert!(used.iter().all(|name| name == "up" || exported.contains(name)), "{used:?}");
        }
        rules.len() >= 6 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    // The worker is stale once its grace is over; a rule sees it.
    drop(worker);
    until("a worker that does not answer", || {
        prometheus.api("/api/v1/alerts")["alerts"].as_array().is_some_and(|alerts| {
            alerts.iter().any(|alert| alert["labels"]["alertname"] == "WorkerNotAnswering")
        })
    });
}

fn value(series: &[Value]) -> Option<String> {
    series.first()?["value"][1].as_str().map(String::from)
}

/// The metrics that a query names.
fn names(query: &str) -> BTreeSet<String> {
    query
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("tickmark_") || *word == "up")
        .map(String::from)
        .collect()
}
