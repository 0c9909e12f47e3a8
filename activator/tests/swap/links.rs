//! Whose the canonical link is: another host's, another activator's and an administrator's stay, and
//! the reason is told.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::config::Config;
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, HostName};

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{PATIENCE, Site, alive, build, host, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("a_host_in_conflict_leaves_the_link_of_the_one_that_serves", || Box::pin(conflict())),
    ("two_spellings_of_one_canonical_path_are_in_conflict", || Box::pin(spellings())),
    ("a_second_activator_leaves_the_link_of_the_first", || Box::pin(second())),
    ("a_link_of_an_administrator_stays_and_refuses_the_switch", || Box::pin(administrators())),
    ("a_stop_removes_its_own_link_while_its_generation_still_accepts", || Box::pin(own())),
    ("a_failed_link_refuses_the_switch_and_the_incumbent_serves", || Box::pin(failed())),
];

fn link(site: &Site) -> PathBuf {
    std::fs::read_link(site.socket()).unwrap()
}

async fn until_serving(activator: &Activator) {
    let begun = Instant::now();
    loop {
        let status = activator.status(&host()).await.unwrap();
        if status.state == "serving" {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{status:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn conflict() {
    let mut site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    activator.close().await;
    let alone = site.host.clone();
    let two = HostName::new("two").unwrap();
    site.host =
        format!("{alone}[host.two]\nsocket = {:?}\nbuilds = {:?}\n", site.socket(), site.builds());
    let activator = site.open().await;
    // It has stopped, as it does at every start: it is not wanted.
    let status = activator.status(&two).await.unwrap();
    assert!(status.layout.starts_with("conflict: "), "{status:?}");
    until_serving(&activator).await;
    assert_eq!(link(&site), Path::new("s.1"));
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    // The conflict is what is told, and the incumbent serves on.
    for (host, exit) in [(&host(), 1), (&two, 5)] {
        let answer = activator.swap(host, build("2"), within(20)).await.unwrap();
        assert_eq!(answer.outcome.exit(), exit, "{answer:?}");
        let error = answer.error.unwrap().to_string();
        assert!(error.contains("is the socket of host "), "{error}");
    }
    activator.stop(&two).await.unwrap();
    assert_eq!(ask(&site.socket(), 2).unwrap().build, "1");
    activator.close().await;

    site.host = alone;
    let activator = site.open().await;
    until_serving(&activator).await;
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    assert!(!site.socket().is_symlink(), "its own link it removes");
}

async fn spellings() {
    let mut site = Site::new();
    site.stage("1", "");
    let also = site.path().join("also");
    symlink(".", &also).unwrap();
    site.host += &format!(
        "[host.two]\nsocket = {:?}\nbuilds = {:?}\n[host.three]\nsocket = {:?}\nbuilds = {:?}\n",
        also.join(site.socket().file_name().unwrap()),
        site.builds(),
        also.join("state/activator.sock"),
        site.builds(),
    );
    let activator = site.open().await;
    let two = HostName::new("two").unwrap();
    let three = HostName::new("three").unwrap();
    for (host, said) in [
        (&host(), "is the socket of host two too, as "),
        (&two, "is the socket of host orders too, as "),
        (&three, "is the socket for commands too, as "),
    ] {
        let answer = activator.swap(host, build("1"), within(20)).await.unwrap();
        assert_eq!(answer.outcome, Outcome::NothingServes { why: Why::Denied }, "{answer:?}");
        let error = answer.error.unwrap().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(alive(&site).is_empty() && !site.socket().is_symlink());
}

async fn second() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let first = site.open().await;
    assert_eq!(swap(&first, "1").await.outcome.exit(), 0);
    assert_eq!(swap(&first, "2").await.outcome.exit(), 0);
    assert_eq!(link(&site), Path::new("s.2"));
    // The same socket, and a state that knows of nothing.
    let other = site.path().join("other");
    let text = site
        .config_text()
        .replace(&format!("state = {:?}", site.state()), &format!("state = {other:?}"));
    let second = Activator::open(Config::parse(&text).unwrap()).await.unwrap();
    second.status(&host()).await.unwrap();
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    // Its second generation would have the very socket that the first activator's has.
    for (why, said) in
        [(Why::Switch, "none of this host's generations"), (Why::Failed, "something listens at ")]
    {
        let answer = swap(&second, "1").await;
        assert_eq!(answer.outcome, Outcome::NothingServes { why }, "{answer:?}");
        let error = answer.error.unwrap().to_string();
        assert!(error.contains(said), "{error}");
        second.stop(&host()).await.unwrap();
        assert_eq!(link(&site), Path::new("s.2"));
    }
    assert_eq!(ask(&site.socket(), 2).unwrap().build, "2");
    second.close().await;
    first.stop(&host()).await.unwrap();
}

async fn administrators() {
    let site = Site::new();
    site.stage("1", "");
    let legacy = site.path().join("legacy.sock");
    let _serves = UnixListener::bind(&legacy).unwrap();
    symlink(&legacy, site.socket()).unwrap();
    let activator = site.open().await;
    let answer = swap(&activator, "1").await;
    assert_eq!(answer.outcome, Outcome::NothingServes { why: Why::Switch }, "{answer:?}");
    let error = answer.error.unwrap().to_string();
    assert!(error.contains("legacy.sock, which is no generation's socket"), "{error}");
    assert_eq!(link(&site), legacy);
    activator.stop(&host()).await.unwrap();
    assert_eq!(link(&site), legacy);
    std::fs::remove_file(site.socket()).unwrap();
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
}

async fn own() {
    let site = Site::new();
    site.stage("1", "");
    let (said, socket) = (Arc::new(Mutex::new(Vec::new())), site.socket());
    let linked = Arc::new(Mutex::new(None));
    let at_the_end = Arc::clone(&linked);
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &said, move |at| {
                if at == "end" {
                    *at_the_end.lock().unwrap() = Some(socket.is_symlink());
                }
            })
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    assert_eq!(*linked.lock().unwrap(), Some(false), "the link goes first");
}

async fn failed() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let before = alive(&site);
    // Where the new link is made before it is moved.
    let blocked = site.path().join(".s.new");
    std::fs::create_dir(&blocked).unwrap();
    let answer = swap(&activator, "2").await;
    let Outcome::Unchanged { serves, why: Why::Switch } = answer.outcome else {
        panic!("{answer:?}")
    };
    assert_eq!((serves.get(), answer.outcome.exit()), (1, 1));
    let error = answer.error.unwrap().to_string();
    assert!(error.contains(".s.new"), "{error}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    until("the successor is gone", || alive(&site) == before).await;
    std::fs::remove_dir(&blocked).unwrap();
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
}
