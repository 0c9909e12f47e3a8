//! The whole activator over real cgroups: what its parent cgroup may use from one step of a swap to
//! the next, through a crash too, and what it says of a generation that left its cgroup.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tickmark_activator::cgroup::Limit;
use tickmark_activator::config::Config;
use tickmark_activator::gate::{Context, Ended};
use tickmark_activator::health::MarksRoot;
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Activator, Answer, BuildName, Hooks, HostName, Options};
use tokio::runtime::Runtime;

use crate::outside::Watched;
use crate::site::{Site, generation, until};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::from(cases![Cgroup:
        a_refused_start_whose_first_slot_left_its_cgroup_is_not_proven_killed
    ]);
    cases.extend(cases![Controllers:
        the_parent_has_the_sum_while_both_live_and_one_tier_after_the_proof
        a_crash_before_the_successor_starts_leaves_a_parent_that_is_put_right
        a_crash_while_both_live_leaves_a_parent_that_is_put_right
        a_crash_before_the_restore_leaves_a_parent_that_is_put_right
    ]);
    cases
}

/// A guest takes fifty times as long to start a process.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

fn host() -> HostName {
    HostName::new("orders").expect("a good name")
}

/// A worker without a socket, of `slots` processes.
fn config(site: &Site, slots: u32) -> String {
    format!(
        "[activator]\nstate = {:?}\ncgroup = {:?}\n\n[host.orders]\nbuilds = {:?}\n\
         settle = \"20ms\"\nslots = {slots}\n",
        site.files.path("state"),
        site.delegation.path(),
        site.files.path("builds"),
    )
}

/// A build that does `first`, and then works until it is told to end.
fn stage(site: &Site, name: &str, first: &str) {
    let path = site.files.path("builds").join(name);
    fs::create_dir_all(site.files.path("builds")).unwrap();
    let this = std::env::current_exe().unwrap();
    fs::write(&path, format!("#!/bin/sh\n{first}exec {} service\n", this.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn tier(memory_mib: u64, pids: u32) -> Limit {
    Limit { memory: NonZeroU64::new(memory_mib << 20), pids: NonZeroU32::new(pids), cpu: None }
}

fn first_tier() -> Limit {
    tier(96, 30)
}

fn second_tier() -> Limit {
    tier(128, 50)
}

fn stage_both(site: &Site) {
    for (name, tier) in [("1", "96M\", pids = 30"), ("2", "128M\", pids = 50")] {
        stage(site, name, "");
        let manifest = site.files.path("builds").join(format!("{name}.toml"));
        fs::write(manifest, format!("tier = {{ memory = \"{tier} }}\n")).unwrap();
    }
}

/// As the kernel has it. Without the controllers, which the first limit brings, nothing is limited.
fn in_force(cgroup: &Path) -> Limit {
    let text = |file: &str| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
    let read = |file: &str| text(file).trim().parse::<u64>().ok();
    let pids = read("pids.max").and_then(|pids| u32::try_from(pids).ok());
    Limit {
        memory: read("memory.max").and_then(NonZeroU64::new),
        pids: pids.and_then(NonZeroU32::new),
        cpu: None,
    }
}

async fn open(config: &str, act: impl Fn(&str) + Send + Sync + 'static) -> Activator {
    let config = Config::parse(config).unwrap_or_else(|error| panic!("{error}\n{config}"));
    let said = Arc::default();
    let wrap = move |inner| Watched::around(inner, &said, act);
    let hooks = Hooks { backend: Some(Box::new(wrap)), ..Hooks::default() };
    Activator::open_with(config, hooks).await.expect("it opens")
}

async fn swap(activator: &Activator, name: &str, context: Context) -> Answer {
    let options = Options { deadline: Some(PATIENCE), context };
    activator.swap(&host(), BuildName::new(name).unwrap(), options).await.unwrap()
}

fn the_parent_has_the_sum_while_both_live_and_one_tier_after_the_proof(site: &Site) {
    stage_both(site);
    let parent = site.host_path();
    let [incumbent, successor] = [1, 2].map(|number| site.leaf_path(generation(number)));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (looked, path) = (Arc::clone(&seen), parent.clone());
    let look = move |point: &str| {
        let events = fs::read_to_string(incumbent.join("cgroup.events")).unwrap_or_default();
        let alive = events.contains("populated 1");
        looked.lock().unwrap().push((point.to_owned(), in_force(&path), alive));
    };
    runtime().block_on(async {
        let activator = open(&config(site, 1), look).await;
        let first = swap(&activator, "1", Context::new()).await;
        assert_eq!(first.outcome.exit(), 0, "{first:?}");
        assert_eq!(in_force(&parent), first_tier());
        seen.lock().unwrap().clear();
        let second = swap(&activator, "2", Context::new()).await;
        assert_eq!(second.outcome.exit(), 0, "{second:?}");
        assert_eq!(in_force(&parent), second_tier());
        assert_eq!(in_force(&successor), second_tier(), "each is limited by its own");
        activator.stop(&host()).await.unwrap();
    });
    let seen = seen.lock().unwrap();
    let sum = Limit::overlap(&first_tier(), &second_tier());
    for (point, limit, alive) in [
        ("raise", first_tier(), true),
        ("start", sum, true),
        ("gate-1", sum, true),
        ("note", sum, true),
        ("gate-2", sum, true),
        ("started", sum, true),
        ("ready", sum, true),
        ("ended", sum, false),
        ("restore", sum, false),
    ] {
        let found = seen.iter().find(|(at, ..)| at == point);
        let Some((_, found, lives)) = found else { panic!("no {point}: {seen:?}") };
        assert_eq!((found, *lives), (&limit, alive), "at {point}: {seen:?}");
    }
}

/// An activator in a process of its own, which comes to `point` of its second swap and no further.
pub(crate) fn comes_to(config: &str, point: &str) -> ! {
    let armed = Arc::new(Mutex::new(false));
    let (awaited, trigger) = (point.to_owned(), Arc::clone(&armed));
    let act = move |at: &str| {
        if at == awaited && *trigger.lock().unwrap() {
            say(at);
            loop {
                std::thread::park();
            }
        }
    };
    runtime().block_on(async {
        let activator = open(config, act).await;
        let first = swap(&activator, "1", Context::new()).await;
        assert_eq!(first.outcome.exit(), 0, "{first:?}");
        *armed.lock().unwrap() = true;
        let second = swap(&activator, "2", Context::new()).await;
        panic!("it did not come to {point}: {second:?}");
    })
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody reads");
}

fn put_right(site: &Site, point: &str, serves: &str, tier: Limit) {
    stage_both(site);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["worker", "activator", &config(site, 1), point])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), point);
    let parent = site.host_path();
    assert_eq!(in_force(&parent), Limit::overlap(&first_tier(), &second_tier()));
    child.kill().unwrap();
    child.wait().unwrap();

    runtime().block_on(async {
        let begun = Instant::now();
        let next = open(&config(site, 1), |_| {}).await;
        until("the parent is put right", || in_force(&parent) == tier);
        // The record follows.
        let status = loop {
            let status = next.status(&host()).await.unwrap();
            if status.parent == Some(tier) {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "{status:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let [generation] = &status.generations[..] else { panic!("{status:?}") };
        assert_eq!((Some(generation.number), generation.build.as_str()), (status.serves, serves));
        assert_eq!(next.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    });
}

fn a_crash_before_the_successor_starts_leaves_a_parent_that_is_put_right(site: &Site) {
    put_right(site, "start", "1", first_tier());
}

fn a_crash_while_both_live_leaves_a_parent_that_is_put_right(site: &Site) {
    put_right(site, "ready", "1", first_tier());
}

fn a_crash_before_the_restore_leaves_a_parent_that_is_put_right(site: &Site) {
    put_right(site, "restore", "2", second_tier());
}

/// The first of two slots moves itself away, and the request ends before the second one's go.
fn a_refused_start_whose_first_slot_left_its_cgroup_is_not_proven_killed(site: &Site) {
    let other = site.delegation.host(&HostName::new("other").unwrap()).unwrap();
    let refuge = other.fresh_leaf(generation(7)).unwrap();
    let path = site.delegation.path().join("host-other/generation-7-0");
    stage(site, "1", &format!("echo 0 >{}/cgroup.procs\n", path.display()));
    let context = Context::new();
    let (revoked, starts) = (context.clone(), Mutex::new(0));
    let revoke = move |point: &str| {
        if point == "gate-1" {
            let mut starts = starts.lock().unwrap();
            *starts += 1;
            if *starts == 2 {
                until("the first slot has left", || refuge.populated().unwrap());
                revoked.end(Ended::Cancelled);
            }
        }
    };
    runtime().block_on(async {
        let activator = open(&config(site, 2), revoke).await;
        let answer = swap(&activator, "1", context).await;
        assert_eq!(answer.outcome, Outcome::Unknown { serves: None, why: Why::Killed });
        let error = answer.error.expect("it says why");
        assert!(error.is_unproven() && error.to_string().contains("left"), "{error:?}");
        assert!(other.populated().unwrap(), "it lives on");
        activator.close().await;
    });
    other.kill(&[], crate::site::soon()).expect("empty");
    MarksRoot::of(&site.files.path("state")).unwrap().retain(&[]);
}
