//! What a host does that stops before it starts: how long which start may take, and what serves
//! where the build that was asked for does not. Also what is queued behind a drain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tickmark_activator::gate::{Context, Ended};
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Options};

use crate::basics::Case;
use crate::client::ask;
use crate::site::{PATIENCE, Site, alive, build, host, swap};

pub(crate) const ALL: &[Case] = &[
    ("a_drain_longer_than_the_start_deadline_refuses_no_build", || Box::pin(drains_first())),
    ("what_waits_behind_a_drain_has_its_whole_deadline", || Box::pin(queued())),
    ("after_one_that_was_never_ready_the_last_healthy_build_serves_again", || {
        Box::pin(never_ready())
    }),
    ("after_an_interrupted_start_the_last_healthy_build_serves_again", || Box::pin(interrupted())),
    ("a_request_that_has_ended_ends_no_incumbent", || Box::pin(ended())),
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
    assert!(begun.elapsed() > Duration::from_secs(3), "it drained for longer than a start may take");
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

async fn interrupted() {
    let (site, activator) = stop_start().await;
    let activator = Arc::new(activator);
    let context = Context::new();
    let options = Options { deadline: Some(PATIENCE), context: context.clone() };
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { second.swap(&host(), build("2"), options).await });
    until_state(&activator, "warming").await;
    tokio::task::spawn_blocking(move || context.end(Ended::Cancelled)).await.unwrap();
    let answer = asked.await.unwrap().unwrap();
    assert_eq!(answer.outcome.exit(), 1, "{answer:?}");
    assert!(answer.error.expect("it says what was stopped").is_ended());
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
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

async fn until_state(activator: &Activator, state: &str) {
    let begun = Instant::now();
    loop {
        let status = activator.status(&host()).await.unwrap();
        if status.state == state {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "never {state}: {status:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
