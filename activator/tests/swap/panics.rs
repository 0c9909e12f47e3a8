//! A backend that panics, at each point of a swap where it is called: the request is answered, never
//! as done, some generation serves, nothing runs that should not, and the next swap works. A panic
//! cannot be provoked in the real backend, so that this one is made to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tickmark_activator::Hooks;

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{Site, alive, build, host, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("a_panic_while_the_parent_is_raised_leaves_the_incumbent", || Box::pin(panics("raise", 1))),
    ("a_panic_before_the_start_leaves_the_incumbent", || Box::pin(panics("start", 1))),
    ("a_panic_while_the_stub_is_persisted_leaves_the_incumbent", || Box::pin(panics("note", 1))),
    ("a_panic_in_the_gate_leaves_the_incumbent", || Box::pin(panics("gate-2", 1))),
    ("a_panic_after_the_start_ends_what_ran", || Box::pin(panics("started", 1))),
    ("a_panic_while_it_is_made_ready_is_asked_again", || Box::pin(panics("ready", 0))),
    ("a_panic_in_the_switch_leaves_the_incumbent", || Box::pin(panics("switch", 1))),
    ("a_panic_in_the_proof_is_unproven", || Box::pin(panics("end", 3))),
    ("a_panic_in_the_restore_is_tried_again", || Box::pin(panics("restore", 0))),
    ("a_purge_that_panics_does_not_refuse_the_switch", || Box::pin(purge())),
];

/// What they say.
const MADE: &str = "made to panic here";

/// They say nothing of what is wrong, and would fill the output with their traces.
pub(crate) fn hide_own() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(MADE) {
            others(panic);
        }
    }));
}

/// At `point` of a swap the backend panics, once; the swap ends with `exit`.
async fn panics(point: &'static str, exit: u8) {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let armed = Arc::new(AtomicBool::new(false));
    let (trigger, said) = (Arc::clone(&armed), Arc::new(Mutex::new(Vec::new())));
    let wrap = move |inner| {
        Watched::around(inner, &said, move |at| {
            assert!(at != point || !trigger.swap(false, Ordering::Relaxed), "{MADE}");
        })
    };
    let activator = site.open_wrapped(wrap).await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);

    armed.store(true, Ordering::Relaxed);
    let host = host();
    let answer = activator.swap(&host, build("2"), within(10));
    let answer = tokio::time::timeout(Duration::from_secs(30), answer).await;
    let answer = answer.expect("the host waits for ever").unwrap();
    assert!(!armed.load(Ordering::Relaxed), "{point} was never reached: {answer:?}");
    assert_eq!(answer.outcome.exit(), exit, "{answer:?}");
    let serves = if exit == 1 { "1" } else { "2" };
    assert_eq!(ask(&site.socket(), 1).unwrap().build, serves);
    until("one alone runs", || alive(&site).len() == 1).await;

    let again = swap(&activator, if serves == "1" { "2" } else { "1" }).await;
    assert_eq!(again.outcome.exit(), 0, "{again:?}");
    activator.stop(&host).await.unwrap();
    assert!(alive(&site).is_empty());
}

async fn purge() {
    let site = Site::new();
    site.stage("1", "");
    let hooks = Hooks { purge: Some(Arc::new(|_, _| panic!("{MADE}"))), ..Hooks::default() };
    let activator = site.open_with(hooks).await;
    let answer = swap(&activator, "1").await;
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    activator.stop(&host()).await.unwrap();
}
