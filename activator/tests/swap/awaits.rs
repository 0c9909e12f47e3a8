//! What ends a start while it is awaited, at each point where that can be: its context, the lease,
//! a fence. Before the go nothing runs; after it, what ran is stopped or is the next activator's.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::gate::{Context, Ended};
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Answer, Options};

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{Site, alive, build, host, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("a_context_that_ends_while_the_parent_is_raised_starts_nothing", || {
        Box::pin(never_runs(What::Context, "raise"))
    }),
    ("a_context_that_ends_while_the_start_is_prepared_starts_nothing", || {
        Box::pin(never_runs(What::Context, "start"))
    }),
    ("a_context_that_ends_while_the_stub_is_persisted_starts_nothing", || {
        Box::pin(never_runs(What::Context, "note"))
    }),
    ("a_context_that_ends_between_gate_and_record_starts_nothing", || {
        Box::pin(never_runs(What::Context, "gate-1"))
    }),
    ("a_context_that_ends_while_ready_is_awaited_stops_the_successor", || {
        Box::pin(stopped(What::Context, "started"))
    }),
    ("a_context_that_ends_during_the_switch_changes_nothing", || {
        Box::pin(completes(What::Context, "switch"))
    }),
    ("a_context_that_ends_after_the_switch_changes_nothing", || {
        Box::pin(completes(What::Context, "end"))
    }),
    ("a_fence_set_while_the_parent_is_raised_starts_nothing", || {
        Box::pin(never_runs(What::Fence, "raise"))
    }),
    ("a_fence_set_while_the_start_is_prepared_starts_nothing", || {
        Box::pin(never_runs(What::Fence, "start"))
    }),
    ("a_fence_set_while_the_stub_is_persisted_starts_nothing", || {
        Box::pin(never_runs(What::Fence, "note"))
    }),
    ("a_fence_set_between_gate_and_record_starts_nothing", || {
        Box::pin(never_runs(What::Fence, "gate-1"))
    }),
    ("a_fence_set_while_ready_is_awaited_stops_the_successor", || {
        Box::pin(stopped(What::Fence, "started"))
    }),
    ("a_fence_set_during_the_switch_changes_nothing", || {
        Box::pin(completes(What::Fence, "switch"))
    }),
    ("a_lease_lost_while_the_parent_is_raised_starts_nothing", || {
        Box::pin(never_runs(What::Lease, "raise"))
    }),
    ("a_lease_lost_while_the_start_is_prepared_starts_nothing", || {
        Box::pin(never_runs(What::Lease, "start"))
    }),
    ("a_lease_lost_while_the_stub_is_persisted_starts_nothing", || {
        Box::pin(never_runs(What::Lease, "note"))
    }),
    ("a_lease_lost_between_gate_and_record_starts_nothing", || {
        Box::pin(never_runs(What::Lease, "gate-1"))
    }),
    ("a_lease_lost_while_ready_is_awaited_leaves_all_to_the_next_activator", || {
        Box::pin(left_to_the_next())
    }),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Context,
    Fence,
    Lease,
}

type Act = Box<dyn FnOnce() + Send>;

struct Scene {
    site: Site,
    activator: Arc<Activator>,
    answer: Answer,
    said: Vec<String>,
}

/// A first build serves; then `what` happens at `point` of the swap to the second.
async fn play(what: What, point: &'static str, fault: &str) -> Scene {
    let mut site = Site::new();
    // A lost lease is noticed by the next look.
    site.host = "restart = { check = \"50ms\" }\n".to_owned();
    site.stage("1", "");
    site.stage("2", fault);
    let said = Arc::new(Mutex::new(Vec::new()));
    let context = Context::new();
    let armed: Arc<Mutex<Option<Act>>> = Arc::default();
    let trigger = Arc::clone(&armed);
    let watched = Arc::clone(&said);
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &watched, move |at| {
                if at == point
                    && let Some(act) = trigger.lock().unwrap().take()
                {
                    act();
                }
            })
        })
        .await;
    let activator = Arc::new(activator);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    said.lock().unwrap().clear();

    let act: Act = match what {
        What::Context => {
            let context = context.clone();
            // Not from within the gate, whose lock ending takes; it is over before the record is.
            Box::new(move || context.end(Ended::Cancelled))
        }
        What::Fence => {
            let (activator, runtime) = (Arc::clone(&activator), tokio::runtime::Handle::current());
            Box::new(move || {
                runtime.block_on(activator.fence(&host(), Some("moved".to_owned()))).unwrap();
            })
        }
        What::Lease => {
            let state = site.state();
            Box::new(move || {
                std::fs::rename(&state, state.with_extension("away")).unwrap();
                std::fs::create_dir(&state).unwrap();
            })
        }
    };
    *armed.lock().unwrap() = Some(act);
    let options = Options { deadline: Some(Duration::from_secs(10)), context };
    let answer = activator.swap(&host(), build("2"), options).await.unwrap();
    assert!(armed.lock().unwrap().is_none(), "{point} was never reached: {answer:?}");
    let said = said.lock().unwrap().clone();
    Scene { site, activator, answer, said }
}

/// Nothing of the second build ran, and the first serves on.
async fn never_runs(what: What, point: &'static str) {
    let Scene { site, activator, answer, said } = play(what, point, "trace").await;
    let error = answer.error.as_ref().map(ToString::to_string);
    match (what, answer.outcome) {
        (What::Lease, Outcome::Unknown { .. } | Outcome::Unchanged { .. }) => {}
        // The gate refuses, or before it the layout.
        (_, Outcome::Unchanged { serves, why: Why::Refused | Why::Failed }) => {
            assert_eq!(serves.get(), 1);
        }
        (_, other) => panic!("{other:?}: {error:?}"),
    }
    let refused = answer.error.expect("the refusal is kept");
    match what {
        What::Context => assert!(refused.is_ended(), "{refused:?}"),
        What::Fence => assert!(refused.is_fenced() || refused.is_layout(), "{refused:?}"),
        What::Lease => assert!(refused.is_lease_lost(), "{refused:?}"),
    }
    // A lost lease is answered at once, while the stub is still being refused.
    until("the stub is gone", || alive(&site).len() == 1).await;
    assert!(!traced(&site), "something of the build ran: {said:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    if what != What::Lease {
        activator.fence(&host(), None).await.unwrap();
        let options = within(10);
        let again = activator.swap(&host(), build("2"), options).await.unwrap();
        assert_eq!(again.outcome.exit(), 0, "it was not at fault: {again:?}");
        assert!(traced(&site));
        activator.stop(&host()).await.unwrap();
    }
}

/// It ran, and was stopped; the first serves on.
async fn stopped(what: What, point: &'static str) {
    let begun = Instant::now();
    let Scene { site, activator, answer, .. } = play(what, point, "never-healthy").await;
    assert!(begun.elapsed() < Duration::from_secs(8), "it was stopped before its deadline");
    let Outcome::Unchanged { serves, .. } = answer.outcome else { panic!("{answer:?}") };
    assert_eq!(serves.get(), 1);
    assert!(answer.error.unwrap().is_ended());
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    assert_eq!(alive(&site).len(), 1);
    let status = activator.status(&host()).await.unwrap();
    assert!(status.failed.is_empty(), "it did not fail by itself: {:?}", status.failed);
    activator.fence(&host(), None).await.unwrap();
    activator.stop(&host()).await.unwrap();
}

/// What is past its start goes to its end.
async fn completes(what: What, point: &'static str) {
    let Scene { site, activator, answer, .. } = play(what, point, "").await;
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    assert_eq!(alive(&site).len(), 1);
    activator.fence(&host(), None).await.unwrap();
    activator.stop(&host()).await.unwrap();
}

async fn left_to_the_next() {
    let Scene { site, activator, answer, .. } = play(What::Lease, "started", "never-healthy").await;
    assert_eq!(answer.outcome.exit(), 4, "{answer:?}");
    assert!(matches!(answer.outcome, Outcome::Unknown { why: Why::Lease, .. }));
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1", "the host serves on");
    Arc::into_inner(activator).unwrap().close().await;
    // The state comes back, and with it the next activator finds what runs.
    std::fs::remove_dir_all(site.state()).unwrap();
    std::fs::rename(site.state().with_extension("away"), site.state()).unwrap();
    let next = site.open().await;
    until("only the first runs", || alive(&site).len() == 1).await;
    assert_eq!(ask(&site.socket(), 2).unwrap().build, "1");
    next.stop(&host()).await.unwrap();
}

fn traced(site: &Site) -> bool {
    site.path().join("trace").exists()
}
