//! How long a start may take, and what is tried again: mostly on a host that stops before it starts,
//! where a build that fails leaves nothing that serves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::gate::{Context, Ended};
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Options};

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{PATIENCE, Site, alive, build, host, kill, swap, until, until_state, within};

pub(crate) const ALL: &[Case] = &[
    ("a_drain_longer_than_the_start_deadline_refuses_no_build", || Box::pin(drains_first())),
    ("what_waits_behind_a_drain_has_its_whole_deadline", || Box::pin(queued())),
    ("after_one_that_was_never_ready_the_last_healthy_build_serves_again", || {
        Box::pin(never_ready())
    }),
    ("after_an_interrupted_drain_the_last_healthy_build_serves_again", || {
        Box::pin(interrupted("clearing", Why::Refused))
    }),
    ("after_an_interrupted_start_the_last_healthy_build_serves_again", || {
        Box::pin(interrupted("warming", Why::NeverReady))
    }),
    ("a_request_that_has_ended_ends_no_incumbent", || Box::pin(ended())),
    ("one_that_was_healthy_and_woken_is_tried_for_ever", || Box::pin(woken())),
    ("a_start_that_a_crash_cut_short_did_not_fail", || Box::pin(cut_short())),
];

/// Longer than a start takes on a busy machine, and shorter than the drain.
const SHORT: &str = "start_deadline = \"3s\"\ndrain = \"4s\"\n";

/// A queue worker that ends by its drain alone, with less time to start.
async fn stubborn(more: &str) -> (Site, Arc<Activator>) {
    let mut site = Site::new();
    site.socket = false;
    site.host = format!("{SHORT}{more}");
    site.stage("1", "ignore-term");
    site.stage("2", "");
    site.stage("3", "");
    let activator = Arc::new(site.open().await);
    let first = activator.swap(&host(), build("1"), Options::default()).await.unwrap();
    assert_eq!(first.outcome.exit(), 0, "{first:?}");
    (site, activator)
}

async fn drains_first() {
    let (site, activator) = stubborn("swap = \"stop-start\"\n").await;
    let begun = Instant::now();
    let answer = activator.swap(&host(), build("2"), Options::default()).await.unwrap();
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(3), "no longer than a start may take: {took:?}");
    assert_eq!(answer.build, Some(build("2")));
    activator.stop(&host()).await.unwrap();
    assert!(alive(&site).is_empty());
}

async fn queued() {
    let (_site, activator) = stubborn("").await;
    let second = Arc::clone(&activator);
    let second =
        tokio::spawn(async move { second.swap(&host(), build("2"), Options::default()).await });
    until_state(&activator, "retiring").await;
    let third = activator.swap(&host(), build("3"), Options::default()).await.unwrap();
    assert_eq!(third.outcome.exit(), 0, "{third:?}");
    assert_eq!(third.build, Some(build("3")));
    assert_eq!(second.await.unwrap().unwrap().outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
}

/// A host that stops first, whose first build serves.
async fn stop_start() -> (Site, Activator) {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\n".to_owned();
    site.stage("1", "");
    site.stage("2", "never-healthy");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    (site, activator)
}

async fn never_ready() {
    let (site, activator) = stop_start().await;
    let options = Options { deadline: Some(Duration::from_millis(500)), ..Options::default() };
    let answer = activator.swap(&host(), build("2"), options).await.unwrap();
    let Outcome::Unchanged { why: Why::NeverReady, .. } = answer.outcome else {
        panic!("{answer:?}");
    };
    let error = answer.error.expect("it says what was not ready").to_string();
    assert!(error.contains("generation 2 was not ready in time"), "{error}");
    assert_eq!(answer.build, Some(build("1")));
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    activator.stop(&host()).await.unwrap();
}

/// The command goes away in `state`, when the incumbent has been told to end.
async fn interrupted(state: &str, why: Why) {
    let mut site = Site::new();
    site.socket = false;
    site.host = "swap = \"stop-start\"\ndrain = \"2s\"\n".to_owned();
    site.stage("1", "ignore-term");
    site.stage("2", "never-healthy");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let context = Context::new();
    let options = Options { deadline: Some(PATIENCE), context: context.clone() };
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { second.swap(&host(), build("2"), options).await });
    until_state(&activator, state).await;
    tokio::task::spawn_blocking(move || context.end(Ended::Cancelled)).await.unwrap();
    let answer = asked.await.unwrap().unwrap();
    let Outcome::Unchanged { why: found, .. } = answer.outcome else { panic!("{answer:?}") };
    assert_eq!((found, answer.build), (why, Some(build("1"))));
    assert!(answer.error.expect("it says what was stopped").is_ended());
    assert_eq!(alive(&site).len(), 1);
    activator.stop(&host()).await.unwrap();
}

async fn ended() {
    let (site, activator) = stop_start().await;
    let before = alive(&site);
    let context = Context::new();
    context.end(Ended::Cancelled);
    let options = Options { deadline: None, context };
    let answer = activator.swap(&host(), build("2"), options).await.unwrap();
    assert_eq!(answer.outcome.exit(), 1, "{answer:?}");
    assert!(answer.error.expect("the refusal is kept").is_ended());
    assert_eq!(alive(&site), before, "the incumbent is the same");
    activator.stop(&host()).await.unwrap();
}

async fn woken() {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\nrestart = { min = \"10ms\", max = \"50ms\" }\n".to_owned();
    let (away, tries) = (site.path().join("away"), site.path().join("tries"));
    let script = format!(
        "#!/bin/sh\nif [ -e {} ]; then echo no >>{}; exit 3; fi\nexec {} service $1\n",
        away.display(),
        tries.display(),
        std::env::current_exe().unwrap().display()
    );
    site.stage_script("1", &script);
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    assert_eq!(activator.wake(&host(), within(20)).await.unwrap().outcome.exit(), 0);
    // What it needs is away when it is started again.
    std::fs::write(&away, "").unwrap();
    let [pid] = alive(&site)[..] else { panic!("one alone runs") };
    kill(pid);
    until("it is tried again and again", || {
        std::fs::read_to_string(&tries).is_ok_and(|tries| tries.lines().count() >= 3)
    })
    .await;
    std::fs::remove_file(&away).unwrap();
    until_state(&activator, "serving").await;
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    let failed = activator.status(&host()).await.unwrap().failed;
    assert!(failed.is_empty(), "it was healthy: {failed:?}");
    activator.stop(&host()).await.unwrap();
}

async fn cut_short() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "trace");
    let (state, away) = (site.state(), site.state().with_extension("away"));
    let moved = (state.clone(), away.clone());
    // As in a crash there: the successor is recorded, and nothing is written from then on.
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = Arc::clone(&armed);
    let crash = move |point: &str| {
        if point == "start" && trigger.swap(false, Ordering::SeqCst) {
            std::fs::rename(&moved.0, &moved.1).unwrap();
        }
    };
    let said = Arc::new(Mutex::new(Vec::new()));
    let activator = site.open_wrapped(move |inner| Watched::around(inner, &said, crash)).await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    armed.store(true, Ordering::SeqCst);
    let answer = swap(&activator, "2").await;
    assert_ne!(answer.outcome.exit(), 0, "{answer:?}");
    activator.close().await;
    let _made_again = std::fs::remove_dir_all(&state);
    std::fs::rename(&away, &state).unwrap();
    let recorded = std::fs::read_to_string(state.join("hosts/orders/state.json")).unwrap();
    assert!(recorded.contains("\"successor\":{\"number\":2"), "{recorded}");

    let next = site.open().await;
    until_state(&next, "serving").await;
    let failed = next.status(&host()).await.unwrap().failed;
    assert!(failed.is_empty(), "it never ran: {failed:?}");
    assert!(!site.path().join("trace").exists());
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    next.stop(&host()).await.unwrap();
}
