//! What happens while nobody asks: deaths, red verdicts, backoff; and requests that meet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Options};

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{PATIENCE, SIDECAR, Site, alive, build, host, kill, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("an_incumbent_that_dies_is_restarted_with_backoff", || Box::pin(restarted())),
    ("a_verdict_red_in_a_row_restarts_with_a_new_generation", || Box::pin(red())),
    ("a_newer_request_supersedes_an_older_one", || Box::pin(superseded())),
    ("if_the_incumbent_dies_first_a_healthy_successor_takes_over", || Box::pin(takes_over())),
    ("a_task_of_the_host_owns_the_start_not_the_callers_future", || Box::pin(owns())),
    ("stop_then_start_never_overlaps", || Box::pin(stop_then_start())),
    ("a_foreign_row_keeps_its_canonical_socket_and_never_overlaps", || Box::pin(foreign())),
    ("start_staged_never_waits_for_health", || Box::pin(never_waits())),
    ("the_parent_carries_both_before_the_successor_starts_and_one_after_the_proof", || {
        Box::pin(parent())
    }),
    ("a_crash_before_the_parent_is_restored_is_put_right_at_the_next_start", || {
        Box::pin(put_right())
    }),
    ("a_successor_that_dies_during_the_switch_leaves_the_incumbent_serving", || {
        Box::pin(dies_during_the_switch())
    }),
    ("what_a_generation_forked_is_gone_with_it", || Box::pin(forked())),
    ("wake_is_cold_from_the_live_link_and_pinned_by_a_hold", || Box::pin(wakes())),
    ("a_rollback_serves_the_build_before", || Box::pin(rolls_back())),
    ("each_slot_is_started_again_alone", || Box::pin(slots())),
    ("a_sidecar_runs_the_captured_build_and_never_the_live_link", || Box::pin(sidecar())),
    ("what_ignores_sigterm_is_killed_after_its_drain", || Box::pin(drained())),
    ("a_write_runs_only_for_the_current_generation", || Box::pin(write_fence())),
];

async fn pid(activator: &Activator) -> Option<u32> {
    let status = activator.status(&host()).await.unwrap();
    let serves = status.serves?;
    let one = status.generations.into_iter().find(|one| one.number == serves)?;
    one.pids.first().copied()
}

async fn serves(activator: &Activator) -> Option<u64> {
    activator.status(&host()).await.unwrap().serves.map(|number| number.get())
}

/// Until generation `above` or a later one serves, and nothing else is left.
async fn until_serves(activator: &Activator, above: u64) -> u64 {
    let begun = Instant::now();
    loop {
        let status = activator.status(&host()).await.unwrap();
        if let Some(serves) = status.serves
            && serves.get() >= above
            && status.generations.len() == 1
        {
            return serves.get();
        }
        assert!(begun.elapsed() < PATIENCE, "{status:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn restarted() {
    let mut site = Site::new();
    site.host = "restart = { min = \"50ms\", max = \"2s\", reset = \"10m\" }\n".to_owned();
    site.stage("1", "");
    let activator = site.open().await;
    swap(&activator, "1").await;
    let mut took = Vec::new();
    for round in 1..=4 {
        kill(pid(&activator).await.unwrap());
        let begun = Instant::now();
        assert_eq!(until_serves(&activator, round + 1).await, round + 1);
        took.push(begun.elapsed());
        assert_eq!(ask(&site.socket(), round).unwrap().generation, round + 1);
    }
    // 50, 100, 200 and 400 ms at least.
    for (round, took) in took.iter().enumerate() {
        let least = Duration::from_millis(50 << round);
        assert!(*took >= least, "restart {round} came after {took:?}, before {least:?}");
    }
    activator.stop(&host()).await.unwrap();
}

async fn red() {
    let mut site = Site::new();
    site.host = "env = { TICKMARK_MAX_AGE = \"1\" }\n\
         restart = { red = 3, check = \"100ms\", min = \"10ms\", max = \"1s\" }\n"
        .to_owned();
    // Its marks end after 300 ms, and it goes on serving.
    site.stage("1", "stops-ticking");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let mut steps = activator.steps();
    assert_eq!(until_serves(&activator, 2).await, 2);
    let mut texts = Vec::new();
    while let Ok(step) = steps.try_recv() {
        texts.push(step.text);
    }
    let reds = texts.iter().filter(|text| text.contains("red ")).count();
    assert!(reds >= 3, "restarted after {reds} red verdicts: {texts:?}");
    assert!(texts.iter().any(|text| text.contains("stale")), "{texts:?}");
    activator.stop(&host()).await.unwrap();
}

async fn superseded() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("slow", "never-healthy");
    site.stage("2", "");
    let activator = Arc::new(site.open().await);
    swap(&activator, "1").await;
    let first = Arc::clone(&activator);
    let slow = tokio::spawn(async move { first.swap(&host(), build("slow"), within(60)).await });
    until("the first attempt runs", || alive(&site).len() == 2).await;
    let second = swap(&activator, "2").await;
    assert_eq!(second.outcome.exit(), 0, "{second:?}");
    let slow = slow.await.unwrap().unwrap();
    assert!(matches!(slow.outcome, Outcome::Unchanged { why: Why::Superseded, .. }), "{slow:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    assert_eq!(alive(&site).len(), 1);
    let status = activator.status(&host()).await.unwrap();
    assert!(status.failed.is_empty(), "a superseded build did not fail: {status:?}");
    activator.stop(&host()).await.unwrap();
}

async fn takes_over() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "healthy-after-500");
    let activator = Arc::new(site.open().await);
    swap(&activator, "1").await;
    let incumbent = pid(&activator).await.unwrap();
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { swap(&second, "2").await });
    until("the successor runs", || alive(&site).len() == 2).await;
    kill(incumbent);
    let answer = asked.await.unwrap();
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    activator.stop(&host()).await.unwrap();
}

async fn owns() {
    let site = Site::new();
    site.stage("1", "");
    let activator = site.open().await;
    {
        let host = host();
        let asked = activator.swap(&host, build("1"), within(20));
        let gone = tokio::time::timeout(Duration::from_millis(1), asked).await;
        assert!(gone.is_err(), "the caller goes away at once");
    }
    assert_eq!(until_serves(&activator, 1).await, 1);
    activator.stop(&host()).await.unwrap();
}

/// The greatest number of processes at once while `swap`ping to the second build.
async fn most_alive(site: &Site) -> (usize, u64) {
    site.stage("1", "");
    site.stage("2", "");
    let activator = Arc::new(site.open().await);
    swap(&activator, "1").await;
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { swap(&second, "2").await });
    let mut most = 0;
    while !asked.is_finished() {
        most = most.max(alive(site).len());
        tokio::task::yield_now().await;
    }
    let answer = asked.await.unwrap();
    assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    let answered = ask(&site.socket(), 1).unwrap().generation;
    activator.stop(&host()).await.unwrap();
    (most, answered)
}

async fn stop_then_start() {
    let mut site = Site::new();
    site.host = "swap = \"stop-start\"\n".to_owned();
    assert_eq!(most_alive(&site).await, (1, 2));
}

async fn foreign() {
    let mut site = Site::new();
    // One generation's control path would be one byte too long.
    site.long_socket = true;
    let socket = site.socket();
    assert_eq!(most_alive(&site).await, (1, 2));
    assert!(!socket.is_symlink());
}

async fn never_waits() {
    let site = Site::new();
    site.stage("1", "never-healthy");
    let said = Arc::new(Mutex::new(Vec::new()));
    let times = Arc::new(Mutex::new(Vec::new()));
    let (watched, noted) = (Arc::clone(&said), Arc::clone(&times));
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &watched, move |point| {
                noted.lock().unwrap().push((point.to_owned(), Instant::now()));
            })
        })
        .await;
    let options = Options { deadline: Some(Duration::from_secs(3)), ..Options::default() };
    let answer = activator.swap(&host(), build("1"), options).await.unwrap();
    assert_eq!(answer.outcome.exit(), 5);
    let times = times.lock().unwrap();
    let at = |point: &str| times.iter().find(|(found, _)| found == point).unwrap().1;
    assert!(at("end") - at("started") >= Duration::from_secs(1), "health was awaited elsewhere");
    assert!(at("started") - at("start") < Duration::from_secs(2), "the start itself waited");
}

async fn parent() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    for (name, pids) in [("1", 30), ("2", 50)] {
        let manifest = format!("tier = {{ pids = {pids} }}\n");
        std::fs::write(site.builds().join(format!("{name}.toml")), manifest).unwrap();
    }
    let said = Arc::new(Mutex::new(Vec::new()));
    let watched = Arc::clone(&said);
    let activator = site.open_wrapped(move |inner| Watched::around(inner, &watched, |_| {})).await;
    swap(&activator, "1").await;
    said.lock().unwrap().clear();
    // A manifest that changes after the admission is not read again.
    swap(&activator, "2").await;
    let said: Vec<String> = said.lock().unwrap().clone();
    let at = |what: &str| {
        said.iter().position(|said| said == what).unwrap_or_else(|| panic!("{what}: {said:?}"))
    };
    assert!(at("raise pids.max 80") < at("start 2"), "{said:?}");
    assert!(at("ended generation-1-0") < at("restore pids.max 50"), "{said:?}");
    assert_eq!(said.iter().filter(|said| said.starts_with("restore")).count(), 1, "{said:?}");
    let status = activator.status(&host()).await.unwrap();
    assert_eq!(status.parent.unwrap().to_string(), "pids.max 50", "the record follows");
    activator.stop(&host()).await.unwrap();
}

async fn put_right() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    for (name, pids) in [("1", 30), ("2", 50)] {
        let manifest = format!("tier = {{ pids = {pids} }}\n");
        std::fs::write(site.builds().join(format!("{name}.toml")), manifest).unwrap();
    }
    let (state, away) = (site.state(), site.state().with_extension("away"));
    let said = Arc::new(Mutex::new(Vec::new()));
    let watched = Arc::clone(&said);
    let moved = (state.clone(), away.clone());
    // As in a crash there: nothing of this activator is written from then on.
    let armed = Arc::new(AtomicBool::new(false));
    let second = Arc::clone(&armed);
    let crash = move |point: &str| {
        if point == "restore" && second.load(Ordering::SeqCst) {
            std::fs::rename(&moved.0, &moved.1).unwrap();
        }
    };
    let activator = site.open_wrapped(move |inner| Watched::around(inner, &watched, crash)).await;
    swap(&activator, "1").await;
    armed.store(true, Ordering::SeqCst);
    activator.swap(&host(), build("2"), within(20)).await.unwrap();
    until("the parent is to be restored", || away.exists()).await;
    activator.close().await;
    let _made_again = std::fs::remove_dir_all(&state);
    std::fs::rename(&away, &state).unwrap();

    said.lock().unwrap().clear();
    let watched = Arc::clone(&said);
    let next = site.open_wrapped(move |inner| Watched::around(inner, &watched, |_| {})).await;
    until("the next activator restores it", || {
        said.lock().unwrap().iter().any(|said| said == "restore pids.max 50")
    })
    .await;
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "2");
    next.stop(&host()).await.unwrap();
}

async fn dies_during_the_switch() {
    let site = Arc::new(Site::new());
    site.stage("1", "");
    site.stage("2", "");
    let said = Arc::new(Mutex::new(Vec::new()));
    let incumbent = Arc::new(Mutex::new(None));
    let (spared, place) = (Arc::clone(&incumbent), Arc::clone(&site));
    let die = move |point: &str| {
        if point == "switch"
            && let Some(spared) = *spared.lock().unwrap()
        {
            for pid in alive(&place).into_iter().filter(|pid| *pid != spared) {
                kill(pid);
            }
            // Its end is noticed before the link is made.
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let activator = site.open_wrapped(move |inner| Watched::around(inner, &said, die)).await;
    swap(&activator, "1").await;
    let first = pid(&activator).await.unwrap();
    *incumbent.lock().unwrap() = Some(first);
    let answer = swap(&activator, "2").await;
    assert!(matches!(answer.outcome, Outcome::Unchanged { why: Why::Died, .. }), "{answer:?}");
    assert_eq!(ask(&site.socket(), 1).unwrap().build, "1");
    assert_eq!(alive(&site), [first]);
    *incumbent.lock().unwrap() = None;
    activator.stop(&host()).await.unwrap();
}

/// In a cgroup, whatever became of it: without one it would stay.
async fn forked() {
    let Some(site) = Site::contained() else { return };
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n(setsid sh -c 'trap \"\" TERM; while :; do sleep 60; done' &)\n\
         exec {} service $1\n",
        this.display()
    );
    site.stage_script("1", &script);
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    until("it has forked", || alive(&site).len() >= 2).await;
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    assert_eq!(alive(&site).len(), 1, "what it forked is gone with it");
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
}

async fn wakes() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    let nothing = activator.wake(&host(), within(5)).await.unwrap();
    assert_eq!(nothing.outcome.exit(), 5, "nothing was ever deployed: {nothing:?}");
    swap(&activator, "1").await;
    activator.stop(&host()).await.unwrap();
    let cold = activator.wake(&host(), within(20)).await.unwrap();
    assert_eq!((cold.outcome.exit(), cold.build), (0, Some(build("1"))));
    let again = activator.wake(&host(), within(20)).await.unwrap();
    assert_eq!(again.outcome, cold.outcome, "what serves serves");

    let held = activator.hold(&host(), build("2"), within(20)).await.unwrap();
    assert_eq!(held.build, Some(build("2")));
    let refused = swap(&activator, "1").await;
    assert_eq!(refused.outcome.exit(), 1);
    assert!(refused.error.unwrap().to_string().contains("held at 2"));
    activator.stop(&host()).await.unwrap();
    let pinned = activator.wake(&host(), within(20)).await.unwrap();
    assert_eq!(pinned.build, Some(build("2")));
    assert_eq!(activator.release(&host()).await.unwrap(), Some(build("2")));
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
}

async fn rolls_back() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    swap(&activator, "1").await;
    let none = activator.rollback(&host(), within(20)).await.unwrap();
    assert_eq!(none.outcome.exit(), 1);
    swap(&activator, "2").await;
    let back = activator.rollback(&host(), within(20)).await.unwrap();
    assert_eq!((back.outcome.exit(), back.build), (0, Some(build("1"))));
    let restarted = activator.restart(&host(), within(20)).await.unwrap();
    assert_eq!((restarted.outcome.exit(), restarted.build), (0, Some(build("1"))));
    assert_eq!(serves(&activator).await, Some(4));
    activator.stop(&host()).await.unwrap();
}

async fn slots() {
    let mut site = Site::new();
    site.socket = false;
    site.host = "slots = 3\nrestart = { min = \"20ms\" }\n".to_owned();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let before = alive(&site);
    assert_eq!(before.len(), 3);
    kill(before[1]);
    until("the slot runs again", || {
        let now = alive(&site);
        now.len() == 3 && !now.contains(&before[1])
    })
    .await;
    let now = alive(&site);
    assert!(now.contains(&before[0]) && now.contains(&before[2]), "the others go on");
    assert_eq!(serves(&activator).await, Some(1), "the generation is the same");
    let begun = Instant::now();
    while activator.status(&host()).await.unwrap().generations[0].pids.len() != 3 {
        assert!(begun.elapsed() < PATIENCE, "the slot is not in hand again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    assert_eq!(alive(&site).len(), 3);
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
}

async fn sidecar() {
    let mut site = Site::new();
    site.host = SIDECAR.to_owned();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    swap(&activator, "1").await;
    let first = site.until_sidecar("1 1", None).await;
    // The live link names the other build now, and the sidecar dies.
    site.point_live_at("2");
    kill(first);
    let again = || site.sidecar().filter(|(_, pid)| *pid != first);
    until("the sidecar runs again", || again().is_some()).await;
    assert_eq!(again().unwrap().0, "1 1", "it runs what was captured");
    swap(&activator, "2").await;
    site.until_sidecar("2 2", None).await;
    assert_eq!(alive(&site).len(), 2, "a generation and a sidecar");
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
}

async fn drained() {
    let mut site = Site::new();
    site.socket = false;
    site.host = "drain = \"300ms\"\n".to_owned();
    site.stage("1", "ignore-term");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let begun = Instant::now();
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(begun.elapsed() >= Duration::from_millis(300), "it had its drain");
    assert!(alive(&site).is_empty());
}

async fn write_fence() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    swap(&activator, "1").await;
    let fence = activator.write_fence();
    let number = |n| tickmark_activator::GenerationNumber::new(n).unwrap();
    let mut writes = 0;
    assert!(fence.run(&host(), number(1), || writes += 1));
    assert!(!fence.run(&host(), number(2), || writes += 1));
    swap(&activator, "2").await;
    assert!(!fence.run(&host(), number(1), || writes += 1), "it drained");
    assert!(fence.run(&host(), number(2), || writes += 1));
    assert_eq!(writes, 2);
    activator.stop(&host()).await.unwrap();
}
