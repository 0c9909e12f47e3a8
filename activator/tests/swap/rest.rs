//! Rules that belong to no other file here: what a start clears, what a nested row's channel is told,
//! when a tier is read, whose deadline holds, what the switch holds while it is made, and what
//! outlives an activator.

use std::fs;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tickmark_activator::backend::{Backend as _, Sidecars as _, SplitBackend};
use tickmark_activator::exec::StagedExe;
use tickmark_activator::gate::Gate;
use tickmark_activator::layout::Layout;
use tickmark_activator::process::Exit;
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{Backing, Gen, GenerationNumber, LeafName, Options, Route, WriteFence};

use crate::backend::{Control, SAYS, backend, cold, row, soon, staged, start};
use crate::basics::Case;
use crate::client::ask;
use crate::ending::Channel;
use crate::outside::Watched;
use crate::site::{Site, alive, build, host, kill, swap, until_state, within};

pub(crate) const ALL: &[Case] = &[
    ("a_start_clears_the_leftover_sockets_of_its_own_number_and_nothing_else", || {
        Box::pin(async { leftovers() })
    }),
    ("a_nested_start_tells_its_channel_what_was_captured_and_of_a_cold_wake_nothing", || {
        Box::pin(async { nested_start() })
    }),
    ("a_nested_sidecar_ends_by_its_units_stop_and_not_without_a_channel", || {
        Box::pin(async { nested_sidecar() })
    }),
    ("a_unit_row_reads_as_its_layout_does_and_has_no_generation_path", || {
        Box::pin(async { unit_row() })
    }),
    ("a_tier_is_captured_at_the_admission_and_not_read_again", || Box::pin(captured_tier())),
    ("a_request_without_a_deadline_has_the_hosts", || Box::pin(start_deadline())),
    ("an_incumbent_that_dies_before_a_successor_that_is_never_ready_is_started_again", || {
        Box::pin(neither())
    }),
    ("the_link_and_the_current_generation_change_under_one_lock", || Box::pin(one_lock("switch"))),
    ("the_link_is_removed_under_that_lock_too", || Box::pin(one_lock("unlink"))),
    ("a_hold_and_a_fence_outlive_their_activator", || Box::pin(outlive())),
];

fn leftovers() {
    let site = Site::new();
    let (backend, route) = (backend(&site), row(&site));
    site.stage_script("1", SAYS);
    let [another, socket, control] =
        ["s.2", "s.1", "s.1.control"].map(|name| site.path().join(name));
    for path in [&another, &socket, &control] {
        drop(UnixListener::bind(path).unwrap());
    }
    let (_, proc) = start(&backend, &route, staged(&site, "1"), &Gate::none()).unwrap();
    assert_eq!(proc.process.wait(soon()).unwrap(), Some(Exit::Code(0)));
    proc.launched.forget();
    assert!(!socket.exists() && !control.exists(), "it has neither of them in its way");
    assert!(another.exists(), "another number's is not its own");
    for path in [&socket, &control] {
        fs::write(path, "precious").unwrap();
        let error = start(&backend, &route, staged(&site, "1"), &Gate::none()).unwrap_err();
        assert!(error.nothing_ran());
        assert!(error.into_parts().1.is_occupied());
        assert_eq!(fs::read(path).unwrap(), b"precious");
        fs::remove_file(path).unwrap();
    }
}

fn nested(site: &Site) -> Route {
    Route { nested: Some(site.path().join("run")), ..row(site) }
}

fn nested_start() {
    let site = Site::new();
    site.stage("1", "trace");
    // It is there, and not for the activator to read: who lays the row out does.
    site.point_live_at("1");
    let control = Arc::new(Control::default());
    let backend = backend(&site).controlling(Arc::clone(&control) as _);
    let captured = Gen { digest: Some("d1".to_owned()), ..staged(&site, "1") };
    for generation in [captured, cold()] {
        start(&backend, &nested(&site), generation, &Gate::none()).unwrap_err();
    }
    let told = StagedExe {
        path: site.builds().join("1"),
        version: Some(build("1")),
        digest: Some("d1".to_owned()),
    };
    let leaf = LeafName::Generation(GenerationNumber::FIRST, 0);
    assert_eq!(*control.0.lock().unwrap(), [(leaf, Some(told)), (leaf, None)]);
    assert!(!site.path().join("trace").exists());
}

fn nested_sidecar() {
    let site = Site::new();
    let route = nested(&site);
    let error = backend(&site).kill_sidecar(&route, None, soon()).unwrap_err();
    assert!(error.to_string().contains("no control channel"), "{error}");
    let stopped = Arc::default();
    let over = |broken| {
        let channel = Channel { broken, stopped: Arc::clone(&stopped) };
        backend(&site).controlling(Arc::new(channel)).kill_sidecar(&route, None, soon())
    };
    assert!(over(true).unwrap_err().is_unproven());
    over(false).unwrap();
    assert_eq!(*stopped.lock().unwrap(), [LeafName::Sidecar; 2]);
}

fn unit_row() {
    let mut site = Site::new();
    site.long_socket = true;
    let split = SplitBackend { exec: Arc::new(backend(&site)), unit: None };
    let unit = Route { backing: Backing::Unit("orders.service".into()), ..row(&site) };
    assert_eq!(split.gen_layout(&row(&site)), Layout::Foreign);
    assert_eq!(split.gen_layout(&unit), split.layout(&unit));
    assert_eq!(split.layout(&unit), Layout::Flat);
    let short = Route { socket: Some("/run/s".into()), ..unit };
    assert_eq!(split.gen_paths(&short, GenerationNumber::FIRST), None);
    let exec = Route { backing: Backing::Exec, ..short };
    assert!(split.gen_paths(&exec, GenerationNumber::FIRST).is_some());
}

async fn captured_tier() {
    let site = Site::new();
    let manifest = |name: &str| site.builds().join(format!("{name}.toml"));
    for (name, pids) in [("1", 30), ("2", 50)] {
        site.stage(name, "");
        fs::write(manifest(name), format!("tier = {{ pids = {pids} }}\n")).unwrap();
    }
    let said = Arc::new(Mutex::new(Vec::new()));
    let armed = Arc::new(AtomicBool::new(false));
    let (watched, trigger) = (Arc::clone(&said), Arc::clone(&armed));
    let manifests = ["1", "2"].map(manifest);
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &watched, move |at| {
                // The second is being admitted, and both are different from now on.
                if at == "layout" && trigger.load(Ordering::SeqCst) {
                    for manifest in &manifests {
                        fs::write(manifest, "tier = { pids = 99 }\n").unwrap();
                    }
                }
            })
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    fs::write(manifest("1"), "tier = { pids = 31 }\n").unwrap();
    armed.store(true, Ordering::SeqCst);
    assert_eq!(swap(&activator, "2").await.outcome.exit(), 0);
    let said = said.lock().unwrap().clone();
    for what in ["raise pids.max 80", "restore pids.max 50"] {
        assert!(said.iter().any(|said| said == what), "{what}: {said:?}");
    }
    assert!(!said.iter().any(|said| said.contains("99")), "{said:?}");
    activator.stop(&host()).await.unwrap();
}

async fn start_deadline() {
    let deadline = Duration::from_millis(300);
    let mut site = Site::new();
    site.host = format!("start_deadline = \"{}ms\"\n", deadline.as_millis());
    site.stage("1", "never-healthy");
    let activator = site.open().await;
    let begun = Instant::now();
    let answer = activator.swap(&host(), build("1"), Options::default()).await.unwrap();
    let took = begun.elapsed();
    assert_eq!(answer.outcome, Outcome::NothingServes { why: Why::NeverReady }, "{answer:?}");
    // The host's would be 30 s if nobody said so.
    assert!(took >= deadline && took < Duration::from_secs(25), "{took:?}");
    assert!(alive(&site).is_empty());
}

async fn neither() {
    let mut site = Site::new();
    site.host = "restart = { min = \"10ms\", max = \"50ms\" }\n".to_owned();
    site.stage("1", "");
    site.stage("2", "never-healthy");
    let activator = Arc::new(site.open().await);
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    let [incumbent] = alive(&site)[..] else { panic!("one alone runs") };
    let second = Arc::clone(&activator);
    let asked = tokio::spawn(async move { second.swap(&host(), build("2"), within(3)).await });
    until_state(&activator, "warming").await;
    kill(incumbent);
    let answer = asked.await.unwrap().unwrap();
    assert_eq!((answer.outcome.exit(), &answer.build), (1, &Some(build("1"))), "{answer:?}");
    until_state(&activator, "serving").await;
    let answered = ask(&site.socket(), 1).unwrap();
    assert_eq!((answered.generation, &*answered.build), (3, "1"));
    assert_eq!(alive(&site).len(), 1);
    activator.stop(&host()).await.unwrap();
}

/// How long it is watched that a write does not come in between.
const WATCHED: Duration = Duration::from_millis(300);

async fn one_lock(point: &'static str) {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let armed: Arc<Mutex<Option<WriteFence>>> = Arc::default();
    let (trigger, said) = (Arc::clone(&armed), Arc::default());
    let (report, reported) = mpsc::channel();
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &said, move |at| {
                let Some(fence) = trigger.lock().unwrap().take_if(|_| at == point) else {
                    return;
                };
                // The first generation was the current one; its write waits for what is under way.
                let (done, ended) = mpsc::channel();
                let write = move || fence.run(&host(), GenerationNumber::FIRST, || ());
                thread::spawn(move || done.send(write()).unwrap());
                let early = ended.recv_timeout(WATCHED).ok();
                report.send((early, ended)).unwrap();
            })
        })
        .await;
    assert_eq!(swap(&activator, "1").await.outcome.exit(), 0);
    *armed.lock().unwrap() = Some(activator.write_fence());
    match point {
        "switch" => assert_eq!(swap(&activator, "2").await.outcome.exit(), 0),
        _ => assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped),
    }
    let (early, ended) = reported.recv().unwrap();
    assert_eq!(early, None, "it was answered while the link was changed");
    assert!(!ended.recv().unwrap(), "by then it is not the current one");
    activator.stop(&host()).await.unwrap();
}

async fn outlive() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    let held = activator.hold(&host(), build("1"), within(20)).await.unwrap();
    assert_eq!(held.outcome.exit(), 0, "{held:?}");
    activator.fence(&host(), Some("moved".to_owned())).await.unwrap();
    activator.close().await;
    let next = site.open().await;
    until_state(&next, "serving").await;
    let refused = next.restart(&host(), within(20)).await.unwrap();
    assert_eq!(refused.outcome.exit(), 1, "{refused:?}");
    let error = refused.error.unwrap().to_string();
    assert!(error.contains("moved"), "{error}");
    next.fence(&host(), None).await.unwrap();
    let refused = swap(&next, "2").await;
    assert_eq!(refused.outcome.exit(), 1, "{refused:?}");
    let error = refused.error.unwrap().to_string();
    assert!(error.contains("held at 1"), "{error}");
    assert_eq!(next.restart(&host(), within(20)).await.unwrap().outcome.exit(), 0);
    next.stop(&host()).await.unwrap();
}
