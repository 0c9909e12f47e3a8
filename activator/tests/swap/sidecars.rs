//! The sidecar across a restart of its activator, and one that cannot be started.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tickmark_activator::backend::{Backend, Proc, Sidecars, Start, StartError};
use tickmark_activator::process::Process;
use tickmark_activator::swap::Outcome;
use tickmark_activator::{Activator, Error, Gen, Route};

use crate::basics::Case;
use crate::daemon::Daemon;
use crate::outside::{OtherSidecars, Watched};
use crate::site::{SIDECAR, Site, alive, end, host, kill, send, swap, until, until_state};

pub(crate) const ALL: &[Case] = &[
    ("a_new_activator_leaves_the_sidecar_of_what_it_adopts_running", || Box::pin(stays())),
    ("a_new_activator_ends_the_sidecar_of_a_generation_that_is_gone", || Box::pin(goes())),
    ("a_new_activator_that_is_told_to_stop_ends_the_sidecar_that_was_left", || Box::pin(stops())),
    ("a_sidecar_that_the_host_is_not_to_have_any_more_is_ended", || Box::pin(removed())),
    ("a_nested_sidecar_without_a_staged_path_is_tried_again_with_backoff", || {
        Box::pin(tried_again())
    }),
];

/// The first build serves with its sidecar, and its activator is killed; the sidecar's number.
async fn left_alone(site: &mut Site) -> u32 {
    site.host = SIDECAR.to_owned();
    site.stage("1", "");
    let mut daemon = Daemon::start(site);
    assert_eq!(daemon.ask("swap 1"), "0");
    let sidecar = site.until_sidecar("1 1", None).await;
    daemon.kill();
    sidecar
}

fn contained_or_not() -> Site {
    Site::contained().unwrap_or_else(Site::new)
}

async fn sidecar(activator: &Activator) -> Option<u32> {
    activator.status(&host()).await.unwrap().sidecar
}

async fn stops_with_all(activator: &Activator, site: &Site) {
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(site).is_empty());
}

async fn stays() {
    let mut site = contained_or_not();
    let first = left_alone(&mut site).await;
    let said = Arc::new(Mutex::new(Vec::new()));
    let watched = Arc::clone(&said);
    let next = site.open_wrapped(move |inner| Watched::around(inner, &watched, |_| {})).await;
    until_state(&next, "serving").await;
    assert_eq!(sidecar(&next).await, Some(first));
    // It is in hand: its end is noticed. And this is the first start there is.
    kill(first);
    let second = site.until_sidecar("1 1", Some(first)).await;
    let starts =
        |said: &Vec<String>| said.iter().filter(|said| said.starts_with("sidecar-start")).count();
    assert_eq!(starts(&said.lock().unwrap()), 1, "{said:?}");
    until("it is recorded", || alive(&site).contains(&second)).await;
    stops_with_all(&next, &site).await;
}

async fn goes() {
    let mut site = contained_or_not();
    let first = left_alone(&mut site).await;
    for generation in alive(&site).into_iter().filter(|pid| *pid != first) {
        end(generation);
    }
    // What it could be replaced by does not come.
    site.stage("1", "die-at-once");
    let next = site.open().await;
    until("its sidecar is gone", || !alive(&site).contains(&first)).await;
    assert_eq!(next.status(&host()).await.unwrap().serves, None);
    site.stage("1", "");
    until_state(&next, "serving").await;
    let serves = next.status(&host()).await.unwrap().serves.unwrap();
    site.until_sidecar(&format!("{serves} 1"), Some(first)).await;
    stops_with_all(&next, &site).await;
}

async fn stops() {
    let mut site = contained_or_not();
    let sidecar = left_alone(&mut site).await;
    // It ends long after its generation: only a kill is heard.
    send(sidecar, Signal::STOP);
    assert_eq!(alive(&site).len(), 2);
    let next = site.open().await;
    stops_with_all(&next, &site).await;
}

async fn removed() {
    let mut site = contained_or_not();
    let first = left_alone(&mut site).await;
    site.host = String::new();
    let next = site.open().await;
    until("it is ended", || !alive(&site).contains(&first)).await;
    until_state(&next, "serving").await;
    assert_eq!(alive(&site).len(), 1, "its generation serves on");
    assert_eq!(next.status(&host()).await.unwrap().serves.unwrap().get(), 1);
    stops_with_all(&next, &site).await;
}

const REFUSALS: usize = 3;

/// When each start was asked for, and what refused it.
type Asked = Vec<(Instant, Option<String>)>;

/// A cold wake's generation has no staged path. This activator captures every build, so that the
/// path is taken from the first of them here; the refusal is the real backend's.
struct Cold {
    inner: Arc<dyn Backend>,
    run: PathBuf,
    asked: Arc<Mutex<Asked>>,
}

impl Sidecars for Cold {
    fn start_sidecar_gen(&self, start: &Start<'_>, generation: &Gen) -> Result<Proc, StartError> {
        let sidecars = self.inner.sidecars().unwrap();
        let mut asked = self.asked.lock().unwrap();
        let now = Instant::now();
        let started = if asked.len() < REFUSALS {
            let route = Route { nested: Some(self.run.clone()), ..start.route.clone() };
            let cold = Gen { staged: None, ..generation.clone() };
            sidecars.start_sidecar_gen(&Start { route: &route, ..*start }, &cold)
        } else {
            sidecars.start_sidecar_gen(start, generation)
        };
        let said = started.as_ref().err().map(|error| format!("{error:?}"));
        asked.push((now, said));
        started
    }
    fn start_sidecar(&self, start: &Start<'_>) -> Result<Proc, StartError> {
        self.inner.sidecars().unwrap().start_sidecar(start)
    }
    fn kill_sidecar(
        &self,
        route: &Route,
        leader: Option<&Process>,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.inner.sidecars().unwrap().kill_sidecar(route, leader, deadline)
    }
}

async fn tried_again() {
    let mut site = Site::new();
    site.host = SIDECAR.replace("20ms", "100ms");
    site.stage("1", "");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (times, run) = (Arc::clone(&asked), site.path().join("run"));
    let activator = site
        .open_wrapped(move |inner| {
            let sidecars = Cold { inner: Arc::clone(&inner), run, asked: times };
            OtherSidecars::around(inner, sidecars)
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    site.until_sidecar("1 1", None).await;
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.len(), REFUSALS + 1);
    for (round, two) in asked.windows(2).enumerate() {
        let said = two[0].1.as_ref().expect("it is refused");
        assert!(said.starts_with("Failed") && said.contains("no staged executable"), "{said}");
        let least = Duration::from_millis(100 << round);
        assert!(two[1].0 - two[0].0 >= least, "tried again before {least:?}: {asked:?}");
    }
    stops_with_all(&activator, &site).await;
}
