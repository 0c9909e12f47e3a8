//! One run: open the cluster, bring the images in, play the scenarios several at once, clean up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::answer::{Doing as _, Report, Stop};
use crate::backend::{self, Cluster, Description};
use crate::broker::{self, Broker};
use crate::clock::Pace;
use crate::images::Images;
use crate::manifest::{self, RUN, SCENARIO};
use crate::options::Options;
use crate::progress::Progress;
use crate::scenarios::{ALL, BY_NAME, Scenario};
use crate::stage::{Case, PATIENCE, Stage, hand};
use crate::watch::Watch;

/// Scenarios at once: they wait more than they work, but a kubelet tells five things a second, and two
/// processors start no more pods than this in time. The longest comes first, and takes as long as all
/// others together.
const JOBS: usize = 4;

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) pace: Pace,
    pub(crate) probe: &'static str,
    pub(crate) cluster: Description,
    pub(crate) took: Duration,
    /// By number.
    pub(crate) answers: Vec<Answer>,
}

pub(crate) struct Answer {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) report: Result<Report, Stop>,
    /// What came late the first time, beside the others; the rest is of the second time, alone.
    pub(crate) first: Option<String>,
}

impl Answer {
    fn is_late(&self) -> bool {
        match &self.report {
            Ok(report) => report.is_late(),
            Err(stop) => matches!(stop, Stop::Late(_)),
        }
    }

    /// What did not hold, in one line.
    pub(crate) fn why(&self) -> String {
        match &self.report {
            Ok(report) if report.lines.is_empty() => "it looked at nothing".to_owned(),
            Ok(report) => {
                let wrong = report.lines.iter().filter(|line| !line.holds).map(|line| {
                    format!("{}: expected {}, observed {}", line.what, line.expected, line.observed)
                });
                wrong.collect::<Vec<_>>().join("; ")
            }
            Err(stop) => stop.to_string(),
        }
    }

    pub(crate) fn word(&self) -> &'static str {
        match &self.report {
            Ok(report) if report.holds() => "pass",
            Err(Stop::Skipped(_)) => "skipped",
            _ => "fail",
        }
    }
}

impl Outcome {
    /// No scenario failed; in CI none was skipped either.
    pub(crate) fn holds(&self) -> bool {
        let strict = std::env::var_os("TICKMARK_NO_SKIPS").is_some();
        self.answers.iter().all(|answer| match answer.word() {
            "pass" => true,
            "skipped" => !strict,
            _ => false,
        })
    }
}

pub(crate) fn run(options: &Options, interrupted: &Arc<AtomicBool>) -> Result<Outcome, Stop> {
    let begun = Instant::now();
    let progress = Progress::new();
    let images = Images::open(&options.images)?;
    let run = run_name()?;
    let chosen: Vec<&'static Scenario> = ALL
        .iter()
        .filter(|one| match options.scenarios[..] {
            [] => one.number != BY_NAME,
            _ => options.scenarios.contains(&one.number),
        })
        .collect();
    progress.say("opens the cluster");
    let mut cluster = Cluster::open(&options.target, &run)?;
    let played = play(options, interrupted, progress, &cluster, images, &run, &chosen);
    eprintln!("cleans up");
    let left = cluster.close();
    for left in &left {
        eprintln!("left behind: {left}");
    }
    let (description, mut answers) = played?;
    answers.sort_by_key(|answer| answer.number);
    if !left.is_empty() {
        return Err(Stop::failed("not everything could be deleted"));
    }
    if interrupted.load(Ordering::Relaxed) {
        return Err(Stop::Interrupted);
    }
    Ok(Outcome {
        pace: options.pace,
        probe: options.probe.name,
        cluster: description,
        took: begun.elapsed(),
        answers,
    })
}

/// Unlike that of any other run in the same namespace.
fn run_name() -> Result<String, Stop> {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").doing("make a name")?;
    Ok(uuid.chars().take(4).collect())
}

fn play(
    options: &Options,
    interrupted: &Arc<AtomicBool>,
    progress: Progress,
    cluster: &Cluster,
    images: Images,
    run: &str,
    chosen: &[&'static Scenario],
) -> Result<(Description, Vec<Answer>), Stop> {
    let description = cluster.describe()?;
    progress.say("brings the images in");
    cluster.load(&images)?;
    let watch = Watch::start(&cluster.kubectl);
    progress.say("waits for the node's hand");
    let mut hands = manifest::parse(include_str!("../manifests/node.yaml"))?;
    let app = hand(run);
    manifest::rename(&mut hands, &app, run);
    manifest::merge(&mut hands["spec"]["template"]["spec"], &manifest::pod()?);
    hands["spec"]["template"]["spec"]["containers"][0]["image"] = json!(images.reference("node")?);
    cluster.kubectl.apply(&hands)?;
    let there = watch.until(PATIENCE, interrupted, |seen| {
        let pods = seen.latest(&app);
        let all = pods.iter().all(|pod| pod.container("node").is_some_and(|it| it.running));
        (!pods.is_empty() && all).then_some(())
    })?;
    there.ok_or_else(|| {
        Stop::failed(format!(
            "the pods of {app} do not run: are the images in the cluster? See --load"
        ))
    })?;
    if Stage::same_clock(&cluster.kubectl, &watch, &app)? {
        watch.same_clock();
    }
    let host = match options.host {
        Some(host) => Ok(host),
        None => Stage::find_host(&cluster.kubectl, &watch, &app),
    };
    let broker = match (&host, broker::missing()) {
        _ if !chosen.iter().any(|one| one.consumes || [4, 5].contains(&one.number)) => {
            Err(Stop::failed("no scenario wanted a broker"))
        }
        (Err(stop), _) => Err(stop.clone()),
        (_, Some(reason)) => Err(Stop::Skipped(reason)),
        (Ok(host), None) => {
            progress.say("starts the broker");
            let hosts: Vec<String> = ALL
                .iter()
                .flat_map(|one| [false, true].map(|again| Stage::virtual_host(one.number, again)))
                .collect();
            Broker::start(*host, &hosts, interrupted)
        }
    };
    let stage = Stage {
        kubectl: cluster.kubectl.clone(),
        watch,
        images,
        run: run.to_owned(),
        pace: options.pace,
        probe: options.probe,
        broker,
        interrupted: Arc::clone(interrupted),
        progress,
    };
    let measures = chosen.iter().any(|one| one.number == BY_NAME);
    let jobs = options.jobs.unwrap_or(if measures { 1 } else { JOBS });
    let mut answers = all(&stage, chosen, jobs);
    if jobs > 1 {
        once_more(&stage, chosen, &mut answers);
    }
    Ok((description, answers))
}

/// Times are those of a node that does nothing else: what came late beside the others is measured again,
/// alone. Nothing else that did not hold is given a second chance.
fn once_more(stage: &Stage, chosen: &[&'static Scenario], answers: &mut [Answer]) {
    for answer in answers.iter_mut().filter(|answer| answer.is_late()) {
        if let Some(scenario) = chosen.iter().find(|one| one.number == answer.number) {
            stage.progress.say(&format!("{}: played once more, alone", scenario.number));
            let first = answer.why();
            *answer = Answer { first: Some(first), ..one(stage, scenario, true) };
        }
    }
}

/// Plays them, `jobs` at once.
fn all(stage: &Stage, chosen: &[&'static Scenario], jobs: usize) -> Vec<Answer> {
    let waiting: Mutex<VecDeque<&Scenario>> = Mutex::new(chosen.iter().copied().collect());
    let answers = Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let drawing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                stage.progress.draw();
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let players: Vec<_> = (0..jobs)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(scenario) = next(&waiting) {
                        let answer = one(stage, scenario, false);
                        answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                    }
                })
            })
            .collect();
        for player in players {
            let _answered = player.join();
        }
        over.store(true, Ordering::Relaxed);
        let _drawn = drawing.join();
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn next<'a>(waiting: &Mutex<VecDeque<&'a Scenario>>) -> Option<&'a Scenario> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

fn one(stage: &Stage, scenario: &Scenario, again: bool) -> Answer {
    let case = Case { stage, number: scenario.number, again };
    let begun = Instant::now();
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if stage.interrupted.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted);
        }
        (scenario.run)(&case)
    }));
    let report = played.unwrap_or_else(|_| Err(Stop::failed("the scenario panicked")));
    // Its pods take processor time from those that are still measured.
    let label = format!("{RUN}={},{SCENARIO}={}", stage.run, scenario.number);
    let _cleaned_up_again_at_the_end = backend::delete(&stage.kubectl, &label, false);
    let answer = Answer {
        number: scenario.number,
        name: scenario.name,
        took: begun.elapsed(),
        report,
        first: None,
    };
    if answer.word() == "fail" {
        let story = stage.watch.seen().story(&case.virtual_host(), &stage.run, begun);
        eprintln!("what the API server told of scenario {}:", scenario.number);
        for line in story {
            eprintln!("  {line}");
        }
    }
    stage.progress.done(
        scenario.number,
        &match &answer.report {
            Err(stop) => format!("{}: {stop}", answer.word()),
            Ok(_) => answer.word().to_owned(),
        },
    );
    answer
}
