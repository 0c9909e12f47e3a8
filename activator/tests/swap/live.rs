//! The live link's build, where overlap was declined: what was woken from the link runs only while
//! the link names it and its start did not fail. Asked at the gate, and before anything is stopped
//! for a start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Answer};

use crate::basics::Case;
use crate::client::ask;
use crate::judged::said;
use crate::outside::Watched;
use crate::site::{Site, alive, build, host, kill, swap, until, until_state, within};

pub(crate) const ALL: &[Case] = &[
    ("a_live_link_that_is_repointed_while_the_parent_is_limited_refuses_the_wake", || {
        Box::pin(repointed("restore"))
    }),
    ("a_live_link_that_is_repointed_while_the_start_is_prepared_refuses_the_wake", || {
        Box::pin(repointed("start"))
    }),
    ("a_live_link_that_is_repointed_while_the_stub_is_persisted_refuses_the_wake", || {
        Box::pin(repointed("note"))
    }),
    ("a_live_link_that_is_repointed_between_gate_and_record_refuses_the_wake", || {
        Box::pin(repointed("gate-1"))
    }),
    ("a_foreign_row_is_held_to_its_live_link_too", || Box::pin(foreign())),
    ("a_live_build_that_failed_its_start_is_not_woken", || Box::pin(condemned())),
    ("a_wake_where_overlap_was_not_declined_is_not_held_to_the_live_link", || {
        Box::pin(overlapping())
    }),
    ("what_died_starts_again_only_while_the_live_link_names_it", || Box::pin(died())),
    ("a_slot_that_died_starts_again_only_while_the_live_link_names_it", || Box::pin(slot_died())),
    ("a_red_generation_of_stop_start_serves_on_while_its_live_build_may_not_run", || {
        Box::pin(red())
    }),
];

/// What a refusal says.
const NOT_NAMED: &str = "the live link does not name 1 any more";

const STOP_START: &str = "swap = \"stop-start\"\n";

/// The first build has served, and sleeps; the second is staged.
async fn asleep(site: &Site, activator: &Activator) {
    site.stage("1", "trace");
    site.stage("2", "");
    assert_eq!(swap(activator, "1").await.outcome.exit(), 0);
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    std::fs::remove_file(site.path().join("trace")).unwrap();
}

/// Wakes the host, and repoints the link at `point` of that.
async fn woken_and_repointed(site: &Site, point: &'static str) -> (Activator, Answer) {
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = Arc::clone(&armed);
    let (live, other) = (site.state().join("hosts/orders/live"), site.builds().join("2"));
    let repoint = move |at: &str| {
        if at == point && trigger.swap(false, Ordering::SeqCst) {
            std::fs::remove_file(&live).unwrap();
            std::os::unix::fs::symlink(&other, &live).unwrap();
        }
    };
    let said = Arc::new(Mutex::new(Vec::new()));
    let activator = site.open_wrapped(move |inner| Watched::around(inner, &said, repoint)).await;
    asleep(site, &activator).await;
    armed.store(true, Ordering::SeqCst);
    let answer = activator.wake(&host(), within(20)).await.unwrap();
    assert!(!armed.load(Ordering::SeqCst), "{point} was never reached: {answer:?}");
    (activator, answer)
}

/// Nothing of the first build ran, and nobody condemns it for that.
async fn is_refused(site: &Site, activator: &Activator, answer: Answer) {
    assert_eq!(answer.outcome, Outcome::NothingServes { why: Why::Refused }, "{answer:?}");
    let error = answer.error.expect("it says why").to_string();
    assert!(error.contains(NOT_NAMED), "{error}");
    assert!(!site.path().join("trace").exists(), "something of it ran");
    let failed = activator.status(&host()).await.unwrap().failed;
    assert!(failed.is_empty(), "it did not fail: {failed:?}");
}

async fn repointed(point: &'static str) {
    let mut site = Site::new();
    site.host = STOP_START.to_owned();
    refused_until_named(&site, point).await;
}

async fn foreign() {
    let mut site = Site::new();
    site.long_socket = true;
    refused_until_named(&site, "note").await;
}

async fn refused_until_named(site: &Site, point: &'static str) {
    let (activator, answer) = woken_and_repointed(site, point).await;
    is_refused(site, &activator, answer).await;
    // Nor does it start by itself, before the link names it again.
    let mut steps = activator.steps();
    let mut times = Vec::new();
    until("it is refused again", || {
        said(&mut steps, NOT_NAMED, &mut times);
        times.len() >= 2
    })
    .await;
    assert!(!site.path().join("trace").exists(), "it ran by itself");
    site.point_live_at("1");
    until_state(&activator, "serving").await;
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    activator.stop(&host()).await.unwrap();
}

async fn overlapping() {
    let site = Site::new();
    let (activator, answer) = woken_and_repointed(&site, "note").await;
    assert_eq!((answer.outcome.exit(), answer.build.clone()), (0, Some(build("1"))), "{answer:?}");
    activator.stop(&host()).await.unwrap();
}

async fn condemned() {
    let mut site = Site::new();
    site.host = STOP_START.to_owned();
    site.stage("1", "");
    site.stage("2", "die-at-once");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 1);
    activator.stop(&host()).await.unwrap();
    // It would start now, and is not asked.
    site.stage("2", "trace");
    site.point_live_at("2");
    let answer = activator.wake(&host(), within(20)).await.unwrap();
    assert!(matches!(answer.outcome, Outcome::Unchanged { why: Why::Denied, .. }), "{answer:?}");
    let error = answer.error.expect("it says why").to_string();
    assert!(error.contains("the live build 2 failed its start"), "{error}");
    assert!(!site.path().join("trace").exists(), "something of it ran");
    assert_eq!(answer.build, Some(build("1")), "the last healthy one serves instead");
    // Asked for by its name it is tried.
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
}

/// Woken from the live link, with so many slots, and the link names the other build by now.
async fn woken(slots: u32, restart: &str, fault: &str) -> (Site, Activator) {
    let mut site = Site::new();
    site.socket = false;
    site.host = format!("{STOP_START}slots = {slots}\n{restart}");
    site.stage("1", fault);
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    assert_eq!(activator.wake(&host(), within(20)).await.unwrap().outcome.exit(), 0);
    assert_eq!(alive(&site).len(), slots as usize);
    site.point_live_at("2");
    (site, activator)
}

const SOON: &str = "restart = { min = \"10ms\", max = \"50ms\" }\n";

/// After `act` its start is refused more than once, and what runs meanwhile is `left`; it runs again
/// once the link names it.
async fn refused_until_named_again(
    site: &Site,
    activator: &Activator,
    act: impl FnOnce(),
    left: &[u32],
) {
    let before = alive(site);
    let mut steps = activator.steps();
    let mut times = Vec::new();
    act();
    until("it is refused", || {
        said(&mut steps, NOT_NAMED, &mut times);
        times.len() >= 3
    })
    .await;
    assert_eq!(alive(site), left);
    site.point_live_at("1");
    until("all runs again", || {
        let now = alive(site);
        now.len() == before.len() && now != before
    })
    .await;
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(site).is_empty());
}

async fn died() {
    let (site, activator) = woken(1, SOON, "").await;
    let pid = alive(&site)[0];
    refused_until_named_again(&site, &activator, || kill(pid), &[]).await;
}

async fn slot_died() {
    let (site, activator) = woken(2, SOON, "").await;
    let [dies, stays] = alive(&site)[..] else { panic!("two slots") };
    refused_until_named_again(&site, &activator, || kill(dies), &[stays]).await;
}

async fn red() {
    let restart = "env = { TICKMARK_MAX_AGE = \"1\" }\n\
         restart = { red = 2, check = \"20ms\", min = \"1ms\", max = \"5ms\" }\n";
    let (site, activator) = woken(1, restart, "stops-ticking").await;
    let serves = alive(&site);
    refused_until_named_again(&site, &activator, || (), &serves).await;
}
