//! A state file that cannot be replaced, as on a full disk: nothing is ended for a start that cannot
//! come, nothing is said to be done that the next activator would undo, and what could not be written
//! is written once it can be.

use std::fs;
use std::path::PathBuf;

use tickmark_activator::swap::{Outcome, Why};

use crate::basics::Case;
use crate::client::ask;
use crate::site::{Site, alive, build, host, swap, until};

pub(crate) const ALL: &[Case] = &[
    ("a_stop_that_cannot_be_recorded_is_unknown_until_it_is", || Box::pin(stop())),
    ("a_stop_then_start_that_cannot_be_recorded_ends_nothing", || Box::pin(stop_then_start())),
];

/// While it exists the host's state cannot be saved: what is written first is a directory.
struct Full(PathBuf);

impl Full {
    fn of(site: &Site) -> Full {
        let path = site.state().join("hosts/orders/.state.json.new");
        fs::create_dir(&path).unwrap();
        Full(path)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _site_is_gone = fs::remove_dir(&self.0);
    }
}

async fn stop() {
    let site = Site::new();
    site.stage("1", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let full = Full::of(&site);
    let answer = activator.stop(&host()).await.unwrap();
    assert_eq!(answer.outcome, Outcome::Unknown { serves: None, why: Why::Unsaved });
    assert_eq!(answer.outcome.exit(), 4);
    let error = answer.error.expect("it says why").to_string();
    assert!(error.contains("state.json"), "{error}");
    assert!(alive(&site).is_empty(), "it is done all the same");
    drop(full);
    // Nobody asks for anything.
    let state = site.state().join("hosts/orders/state.json");
    until("it is recorded", || {
        fs::read_to_string(&state).is_ok_and(|state| state.contains("\"wanted\":false"))
    })
    .await;
    activator.close().await;
    let next = site.open().await;
    assert_eq!(next.status(&host()).await.unwrap().state, "asleep");
    assert_eq!(next.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
}

async fn stop_then_start() {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\n".to_owned();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let before = alive(&site);
    let full = Full::of(&site);
    let answer = swap(&activator, "2").await;
    let Outcome::Unchanged { why: Why::Denied, .. } = answer.outcome else { panic!("{answer:?}") };
    let error = answer.error.expect("it says why").to_string();
    assert!(error.contains("state.json"), "{error}");
    assert_eq!(answer.build, Some(build("1")));
    assert_eq!(alive(&site), before, "the incumbent is the same");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    drop(full);
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    activator.stop(&host()).await.unwrap();
}
