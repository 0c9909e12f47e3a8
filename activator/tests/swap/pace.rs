//! How long the host waits: what settles, and a red generation before its restart.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use tickmark_activator::Step;
use tokio::sync::broadcast::Receiver;

use crate::basics::Case;
use crate::client::ask;
use crate::site::{Site, alive, build, host, send, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("the_incumbent_serves_on_after_the_switch_until_it_has_settled", || Box::pin(settles())),
    ("red_restarts_wait_twice_as_long_each_time_up_to_the_longest", || {
        Box::pin(backs_off("10m", ["10ms", "20ms", "40ms", "40ms"]))
    }),
    ("a_generation_that_ran_for_the_reset_begins_its_backoff_anew", || {
        Box::pin(backs_off("100ms", ["10ms"; 4]))
    }),
    ("a_red_generation_that_is_healthy_again_is_not_restarted", || Box::pin(recovers())),
];

/// The steps that have passed, with these words.
fn passed(steps: &mut Receiver<Step>, words: &str, found: &mut Vec<(String, SystemTime)>) {
    while let Ok(step) = steps.try_recv() {
        if step.text.contains(words) {
            found.push((step.text, step.at));
        }
    }
}

/// Far longer than a swap takes.
const SETTLE: Duration = Duration::from_secs(3);

async fn settles() {
    let mut site = Site::new();
    site.host = format!("settle = \"{}s\"\n", SETTLE.as_secs());
    site.stage("1", "");
    site.stage("2", "");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let mut steps = activator.steps();
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { second.swap(&host(), build("2"), within(20)).await });
    let mut retiring = Vec::new();
    until("it is switched", || {
        passed(&mut steps, "retiring", &mut retiring);
        !retiring.is_empty()
    })
    .await;
    assert_eq!(ask(&site.socket(), 1).unwrap().generation, 2);
    // By one who resolved the path before.
    assert_eq!(ask(&site.path().join("s.1"), 2).unwrap().generation, 1);
    assert_eq!(asked.await.unwrap().unwrap().outcome.exit(), 0);
    let mut drains = Vec::new();
    passed(&mut steps, "generation 1 drains", &mut drains);
    let [(_, told)] = &drains[..] else { panic!("told to end once: {drains:?}") };
    let served = told.duration_since(retiring[0].1).unwrap();
    assert!(served >= SETTLE, "it served on for {served:?}");
    assert!(ask(&site.path().join("s.1"), 3).is_err());
    activator.stop(&host()).await.unwrap();
}

/// Each generation's marks end after a while; what is said of the waits.
async fn backs_off(reset: &str, waits: [&str; 4]) {
    let mut site = Site::new();
    site.host = format!(
        "env = {{ TICKMARK_MAX_AGE = \"1\" }}\nrestart = {{ red = 2, check = \"20ms\", \
         min = \"10ms\", max = \"40ms\", reset = \"{reset}\" }}\n"
    );
    site.stage("1", "stops-ticking");
    let activator = site.open().await;
    let mut steps = activator.steps();
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let mut said = Vec::new();
    until("it was restarted so often", || {
        passed(&mut steps, "is restarted in", &mut said);
        said.len() >= waits.len()
    })
    .await;
    for (round, wait) in waits.iter().enumerate() {
        let expected = format!("generation {} is restarted in {wait}", round + 1);
        assert_eq!(said[round].0, expected, "{said:?}");
    }
    activator.stop(&host()).await.unwrap();
}

async fn recovers() {
    let wait = Duration::from_secs(4);
    let mut site = Site::new();
    site.host = "env = { TICKMARK_MAX_AGE = \"1\" }\n\
         restart = { red = 2, check = \"20ms\", min = \"4s\", max = \"4s\" }\n"
        .to_owned();
    site.stage("1", "");
    let activator = site.open().await;
    let mut steps = activator.steps();
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let pid = alive(&site)[0];
    let mut said = async |words: &str| {
        let mut found = Vec::new();
        until(words, || {
            passed(&mut steps, words, &mut found);
            !found.is_empty()
        })
        .await;
        found.remove(0).1
    };
    send(pid, Signal::STOP);
    said("generation 1 is restarted in 4s").await;
    send(pid, Signal::CONT);
    said("generation 1 is healthy again, and not restarted").await;
    // Red once more it waits as long again, from then on.
    send(pid, Signal::STOP);
    let red = said("generation 1 is restarted in 4s").await;
    let restarted = said("admitting").await;
    send(pid, Signal::CONT);
    let waited = restarted.duration_since(red).unwrap();
    assert!(waited >= wait, "it was restarted after {waited:?}");
    activator.stop(&host()).await.unwrap();
}
