//! The activator is killed at random points of a swap, and the next one finds what runs.

use std::time::{Duration, Instant};

use crate::basics::Case;
use crate::client::ask;
use crate::daemon::{Daemon, Random};
use crate::site::{PATIENCE, Site, alive};

pub(crate) const ALL: &[Case] = &[
    ("a_killed_activator_finds_what_runs_by_its_cgroup", || {
        Box::pin(async { tokio::task::block_in_place(|| killed("cgroup", Site::contained())) })
    }),
    ("a_killed_activator_finds_what_runs_by_pidfd_and_start_time", || {
        Box::pin(async { tokio::task::block_in_place(|| killed("pidfd", Some(Site::new()))) })
    }),
];

/// Two hundred in all.
const ROUNDS: u32 = 100;

fn killed(what: &str, site: Option<Site>) {
    let Some(mut site) = site else { return };
    site.host = "settle = \"5ms\"\nstart_deadline = \"10s\"\n\
         restart = { min = \"10ms\", max = \"100ms\" }\n"
        .to_owned();
    site.stage("a", "");
    site.stage("b", "");
    let mut random = Random::new(what);
    let mut daemon = Daemon::start(&site);
    let begun = Instant::now();
    assert_eq!(daemon.ask("swap a"), "0");
    let usual = begun.elapsed().max(Duration::from_millis(20));
    let (mut adopted, mut slowest) = (0, Duration::ZERO);
    for round in 0..ROUNDS {
        let before = alive(&site);
        daemon.send(if round % 2 == 0 { "swap b" } else { "swap a" });
        std::thread::sleep(random.micros_below(usual * 2));
        daemon.kill();
        // Never torn: it reads as JSON at any time.
        let state = std::fs::read(site.state().join("hosts/orders/state.json")).unwrap();
        let _whole: serde_json::Value = serde_json::from_slice(&state).unwrap();

        let restarted = Instant::now();
        daemon = Daemon::start(&site);
        // It serves: what it says and what clients see.
        loop {
            let status: serde_json::Value = serde_json::from_str(&daemon.ask("status")).unwrap();
            let settled = status["state"] == "serving" && status["serves"].is_u64();
            if settled
                && let Ok(answered) = ask(&site.socket(), u64::from(round))
                && Some(answered.generation) == status["serves"].as_u64()
                && status["generations"].as_array().unwrap().len() == 1
            {
                break;
            }
            assert!(
                restarted.elapsed() < PATIENCE,
                "round {round}: it does not serve: {status}\n{}",
                String::from_utf8_lossy(&state)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        slowest = slowest.max(restarted.elapsed());
        // A stub that was not recorded yet ends by itself, once it sees its end of the socket closed.
        let mut now = alive(&site);
        while now.len() != 1 {
            assert!(
                restarted.elapsed() < PATIENCE,
                "round {round}: what is not adopted is removed: {now:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
            now = alive(&site);
        }
        adopted += usize::from(before.contains(&now[0]));
    }
    eprintln!(
        "{what}: {ROUNDS} kills, {adopted} times the incumbent was adopted, \
         {slowest:?} at most until it served and the rest was gone"
    );
    assert!(adopted > 0, "nothing was ever adopted");
    assert_eq!(daemon.ask("stop"), "0");
    assert!(alive(&site).is_empty());
}
