//! A host of several processes, in cgroups: each slot is a leaf of its own, and gated by itself.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Answer};

use crate::basics::Case;
use crate::outside::Watched;
use crate::site::{PATIENCE, Site, alive, build, host, swap, within};

pub(crate) const ALL: &[Case] = &[
    ("each_slot_is_its_own_leaf", || Box::pin(own_leaves())),
    ("a_fence_between_the_starts_of_two_slots_keeps_the_second_from_running", || {
        Box::pin(fenced("started 2", 1))
    }),
    ("a_fence_while_the_second_slot_is_prepared_keeps_it_from_running", || {
        Box::pin(fenced("note 2", 2))
    }),
];

fn site() -> Option<Site> {
    let mut site = Site::contained()?;
    site.socket = false;
    site.host = "slots = 2\n".to_owned();
    site.stage("1", "");
    Some(site)
}

/// The leaves of the host that have processes, and those.
fn leaves(site: &Site) -> Vec<(String, Vec<u32>)> {
    let host = Path::new(&site.cgroup).join("host-orders");
    let mut leaves: Vec<(String, Vec<u32>)> = std::fs::read_dir(host)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|leaf| {
            let pids = std::fs::read_to_string(leaf.path().join("cgroup.procs")).unwrap();
            let pids = pids.lines().map(|pid| pid.parse().unwrap()).collect();
            (leaf.file_name().into_string().unwrap(), pids)
        })
        .filter(|(_, pids): &(_, Vec<u32>)| !pids.is_empty())
        .collect();
    leaves.sort();
    leaves
}

/// The one process of each slot of a generation.
fn slots(site: &Site, generation: u64) -> [u32; 2] {
    let leaves = leaves(site);
    let [(one, first), (two, second)] = &leaves[..] else { panic!("two leaves: {leaves:?}") };
    assert_eq!(*one, format!("generation-{generation}-0"));
    assert_eq!(*two, format!("generation-{generation}-1"));
    let ([first], [second]) = (&first[..], &second[..]) else { panic!("one each: {leaves:?}") };
    [*first, *second]
}

async fn stops(activator: &Activator, site: &Site) {
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(site).is_empty());
}

async fn own_leaves() {
    let Some(site) = site() else { return };
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let slots = slots(&site, 1);
    let status = activator.status(&host()).await.unwrap();
    assert_eq!(status.generations[0].pids, slots);
    stops(&activator, &site).await;
}

/// A fence is set when this was said for the `nth` time, and the first slot of generation 2 has run:
/// the second does not, and the first is gone again with the refusal.
async fn fenced(point: &'static str, nth: usize) {
    let Some(site) = site() else { return };
    let traces = site.path().join("traces");
    std::fs::create_dir(&traces).unwrap();
    let script = format!(
        "#!/bin/sh\n: >{}/$TICKMARK_INSTANCE\nexec {} service $1\n",
        traces.display(),
        std::env::current_exe().unwrap().display()
    );
    site.stage_script("2", &script);
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let opened: Arc<Mutex<Option<Arc<Activator>>>> = Arc::default();
    let (runtime, log, fencer) =
        (tokio::runtime::Handle::current(), Arc::clone(&said), Arc::clone(&opened));
    let (watched, ran) = (Arc::clone(&said), traces.join("0"));
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &watched, move |_| {
                let times = log.lock().unwrap().iter().filter(|said| *said == point).count();
                if times == nth
                    && let Some(activator) = fencer.lock().unwrap().take()
                {
                    let begun = Instant::now();
                    while !ran.exists() && begun.elapsed() < PATIENCE {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    runtime.block_on(activator.fence(&host(), Some("moved".to_owned()))).unwrap();
                }
            })
        })
        .await;
    let activator = Arc::new(activator);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let before = slots(&site, 1);
    *opened.lock().unwrap() = Some(Arc::clone(&activator));
    let Answer { outcome, error, .. } =
        activator.swap(&host(), build("2"), within(20)).await.unwrap();
    assert!(opened.lock().unwrap().is_none(), "{point} was not said {nth} times: {said:?}");
    assert!(matches!(outcome, Outcome::Unchanged { why: Why::Refused | Why::Failed, .. }));
    let error = error.expect("the refusal is kept");
    assert!(error.is_fenced() || error.is_layout(), "{error:?}");
    let trace = |slot: &str| PathBuf::from(&traces).join(slot).exists();
    assert!(trace("0") && !trace("1"), "the first ran, and the second did not");
    assert_eq!(slots(&site, 1), before, "what serves serves on, and nothing is left beside it");
    activator.fence(&host(), None).await.unwrap();
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    assert!(trace("1"));
    stops(&activator, &site).await;
}
