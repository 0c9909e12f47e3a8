//! A hold: it pins what serves, never what was only asked for.

use std::sync::Arc;

use tickmark_activator::gate::{Context, Ended};
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Answer, Options};
use tokio::task::JoinHandle;

use crate::basics::Case;
use crate::client::ask;
use crate::site::{Site, alive, build, host, swap, until, until_state, within};

pub(crate) const ALL: &[Case] = &[
    ("a_hold_whose_build_fails_leaves_the_host_as_it_was_held", || Box::pin(fails())),
    ("a_hold_takes_the_place_of_a_swap_that_warms", || Box::pin(supersedes())),
    ("a_swap_that_waited_while_the_host_was_held_is_refused", || Box::pin(waited())),
    ("a_release_is_no_stop", || Box::pin(released())),
    ("a_hold_of_the_build_that_is_on_its_way_pins_it_without_another_generation", || {
        Box::pin(on_its_way())
    }),
    ("a_hold_of_a_build_on_its_way_fails_with_it", || Box::pin(fails_with_it())),
    ("a_hold_of_a_build_on_its_way_outlives_the_request_that_brings_it", || Box::pin(outlives())),
];

async fn held(activator: &Activator) -> Option<String> {
    let status = activator.status(&host()).await.unwrap();
    status.hold.map(|build| build.to_string())
}

async fn fails() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    site.stage("bad", "die-at-once");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let answer = activator.hold(&host(), build("bad"), within(20)).await.unwrap();
    assert_eq!(answer.outcome.exit(), 1, "{answer:?}");
    assert_eq!(held(&activator).await, None);
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0, "nothing is held");
    // One that is held stays so.
    let answer = activator.hold(&host(), build("2"), within(20)).await.unwrap();
    assert_eq!((answer.outcome.exit(), answer.outcome.serves().unwrap().get()), (0, 3));
    assert_eq!(held(&activator).await.as_deref(), Some("2"));
    let answer = activator.hold(&host(), build("bad"), within(20)).await.unwrap();
    assert_eq!(answer.outcome.exit(), 1, "{answer:?}");
    assert_eq!(held(&activator).await.as_deref(), Some("2"));
    activator.stop(&host()).await.unwrap();
}

async fn supersedes() {
    let site = Site::new();
    site.stage("a", "");
    site.stage("b", "healthy-after-1000");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "a").await.outcome.exit(), 0);
    let second = Arc::clone(&activator);
    let b = tokio::spawn(async move { swap(&second, "b").await });
    until("the swap warms", || alive(&site).len() == 2).await;
    let answer = activator.hold(&host(), build("a"), within(20)).await.unwrap();
    assert_eq!((answer.outcome.exit(), answer.build), (0, Some(build("a"))));
    let b = b.await.unwrap();
    assert!(matches!(b.outcome, Outcome::Unchanged { why: Why::Superseded, .. }), "{b:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "a");
    assert_eq!(held(&activator).await.as_deref(), Some("a"));
    activator.stop(&host()).await.unwrap();
}

async fn waited() {
    let mut site = Site::new();
    site.socket = false;
    site.host = "drain = \"500ms\"\n".to_owned();
    site.stage("1", "ignore-term");
    site.stage("2", "");
    site.stage("3", "");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let second = Arc::clone(&activator);
    let hold =
        tokio::spawn(async move { second.hold(&host(), build("2"), within(20)).await.unwrap() });
    // It is not held before the old one has drained.
    let mut serves = None;
    while serves != Some(2) {
        let status = activator.status(&host()).await.unwrap();
        serves = status.serves.map(|number| number.get());
        tokio::task::yield_now().await;
    }
    let third = swap(&activator, "3").await;
    assert_eq!(hold.await.unwrap().outcome.exit(), 0);
    assert_eq!(third.outcome.exit(), 1, "{third:?}");
    assert!(third.error.unwrap().to_string().contains("held at 2"));
    assert_eq!(held(&activator).await.as_deref(), Some("2"));
    activator.stop(&host()).await.unwrap();
}

async fn released() {
    let site = Site::new();
    site.stage("1", "healthy-after-1000");
    let activator = Arc::new(site.open().await);
    assert_eq!(activator.release(&host()).await.unwrap(), None, "it was not held");
    let first = Arc::clone(&activator);
    let hold =
        tokio::spawn(async move { first.hold(&host(), build("1"), within(20)).await.unwrap() });
    until("the first start warms", || alive(&site).len() == 1).await;
    assert_eq!(activator.release(&host()).await.unwrap(), None, "it is not held yet");
    assert_eq!(hold.await.unwrap().outcome.exit(), 0);
    assert_eq!(held(&activator).await, None, "and was released before it was");
    let answer = activator.hold(&host(), build("1"), within(20)).await.unwrap();
    assert_eq!((answer.outcome.exit(), answer.outcome.serves().unwrap().get()), (0, 1));
    assert_eq!(activator.release(&host()).await.unwrap(), Some(build("1")));
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    activator.stop(&host()).await.unwrap();
}

/// A swap to the second build that warms, while the first serves.
async fn warming(fault: &str, options: Options) -> (Site, Arc<Activator>, JoinHandle<Answer>) {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", fault);
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let second = Arc::clone(&activator);
    let asked =
        tokio::spawn(async move { second.swap(&host(), build("2"), options).await.unwrap() });
    until_state(&activator, "warming").await;
    (site, activator, asked)
}

async fn on_its_way() {
    let (site, activator, asked) = warming("healthy-after-1000", within(20)).await;
    let answer = activator.hold(&host(), build("2"), within(20)).await.unwrap();
    let swapped = asked.await.unwrap();
    for answer in [&answer, &swapped] {
        assert_eq!((answer.outcome.exit(), &answer.build), (0, &Some(build("2"))), "{answer:?}");
        assert_eq!(answer.outcome.serves().unwrap().get(), 2, "{answer:?}");
    }
    assert_eq!(held(&activator).await.as_deref(), Some("2"));
    assert_eq!(ask(&site.socket(), 1).unwrap().generation, 2);
    activator.stop(&host()).await.unwrap();
}

async fn fails_with_it() {
    let (site, activator, asked) = warming("die-after-1000-never-healthy", within(20)).await;
    let answer = activator.hold(&host(), build("2"), within(20)).await.unwrap();
    let swapped = asked.await.unwrap();
    assert_eq!(answer.outcome, swapped.outcome);
    assert!(matches!(answer.outcome, Outcome::Unchanged { why: Why::Died, .. }), "{answer:?}");
    assert!(answer.error.expect("it says why").to_string().contains("exit status 4"));
    assert_eq!(held(&activator).await, None);
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    activator.stop(&host()).await.unwrap();
}

async fn outlives() {
    let context = Context::new();
    let options = Options { context: context.clone(), ..within(60) };
    let (site, activator, asked) = warming("never-healthy", options).await;
    let host = host();
    let hold = activator.hold(&host, build("2"), within(20));
    tokio::pin!(hold);
    // It is taken once what is asked after it is answered.
    tokio::select! {
        biased;
        answer = &mut hold => panic!("{answer:?}"),
        status = activator.status(&host) => assert_eq!(status.unwrap().state, "warming"),
    }
    site.stage("2", "");
    tokio::task::spawn_blocking(move || context.end(Ended::Cancelled)).await.unwrap();
    let swapped = asked.await.unwrap();
    assert_eq!(swapped.outcome.exit(), 1, "{swapped:?}");
    let answer = hold.await.unwrap();
    assert_eq!((answer.outcome.exit(), answer.build), (0, Some(build("2"))));
    assert_eq!(held(&activator).await.as_deref(), Some("2"));
    activator.stop(&host).await.unwrap();
}
