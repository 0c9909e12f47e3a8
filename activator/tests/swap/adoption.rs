//! What an earlier activator left, found again without a cgroup: by pidfd, start time and boot id.

use tickmark_activator::swap::Outcome;

use crate::basics::Case;
use crate::client::ask;
use crate::daemon::Daemon;
use crate::site::{Site, alive, host, kill, until, until_state};

pub(crate) const ALL: &[Case] = &[
    ("without_a_cgroup_a_generation_is_adopted_and_its_unknown_exit_status_is_said", || {
        Box::pin(adopted())
    }),
    ("what_an_adopted_generation_without_a_cgroup_forked_is_said_to_be_unproven", || {
        Box::pin(async { tokio::task::block_in_place(unproven) })
    }),
    ("another_process_of_the_same_number_is_not_adopted_and_not_touched", || {
        Box::pin(another("start_time"))
    }),
    ("a_process_of_another_boot_is_not_adopted_and_not_touched", || Box::pin(another("boot_id"))),
];

/// The first build serves, and its activator is killed; its process.
fn left_alone(site: &Site) -> u32 {
    site.stage("1", "");
    let mut daemon = Daemon::start(site);
    assert_eq!(daemon.ask("swap 1"), "0");
    daemon.kill();
    let [pid] = alive(site)[..] else { panic!("one process") };
    pid
}

async fn adopted() {
    let site = Site::new();
    let pid = left_alone(&site);
    let next = site.open().await;
    until_state(&next, "serving").await;
    let status = next.status(&host()).await.unwrap();
    let [generation] = &status.generations[..] else { panic!("one generation: {status:?}") };
    assert_eq!((generation.number.get(), &generation.pids[..]), (1, &[pid][..]));
    assert_eq!(ask(&site.socket(), 1).unwrap().generation, 1);
    let mut steps = next.steps();
    kill(pid);
    let mut said = None;
    until("its end is said", || {
        let step = steps.try_recv().ok();
        said = step.map(|step| step.text).filter(|text| text.starts_with("generation 1 ended"));
        said.is_some()
    })
    .await;
    let said = said.unwrap();
    assert!(said.contains("exit status unknown: it is no child of this activator"), "{said}");
    until_state(&next, "serving").await;
    assert_eq!(next.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
}

fn unproven() {
    let site = Site::new();
    let script = format!(
        "#!/bin/sh\nsetsid sh -c 'trap \"\" TERM; while :; do sleep 60; done' &\n\
         exec {} service $1\n",
        std::env::current_exe().unwrap().display()
    );
    site.stage_script("1", &script);
    let mut daemon = Daemon::start(&site);
    assert_eq!(daemon.ask("swap 1"), "0");
    let status: serde_json::Value = serde_json::from_str(&daemon.ask("status")).unwrap();
    let leader = status["generations"][0]["pids"][0].as_u64().unwrap();
    let forked = || alive(&site).iter().filter(|pid| u64::from(**pid) != leader).count();
    daemon.kill();
    assert!(forked() > 0);
    let log = site.path().join("log");
    let mut daemon = Daemon::logging(&site, &log);
    assert_eq!(daemon.ask("stop"), "0");
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("the leader's exit is the only proof that it stopped"), "{said}");
    assert!(forked() > 0, "of what it forked nothing is known");
    assert!(forked() == alive(&site).len(), "the leader is gone");
}

/// One field of the identity that was recorded is another's.
async fn another(field: &str) {
    let site = Site::new();
    let pid = left_alone(&site);
    let path = site.state().join("hosts/orders/state.json");
    let mut state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let recorded = &mut state["ran"]["1"]["slots"][0]["identity"][field];
    *recorded = match recorded {
        serde_json::Value::Number(time) => (time.as_u64().unwrap() - 1).into(),
        _ => "another-boot".into(),
    };
    std::fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    let next = site.open().await;
    until_state(&next, "serving").await;
    let status = next.status(&host()).await.unwrap();
    assert_eq!(status.serves.unwrap().get(), 2, "{status:?}");
    assert!(alive(&site).contains(&pid), "it is no generation of this host");
    assert_eq!(next.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    assert_eq!(alive(&site), [pid]);
}
