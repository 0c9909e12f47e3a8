//! A state file that cannot be replaced, as on a full disk: nothing is ended for a start that cannot
//! come, nothing is said to be done that the next activator would undo, and what could not be written
//! is written once it can be.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tickmark_activator::swap::{Outcome, Why};

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{Site, alive, build, host, skip, swap, until};

pub(crate) const ALL: &[Case] = &[
    ("a_stop_that_cannot_be_recorded_is_unknown_until_it_is", || Box::pin(stop())),
    ("a_stop_then_start_that_cannot_be_recorded_ends_nothing", || Box::pin(stop_then_start())),
    ("a_stop_then_start_whose_record_has_no_room_ends_nothing", || Box::pin(no_spare())),
    ("a_disk_that_fills_while_the_incumbent_drains_keeps_nothing_from_starting", || {
        Box::pin(fills())
    }),
];

/// While it exists the host's state cannot be saved: what is written first is a directory. Of a disk
/// that is full the next save has its room already.
struct Full(PathBuf);

impl Full {
    fn of(site: &Site) -> Full {
        let path = site.state().join("hosts/orders/.state.json.new");
        fs::remove_file(&path).unwrap();
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

/// The state directory on a file system of its own, so small that it can be filled.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, and one line, where none can be mounted.
    fn of(site: &Site) -> Option<SmallDisk> {
        fs::create_dir(site.state()).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k", "tickmark-test"])
            .arg(site.state())
            .output();
        let failed = match mount {
            Ok(out) if out.status.success() => return Some(SmallDisk(site.state())),
            Ok(out) => String::from_utf8_lossy(&out.stderr).trim_end().to_owned(),
            Err(error) => error.to_string(),
        };
        skip("a small disk", &format!("it cannot be mounted: {failed}"));
        None
    }

    /// To its last byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("ballast")).unwrap();
        for size in [4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        let error = fs::write(self.0.join("more"), "more").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }

    fn has_room_again(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whoever still has a file of it open gives it back with that.
        let _gone = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

async fn fills() {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\n".to_owned();
    site.stage("1", "");
    site.stage("2", "");
    site.stage("3", "die-at-once");
    let Some(disk) = SmallDisk::of(&site) else { return };
    let disk = Arc::new(disk);
    let (fills, fill) = (Arc::new(AtomicBool::new(false)), Arc::clone(&disk));
    let (now, said) = (Arc::clone(&fills), Arc::new(Mutex::new(Vec::new())));
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &said, move |at| {
                // The incumbent has had its SIGTERM, and is not proven gone yet.
                if at == "end" && now.swap(false, Ordering::SeqCst) {
                    fill.fill();
                }
            })
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    fills.store(true, Ordering::SeqCst);
    let answer = swap(&activator, "2").await;
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    assert!(!fills.load(Ordering::SeqCst), "the disk is full");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    // Nor does a build that fails keep the last healthy one from coming back.
    let answer = swap(&activator, "3").await;
    let Outcome::Unchanged { why: Why::Died, .. } = answer.outcome else { panic!("{answer:?}") };
    assert_eq!(ask(&site.socket(), 2).unwrap().build, "2");
    activator.close().await;
    // What is on the disk is whole: the next activator finds what runs, full as it is.
    let before = alive(&site);
    let next = site.open().await;
    assert_eq!(next.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert_eq!((before.len(), alive(&site).len()), (1, 0));
    disk.has_room_again();
    assert_eq!(swap(&next, "1").await.outcome.exit(), 0);
    next.stop(&host()).await.unwrap();
    next.close().await;
}

async fn no_spare() {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\n".to_owned();
    site.stage("1", "");
    site.stage("2", "");
    let Some(disk) = SmallDisk::of(&site) else { return };
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let before = alive(&site);
    // As of a state that has to grow: what it takes the place of is too short for the next one.
    fs::write(site.state().join("hosts/orders/state.json"), "").unwrap();
    disk.fill();
    let answer = swap(&activator, "2").await;
    let Outcome::Unchanged { why: Why::Denied, .. } = answer.outcome else { panic!("{answer:?}") };
    let error = answer.error.expect("it says why").to_string();
    assert!(error.contains("keep room") && error.contains("No space"), "{error}");
    assert_eq!(alive(&site), before, "the incumbent is the same");
    disk.has_room_again();
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    activator.close().await;
}
