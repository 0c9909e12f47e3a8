//! Slots and sidecars start again unasked, and what revokes a start revokes theirs too: a fence, the
//! close, the lease. Without the lease nothing of the host is touched, since another activator has it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::swap::Outcome;
use tickmark_activator::{Activator, HostStatus};

use crate::basics::Case;
use crate::outside::Watched;
use crate::site::{PATIENCE, Site, alive, host, kill, swap, until, until_state};

pub(crate) const ALL: &[Case] = &[
    ("a_fence_waits_for_the_go_of_a_slot_and_revokes_the_next", || {
        Box::pin(waits_for_the_go(What::Slot, By::Fence))
    }),
    ("a_fence_waits_for_the_go_of_a_sidecar_and_revokes_the_next", || {
        Box::pin(waits_for_the_go(What::Sidecar, By::Fence))
    }),
    ("a_close_waits_for_the_go_of_a_slot", || Box::pin(waits_for_the_go(What::Slot, By::Close))),
    ("a_close_waits_for_the_go_of_a_sidecar", || {
        Box::pin(waits_for_the_go(What::Sidecar, By::Close))
    }),
    ("without_the_lease_a_sidecar_is_another_activators", || Box::pin(anothers_sidecar())),
    ("without_the_lease_a_slot_is_another_activators", || Box::pin(anothers_slot())),
];

/// How long it is watched that a revocation does not return.
const WATCHED: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Slot,
    Sidecar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Fence,
    Close,
}

type Act = Box<dyn FnOnce() + Send>;

fn site(what: What) -> Site {
    // In cgroups where there can be some: there a leaf is ended by its name.
    let mut site = Site::contained().unwrap_or_else(Site::new);
    let own = match what {
        What::Slot => "slots = 2\n",
        What::Sidecar => "sidecar = { args = [\"sidecar\"] }\n",
    };
    site.socket = what == What::Sidecar;
    site.host = format!("{own}restart = {{ min = \"1ms\", max = \"20ms\", check = \"50ms\" }}\n");
    for build in ["1", "2", "3"] {
        site.stage(build, "");
    }
    site
}

async fn status(activator: &Activator) -> HostStatus {
    activator.status(&host()).await.unwrap()
}

/// The processes that are in hand: the slots, or the sidecar.
async fn pids(activator: &Activator, what: What) -> Vec<u32> {
    let status = status(activator).await;
    match what {
        What::Slot => status.generations.into_iter().flat_map(|one| one.pids).collect(),
        What::Sidecar => status.sidecar.into_iter().collect(),
    }
}

/// Until all run, and none of them is `not`.
async fn until_all_run(
    site: &Site,
    activator: &Activator,
    what: What,
    not: Option<u32>,
) -> Vec<u32> {
    let count = if what == What::Slot { 2 } else { 1 };
    let begun = Instant::now();
    loop {
        let pids = pids(activator, what).await;
        let run = match what {
            What::Slot => pids.iter().all(|pid| PathBuf::from(format!("/proc/{pid}/exe")).exists()),
            // It is told of from before its go on.
            What::Sidecar => site.sidecar().is_some_and(|(_, pid)| pids == [pid]),
        };
        if pids.len() == count && run && not.is_none_or(|not| !pids.contains(&not)) {
            return pids;
        }
        assert!(begun.elapsed() < PATIENCE, "{pids:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What has passed its gate twice goes before the revocation returns; then nothing does.
async fn waits_for_the_go(what: What, by: By) {
    let site = site(what);
    let point = if what == What::Slot { "gate-2" } else { "sidecar-gate-2" };
    let armed: Arc<Mutex<Option<Act>>> = Arc::default();
    let (trigger, said) = (Arc::clone(&armed), Arc::default());
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &said, move |at| {
                if at == point
                    && let Some(act) = trigger.lock().unwrap().take()
                {
                    act();
                }
            })
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let first = until_all_run(&site, &activator, what, None).await[0];

    let runtime = tokio::runtime::Handle::current();
    let (report, reported) = mpsc::channel();
    *armed.lock().unwrap() = Some(Box::new(move || {
        let (done, returned) = mpsc::channel();
        runtime.spawn(async move {
            let activator = match by {
                By::Fence => {
                    activator.fence(&host(), Some("moved".to_owned())).await.unwrap();
                    Some(activator)
                }
                By::Close => {
                    activator.close().await;
                    None
                }
            };
            let _gone = done.send(activator);
        });
        // Here the gate has answered for the last time, and the go is next.
        let early = returned.recv_timeout(WATCHED).is_ok();
        report.send((early, returned)).unwrap();
    }));
    kill(first);
    let mut at_the_go = None;
    until("it starts again", || {
        at_the_go = reported.try_recv().ok();
        at_the_go.is_some()
    })
    .await;
    let (early, returned) = at_the_go.unwrap();
    assert!(!early, "revoked, and then it went");
    let mut revoked = None;
    until("it is revoked", || {
        revoked = returned.try_recv().ok();
        revoked.is_some()
    })
    .await;
    let Some(activator) = revoked.unwrap() else {
        // Closed: what went is the next activator's.
        let next = site.open().await;
        until_all_run(&site, &next, what, Some(first)).await;
        assert_eq!(next.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
        assert!(alive(&site).is_empty());
        return;
    };
    let second = until_all_run(&site, &activator, what, Some(first)).await[0];
    kill(second);
    until("it has ended", || !alive(&site).contains(&second)).await;
    let fenced = alive(&site);
    activator.fence(&host(), None).await.unwrap();
    until_all_run(&site, &activator, what, Some(second)).await;
    assert!(alive(&site).len() > fenced.len(), "it ran under the fence");
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
}

type Said = Arc<Mutex<Vec<String>>>;

fn count(said: &Said, what: &str) -> usize {
    said.lock().unwrap().iter().filter(|said| said.starts_with(what)).count()
}

/// An activator whose state directory another one takes, with all that runs.
async fn taken_over(site: &Site, what: What) -> ([Activator; 2], [Said; 2]) {
    let said: [Said; 2] = Default::default();
    let watched = |said: &Said| {
        let said = Arc::clone(said);
        site.open_wrapped(move |inner| Watched::around(inner, &said, |_| {}))
    };
    let one = watched(&said[0]).await;
    assert_eq!(swap(&one, "1").await.outcome.exit(), 0);
    until_all_run(site, &one, what, None).await;
    let (state, away) = (site.state(), site.state().with_extension("away"));
    std::fs::rename(&state, &away).unwrap();
    said[0].lock().unwrap().clear();
    let copied = Command::new("cp").arg("-a").args([&away, &state]).status().unwrap();
    assert!(copied.success());
    let two = watched(&said[1]).await;
    until_all_run(site, &two, what, None).await;
    ([one, two], said)
}

async fn anothers_sidecar() {
    let site = site(What::Sidecar);
    let ([one, two], [before, after]) = taken_over(&site, What::Sidecar).await;
    for (number, build) in [(2, "2"), (3, "3")] {
        let old = pids(&two, What::Sidecar).await.first().copied();
        assert_eq!(swap(&two, build).await.outcome.exit(), 0);
        until_all_run(&site, &two, What::Sidecar, old).await;
        if number == 2 {
            until_state(&one, "disowned").await;
        }
    }
    assert_eq!(two.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
    for number in [2, 3] {
        let started = count(&after, &format!("sidecar-start {number}"));
        assert_eq!(started, 1, "the sidecar of generation {number} was killed by another");
    }
    assert_eq!(count(&before, "sidecar-"), 0, "{before:?}");
    one.close().await;
}

async fn anothers_slot() {
    let site = site(What::Slot);
    let ([one, two], [before, after]) = taken_over(&site, What::Slot).await;
    for round in 0..4 {
        let old = pids(&two, What::Slot).await[round % 2];
        kill(old);
        until_all_run(&site, &two, What::Slot, Some(old)).await;
        if round == 1 {
            until_state(&one, "disowned").await;
        }
    }
    assert_eq!(count(&after, "start "), 4, "a slot was killed by another: {after:?}");
    assert_eq!(two.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
    assert_eq!(count(&before, "end ") + count(&before, "start "), 0, "{before:?}");
    one.close().await;
}
