//! What prune must leave: what runs under whatever name, what is about to run, and what another host
//! needs of the same directory.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tickmark_activator::HostName;
use tickmark_activator::swap::{Outcome, Why};

use crate::basics::Case;
use crate::client::ask;
use crate::daemon::Random;
use crate::outside::Watched;
use crate::site::{Site, build, host, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("prune_leaves_what_a_build_that_runs_links_to", || Box::pin(linked())),
    ("prune_leaves_a_build_that_is_about_to_run", || Box::pin(about_to_run())),
    ("prune_leaves_what_another_host_needs", || Box::pin(shared())),
    ("prune_leaves_the_build_that_was_healthy_last", || Box::pin(healthy_last())),
    ("a_build_that_is_pruned_while_it_is_asked_for_starts_or_is_not_there", || {
        Box::pin(asked_for_meanwhile())
    }),
    ("prune_leaves_a_build_that_is_deployed_meanwhile", || Box::pin(deployed_meanwhile())),
];

/// What is there, in order.
fn there(site: &Site) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(site.builds())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn linked() {
    let site = Site::new();
    for name in ["v4", "v5", "v6"] {
        site.stage(name, "");
    }
    symlink("v5", site.builds().join("stable")).unwrap();
    let activator = site.open().await;
    assert_eq!(swap(&activator, "stable").await.outcome.exit(), 0);
    let removed = activator.prune(&host(), 0).await.unwrap();
    assert_eq!(removed, [build("v6"), build("v4")]);
    assert_eq!(there(&site), ["stable", "v5"]);
    // The link leads elsewhere now: what runs is needed, and what the name leads to.
    site.stage("v7", "");
    site.stage("v8", "");
    std::fs::remove_file(site.builds().join("stable")).unwrap();
    symlink("v7", site.builds().join("stable")).unwrap();
    assert_eq!(activator.prune(&host(), 0).await.unwrap(), [build("v8")]);
    assert_eq!(there(&site), ["stable", "v5", "v7"]);
    let restarted = activator.restart(&host(), within(20)).await.unwrap();
    assert_eq!(restarted.outcome.exit(), 0, "{restarted:?}");
    activator.stop(&host()).await.unwrap();
}

async fn about_to_run() {
    let site = Site::new();
    for name in ["1", "2", "3"] {
        site.stage(name, "");
    }
    let (held, hold) = std::sync::mpsc::channel::<()>();
    let (reached, hold) = (Arc::new(Mutex::new(false)), Mutex::new(hold));
    let (there_now, said) = (Arc::clone(&reached), Arc::new(Mutex::new(Vec::new())));
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &said, move |at| {
                // The second start: it is captured, and nothing of it is noted.
                if at == "raise" {
                    *there_now.lock().unwrap() = true;
                    let _go = hold.lock().unwrap().recv();
                }
            })
        })
        .await;
    let activator = Arc::new(activator);
    assert_eq!(swap(&activator, "3").await.outcome.exit(), 0);
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { swap(&second, "1").await });
    until("it is about to be started", || *reached.lock().unwrap()).await;
    assert_eq!(activator.prune(&host(), 0).await.unwrap(), [build("2")]);
    held.send(()).unwrap();
    let answer = asked.await.unwrap();
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    drop(held);
    activator.stop(&host()).await.unwrap();
}

async fn shared() {
    let mut site = Site::new();
    for name in ["1", "2", "3"] {
        site.stage(name, "");
    }
    site.host = format!(
        "[host.other]\nbuilds = {:?}\nsocket = {:?}\nsettle = \"10ms\"\n",
        site.builds(),
        site.path().join("o")
    );
    let other = HostName::new("other").unwrap();
    let activator = site.open().await;
    assert_eq!(swap(&activator, "3").await.outcome.exit(), 0);
    let answer = activator.swap(&other, build("1"), within(20)).await.unwrap();
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    assert_eq!(activator.prune(&host(), 0).await.unwrap(), [build("2")]);
    for host in [&host(), &other] {
        activator.stop(host).await.unwrap();
    }
}

async fn healthy_last() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    // It is healthy, and the link cannot be made: it never served, and is no live build.
    let blocked = site.path().join(".s.new");
    std::fs::create_dir(&blocked).unwrap();
    let answer = swap(&activator, "1").await;
    assert_eq!(answer.outcome, Outcome::NothingServes { why: Why::Switch }, "{answer:?}");
    activator.stop(&host()).await.unwrap();
    std::fs::remove_dir(&blocked).unwrap();
    activator.prune(&host(), 0).await.unwrap();
    assert_eq!(there(&site), ["1"]);
    let restarted = activator.restart(&host(), within(20)).await.unwrap();
    assert_eq!(restarted.outcome.exit(), 0, "{restarted:?}");
    activator.stop(&host()).await.unwrap();
}

/// Both at once, over and over: whichever comes first, the answer says what was the matter, and what
/// serves is never ended for a build that is gone.
async fn asked_for_meanwhile() {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\n".to_owned();
    site.stage("live", "");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "live").await.outcome.exit(), 0);
    let mut random = Random::new("prune against swap");
    let (mut served, mut was_gone) = (0, 0);
    for round in 0..40 {
        site.stage("asked", "");
        let prunes = Arc::clone(&activator);
        let wait = random.micros_below(Duration::from_micros(400));
        let pruned = tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            prunes.prune(&host(), 0).await.unwrap()
        });
        tokio::time::sleep(random.micros_below(Duration::from_micros(400))).await;
        let answer = swap(&activator, "asked").await;
        let pruned = pruned.await.unwrap();
        match answer.outcome {
            Outcome::Done(_) => served += 1,
            Outcome::Unchanged { why: Why::Denied, .. } => {
                let error = answer.error.unwrap().to_string();
                assert!(error.contains("there is no build "), "{round}: {error}");
                assert_eq!(pruned, [build("asked")]);
                was_gone += 1;
                continue;
            }
            _ => panic!("{round}, pruned {pruned:?}: {answer:?}"),
        }
        assert_eq!(ask(&site.socket(), round).unwrap().build, "asked");
        // What served is as before, and the other is not the one that served before it.
        for name in ["live", "other", "live"] {
            site.stage(name, "");
            assert_eq!(swap(&activator, name).await.outcome.exit(), 0);
        }
    }
    eprintln!("it served {served} times, and was not there {was_gone} times");
    activator.stop(&host()).await.unwrap();
}

async fn deployed_meanwhile() {
    let site = Site::new();
    site.stage("9", "");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "9").await.outcome.exit(), 0);
    let source = site.path().join("source");
    std::fs::rename(site.builds().join("9"), &source).unwrap();
    std::fs::copy(&source, site.builds().join("9")).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (prunes, ends) = (Arc::clone(&activator), Arc::clone(&over));
    let pruned = tokio::spawn(async move {
        let mut rounds = 0;
        while !ends.load(Ordering::Relaxed) || rounds == 0 {
            prunes.prune(&host(), 0).await.unwrap();
            rounds += 1;
        }
    });
    for name in ["1", "2", "3", "4", "5", "6"] {
        let name = build(name);
        let answer = activator.deploy(&host(), &source, Some(name), within(20)).await.unwrap();
        assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    }
    over.store(true, Ordering::Relaxed);
    pruned.await.unwrap();
    assert_eq!(there(&site), ["5", "6"], "what serves, and what did before");
    activator.stop(&host()).await.unwrap();
}
