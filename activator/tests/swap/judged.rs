//! How a slot that was started again is judged, and what is asked before a red one is ended.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tickmark::protocol::MaxAge;
use tickmark_activator::health::Launched;
use tickmark_activator::swap::Outcome;
use tickmark_activator::{Activator, Step};
use tokio::sync::broadcast::Receiver;

use crate::basics::Case;
use crate::site::{Site, alive, host, kill, swap, until, within};

pub(crate) const ALL: &[Case] = &[
    ("a_slot_that_starts_again_has_its_start_deadline", || Box::pin(slow_again())),
    ("a_slot_that_is_not_healthy_by_its_start_deadline_is_started_again", || {
        Box::pin(never_again())
    }),
    ("a_red_slot_runs_on_while_a_fence_allows_no_start", || Box::pin(runs_on(Refusal::Fence))),
    ("a_red_slot_of_stop_start_runs_on_while_its_live_build_may_not_run", || {
        Box::pin(runs_on(Refusal::Live))
    }),
];

/// By the marks of the launch that its environment names.
fn is_healthy(pid: u32) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let environment = String::from_utf8(environment).unwrap();
    let variable = |name: &str| {
        let value = environment.split('\0').find_map(|one| one.strip_prefix(name));
        value.map(str::to_owned)
    };
    match (variable("TICKMARK_LAUNCH="), variable("TICKMARK_DIR=")) {
        (Some(token), Some(marks)) => {
            let launched = Launched { token, marks: PathBuf::from(marks) };
            launched.verdict(MaxAge::DEFAULT).is_healthy()
        }
        _ => false,
    }
}

/// When each step with these words came.
pub(crate) fn said(steps: &mut Receiver<Step>, words: &str, times: &mut Vec<SystemTime>) {
    while let Ok(step) = steps.try_recv() {
        if step.text.contains(words) {
            times.push(step.at);
        }
    }
}

fn slots(rest: &str) -> Site {
    let mut site = Site::new();
    site.socket = false;
    site.host = format!(
        "slots = 2\nenv = {{ TICKMARK_MAX_AGE = \"1\" }}\n\
         restart = {{ red = 2, check = \"20ms\", min = \"1ms\", max = \"5ms\" }}\n{rest}"
    );
    site
}

async fn stopped(activator: &Activator, site: &Site) {
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert!(alive(site).is_empty());
}

async fn slow_again() {
    let site = slots("");
    // Far more than its reds take.
    site.stage("1", "healthy-after-1000");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let before = alive(&site);
    let mut steps = activator.steps();
    kill(before[0]);
    let mut now = Vec::new();
    until("both are healthy", || {
        now = alive(&site);
        now.len() == 2 && !now.contains(&before[0]) && now.iter().all(|pid| is_healthy(*pid))
    })
    .await;
    let mut times = Vec::new();
    said(&mut steps, "runs again", &mut times);
    assert_eq!(times.len(), 1, "it was ended before its deadline");
    stopped(&activator, &site).await;
}

async fn never_again() {
    let deadline = Duration::from_millis(400);
    let site = slots(&format!("start_deadline = \"{}ms\"\n", deadline.as_millis()));
    let this = std::env::current_exe().unwrap();
    let bad = site.path().join("bad");
    let script = format!(
        "#!/bin/sh\n[ -e {} ] && FAULT=never-healthy\nexport FAULT\nexec {} service $1\n",
        bad.display(),
        this.display()
    );
    site.stage_script("1", &script);
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    std::fs::write(&bad, "").unwrap();
    let mut steps = activator.steps();
    kill(alive(&site)[0]);
    let mut times = Vec::new();
    until("it is started once more", || {
        said(&mut steps, "runs again", &mut times);
        times.len() >= 2
    })
    .await;
    let ran = times[1].duration_since(times[0]).unwrap();
    assert!(ran >= deadline, "ended after {ran:?}");
    std::fs::remove_file(&bad).unwrap();
    until("both are healthy", || {
        let now = alive(&site);
        now.len() == 2 && now.iter().all(|pid| is_healthy(*pid))
    })
    .await;
    stopped(&activator, &site).await;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Fence,
    Live,
}

async fn runs_on(refusal: Refusal) {
    let site = slots(if refusal == Refusal::Live { "swap = \"stop-start\"\n" } else { "" });
    site.stage("1", "stops-ticking");
    site.stage("2", "");
    let activator = site.open().await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    // Only what was started from the live link is held to it.
    if refusal == Refusal::Live {
        stopped(&activator, &site).await;
        let woken = activator.wake(&host(), within(20)).await.unwrap();
        assert_eq!(woken.outcome.exit(), 0, "{woken:?}");
    }
    let mut steps = activator.steps();
    match refusal {
        Refusal::Fence => activator.fence(&host(), Some("moved".to_owned())).await.unwrap(),
        Refusal::Live => site.point_live_at("2"),
    }
    let running = alive(&site);
    assert_eq!(running.len(), 2);
    let mut times = Vec::new();
    until("a red slot is not restarted", || {
        said(&mut steps, "not restarted", &mut times);
        times.len() >= 3
    })
    .await;
    assert_eq!(alive(&site), running, "what runs goes on");
    match refusal {
        Refusal::Fence => activator.fence(&host(), None).await.unwrap(),
        Refusal::Live => site.point_live_at("1"),
    }
    until("it is restarted", || {
        let now = alive(&site);
        now.len() == 2 && now != running
    })
    .await;
    stopped(&activator, &site).await;
}
