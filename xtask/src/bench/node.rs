//! `cargo xtask bench node`: what probes cost a node. The same pods without a probe, with exec and with
//! httpGet, in turns; the node's busy time from its `/proc/stat`, and the calls as the kubelet counts
//! them.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PERIOD_SECONDS, PODS};
use crate::outcome::{Doing as _, Failure};
use crate::verify::images;
use crate::workspace::build_directory;

const HELP: &str = "\
cargo xtask bench node --context NAME --namespace NAMESPACE [FLAG]...

Measures what liveness probes cost a node of a real cluster: the same pods without a probe, with exec
and with httpGet, one after the other and again, each probed every second. Busy time is the node's, from
/proc/stat, so the node should do nothing else; how far the rounds are apart is printed beside it.
All pods go to one node. The namespace must not be there yet; it is made, and deleted at the end.

  --context NAME    a context of the kubeconfig, of a cluster that can be thrown away
  --namespace NS    where the pods go
  --load COMMAND    how an image archive gets into the cluster; {} stands for the file. Without it the
                    image is taken to be there
  --node NAME       the node [the first that is ready]
  --pods N          how many [15]
  --seconds N       how long each is watched [30]
  --rounds N        how often [3]
";

/// After the pods are there: until what their start set off is over, and their second tick, which is the
/// first that finds the consumers, has left a mark.
const SETTLE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(180);

const MODES: [&str; 3] = ["none", "exec", "httpGet"];

struct Options {
    context: String,
    namespace: String,
    load: Option<String>,
    node: Option<String>,
    pods: u32,
    window: Duration,
    rounds: u32,
}

pub(super) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let (mut context, mut namespace, mut load, mut node) = (None, None, None, None);
    let (mut pods, mut seconds, mut rounds) = (15, 30, 3);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("context") => context = Some(arguments.value()?.string()?),
            Long("namespace") => namespace = Some(arguments.value()?.string()?),
            Long("load") => load = Some(arguments.value()?.string()?),
            Long("node") => node = Some(arguments.value()?.string()?),
            Long("pods") => pods = number(&arguments.value()?.string()?, 1)?,
            Long("seconds") => seconds = number(&arguments.value()?.string()?, 5)?,
            Long("rounds") => rounds = number(&arguments.value()?.string()?, 1)?,
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    let missing = |flag: &str| Failure::usage(format!("{flag} is missing\n\n{HELP}"));
    run(&Options {
        context: context.ok_or_else(|| missing("--context"))?,
        namespace: namespace.ok_or_else(|| missing("--namespace"))?,
        load,
        node,
        pods,
        window: Duration::from_secs(seconds.into()),
        rounds,
    })
}

fn number(text: &str, least: u32) -> Result<u32, Failure> {
    text.parse()
        .ok()
        .filter(|&number| number >= least)
        .ok_or_else(|| Failure::usage(format!("{text}: expected a number from {least} on")))
}

fn run(options: &Options) -> Result<(), Failure> {
    let archive = build_directory("bench").join("bench-node.tar");
    std::fs::create_dir_all(build_directory("bench")).doing("make a directory for the image")?;
    let image = images::write_for_bench(&archive)?;
    if let Some(load) = &options.load {
        let command = load.replace("{}", &archive.display().to_string());
        let status = Command::new("sh").args(["-c", &command]).status().doing("run sh")?;
        if !status.success() {
            return Err(Failure::failed(format!("{command}: {status}")));
        }
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).doing("handle signals")?;
    }
    let cluster = Cluster { options, image, interrupted };
    let node = cluster.node()?;
    // Fails if it is there: what is in it is not ours to delete.
    cluster.kubectl(&["create", "namespace", &options.namespace], None)?;
    let measured = cluster.measure(&node);
    let deleted =
        cluster.kubectl(&["delete", "namespace", &options.namespace, "--wait=true"], None);
    let rounds = measured?;
    deleted?;
    report(options, &node, &rounds);
    Ok(())
}

/// What one mode cost in one round.
#[derive(Debug, Clone, Copy)]
struct Measured {
    busy: Duration,
    took: Duration,
    calls: u64,
}

/// What the kubelet has counted.
#[derive(Debug, Clone, Copy)]
struct Calls {
    made: u64,
    failed: u64,
}

struct Cluster<'a> {
    options: &'a Options,
    image: String,
    interrupted: Arc<AtomicBool>,
}

impl Cluster<'_> {
    /// Always with the context that was named.
    fn kubectl(&self, arguments: &[&str], input: Option<&Value>) -> Result<String, Failure> {
        let mut command = Command::new("kubectl");
        command.arg("--context").arg(&self.options.context);
        command.args(["--namespace", &self.options.namespace]).args(arguments);
        let what = || format!("kubectl {}", arguments.join(" "));
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .doing(format_args!("run {}", what()))?;
        if let (Some(input), Some(stdin)) = (input, child.stdin.take()) {
            serde_json::to_writer(stdin, input).doing("give kubectl its input")?;
        }
        let output = child.wait_with_output().doing(format_args!("run {}", what()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Failure::failed(format!("{}: {}", what(), said.trim())))
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, Failure> {
        let text = self.kubectl(&[arguments, &["-o", "json"]].concat(), None)?;
        serde_json::from_str(&text).doing("read what kubectl printed")
    }

    fn node(&self) -> Result<String, Failure> {
        if let Some(node) = &self.options.node {
            return Ok(node.clone());
        }
        let nodes = self.json(&["get", "nodes"])?;
        let ready = nodes["items"].as_array().into_iter().flatten().find(|node| {
            let conditions = node["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        let name = ready.and_then(|node| node["metadata"]["name"].as_str());
        name.map(String::from)
            .ok_or_else(|| Failure::failed("the cluster has no node that is ready"))
    }

    fn measure(&self, node: &str) -> Result<Vec<[Measured; 3]>, Failure> {
        let reader = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "reader" },
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "containers": [{ "name": "reader", "image": self.image, "command": ["/node", "wait"] }],
            },
        });
        self.kubectl(&["apply", "-f", "-"], Some(&reader))?;
        self.until_running("", 1)?;
        let mut rounds = Vec::new();
        for round in 1..=self.options.rounds {
            let mut measured = Vec::new();
            for mode in MODES {
                println!("round {round} of {}: {mode}", self.options.rounds);
                measured.push(self.measure_mode(node, mode)?);
            }
            let [none, exec, http] = measured[..] else { continue };
            rounds.push([none, exec, http]);
        }
        Ok(rounds)
    }

    fn measure_mode(&self, node: &str, mode: &str) -> Result<Measured, Failure> {
        self.kubectl(&["apply", "-f", "-"], Some(&self.deployment(node, mode)))?;
        self.until_running("-l=app=probed", self.options.pods)?;
        self.pause(SETTLE)?;
        let (before, calls_before) = (self.busy()?, self.calls(node)?);
        let began = Instant::now();
        self.pause(self.options.window)?;
        let (after, took) = (self.busy()?, began.elapsed());
        let calls_after = self.calls(node)?;
        let calls = calls_after.made - calls_before.made;
        // One that failed would be another path than the one that is measured.
        if calls_after.failed != calls_before.failed {
            return Err(Failure::failed(format!(
                "{} probes failed while they were counted, with {mode}",
                calls_after.failed - calls_before.failed
            )));
        }
        self.kubectl(&["delete", "deployment", "probed", "--wait=true"], None)?;
        // The pods outlive it for a moment.
        let gone = "--for=delete";
        self.kubectl(&["wait", gone, "pod", "-l=app=probed", "--timeout=120s"], None)?;
        if (calls == 0) != (mode == "none") {
            return Err(Failure::failed(format!("the kubelet counts {calls} calls with {mode}")));
        }
        Ok(Measured { busy: after.saturating_sub(before), took, calls })
    }

    fn deployment(&self, node: &str, mode: &str) -> Value {
        let mut container = json!({
            "name": "worker", "image": self.image,
            "env": [
                { "name": "TICKMARK_DIR", "value": "/run/tickmark" },
                { "name": "TICKMARK_SERVE", "value": "0.0.0.0:8086" },
            ],
            "volumeMounts": [{ "name": "marks", "mountPath": "/run/tickmark" }],
        });
        let asked = match mode {
            "exec" => json!({ "exec": { "command": ["/tickmark-probe"] } }),
            _ => json!({ "httpGet": { "path": "/livez", "port": 8086 } }),
        };
        if mode != "none" {
            container["livenessProbe"] = asked;
            container["livenessProbe"]["periodSeconds"] = json!(1);
            container["livenessProbe"]["timeoutSeconds"] = json!(10);
            container["livenessProbe"]["failureThreshold"] = json!(1000);
        }
        let labels = json!({ "app": "probed" });
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "probed" },
            "spec": {
                "replicas": self.options.pods,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "nodeName": node, "terminationGracePeriodSeconds": 1,
                        "automountServiceAccountToken": false,
                        "containers": [container],
                        "volumes": [
                            { "name": "marks", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
                        ],
                    },
                },
            },
        })
    }

    fn until_running(&self, selector: &str, count: u32) -> Result<(), Failure> {
        let began = Instant::now();
        let arguments: Vec<&str> =
            ["get", "pods", selector].into_iter().filter(|word| !word.is_empty()).collect();
        loop {
            let pods = self.json(&arguments)?;
            let running = pods["items"].as_array().into_iter().flatten().filter(|pod| {
                pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            if running.count() >= count as usize {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(Failure::failed(format!(
                    "{count} pods do not run after {} s: kubectl describe pods tells why, or --load",
                    PATIENCE.as_secs()
                )));
            }
            self.pause(Duration::from_secs(1))?;
        }
    }

    /// What the node's processors did so far.
    fn busy(&self) -> Result<Duration, Failure> {
        let said = self.kubectl(&["exec", "reader", "--", "/node", "busy"], None)?;
        let numbers: Vec<f64> =
            said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [ticks, hertz] if hertz > 0.0 => Ok(Duration::from_secs_f64(ticks / hertz)),
            _ => Err(Failure::failed(format!("the reader said {said:?}"))),
        }
    }

    /// The calls that the kubelet has made so far in this namespace.
    fn calls(&self, node: &str) -> Result<Calls, Failure> {
        let path = format!("/api/v1/nodes/{node}/proxy/metrics/probes");
        let text = self.kubectl(&["get", "--raw", &path], None)?;
        let namespace = format!("namespace=\"{}\"", self.options.namespace);
        let mut calls = Calls { made: 0, failed: 0 };
        for line in text.lines() {
            if !line.starts_with("prober_probe_total{") || !line.contains(&namespace) {
                continue;
            }
            let count = line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok());
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let count = count.unwrap_or_default() as u64;
            calls.made += count;
            if !line.contains("result=\"successful\"") {
                calls.failed += count;
            }
        }
        Ok(calls)
    }

    fn pause(&self, time: Duration) -> Result<(), Failure> {
        let began = Instant::now();
        while began.elapsed() < time {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Failure::failed("interrupted"));
            }
            thread::sleep(Duration::from_millis(100).min(time));
        }
        Ok(())
    }
}

/// Cores that a mode kept busy.
fn cores(measured: Measured) -> f64 {
    measured.busy.as_secs_f64() / measured.took.as_secs_f64()
}

fn report(options: &Options, node: &str, rounds: &[[Measured; 3]]) {
    println!(
        "\nnode {node}, {} pods, each probed every second for {} s, {} rounds\n",
        options.pods,
        options.window.as_secs(),
        rounds.len()
    );
    println!(
        "| probe | calls | node's busy cores, each round | ms per call: median, least to most | of a core, {PODS:.0} pods every {PERIOD_SECONDS:.0} s |"
    );
    println!("|---|---:|---|---|---:|");
    for (number, mode) in MODES.into_iter().enumerate() {
        let busy: Vec<String> =
            rounds.iter().map(|round| format!("{:.3}", cores(round[number]))).collect();
        let calls: u64 = rounds.iter().map(|round| round[number].calls).sum();
        if number == 0 {
            println!("| {mode} | 0 | {} | | |", busy.join(", "));
            continue;
        }
        let mut each: Vec<f64> = rounds
            .iter()
            .map(|round| {
                let measured = round[number];
                #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
                let a_second = measured.calls as f64 / measured.took.as_secs_f64();
                (cores(measured) - cores(round[0])) * 1e3 / a_second
            })
            .collect();
        each.sort_by(f64::total_cmp);
        let median = each[each.len() / 2];
        println!(
            "| {mode} | {calls} | {} | {median:.1}, {:.1} to {:.1} | {:.1} % |",
            busy.join(", "),
            each[0],
            each[each.len() - 1],
            median * PODS / PERIOD_SECONDS / 10.0
        );
    }
}
