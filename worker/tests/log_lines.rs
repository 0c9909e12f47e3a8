//! Every line the worker logs, its level and when: with the test's own clock, on real marks in
//! a temporary directory.

mod capture;

use std::fs;
use std::path::Path;
use std::time::Duration;

use capture::{
    SECOND, START, Switch, Worker, builder, builder_with, capture, container, inspection, mistake,
};
use tickmark::protocol::{
    AnyMark, Detail, Errno, Generation, Mark, MarkFile, Now, Phase, Pid1, Slot, State, Witness,
};
use tickmark::{ConsumerState, Encoding, Liveness};

fn mark(dir: &Path) -> Option<Mark> {
    match MarkFile::decode(Slot::FIRST, &fs::read(dir.join("worker-0")).ok()?) {
        Ok(AnyMark::Binary(mark)) => Some(mark),
        other => panic!("{other:?}"),
    }
}

fn consuming() -> Switch {
    Switch::new(ConsumerState::Consuming)
}

/// A worker with two healthy consumers, its first lines already read.
macro_rules! healthy {
    ($lines:ident, $worker:ident, $orders:ident, $mails:ident, $builder:expr) => {
        let ($lines, _capturing) = capture();
        let mut $worker = Worker::start($builder);
        let ($orders, $mails) = (consuming(), consuming());
        let _registered =
            ($worker.register("orders", &$orders), $worker.register("mails", &$mails));
        $worker.tick_after(10);
        $lines.take();
    };
}

#[test]
fn a_mark_says_what_each_consumer_answered() {
    let dir = capture::directory().unwrap();
    healthy!(_lines, worker, orders, mails, builder(dir.path()));
    let states = || String::from_utf8(mark(dir.path()).unwrap().consumer_states.to_vec()).unwrap();
    assert_eq!(states(), "orders consuming; mails consuming");
    mails.turn(ConsumerState::Recovering);
    worker.tick_after(10);
    assert_eq!(states(), "orders consuming; mails recovering");
    // No healthy tick, so no mark: the last one stays.
    orders.turn(ConsumerState::Stopped);
    worker.tick_after(10);
    assert_eq!(states(), "orders consuming; mails recovering");
    orders.turn(ConsumerState::Consuming);
    worker.tick_after(10);
    worker.liveness.stopping_at(worker.now_ns);
    // Nobody is asked any more.
    orders.turn(ConsumerState::Stopped);
    worker.tick_after(1);
    assert_eq!(states(), "orders consuming; mails recovering");
}

#[test]
fn an_ordinary_life() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()));
    assert_eq!(
        lines.take(),
        [
            format!(
                "INFO [liveness] slot 0: started: dir={} max_age=45s tick=10s processes=1 consumers=2",
                dir.path().display()
            ),
            "INFO [liveness] slot 0: waiting for 2 consumers".into(),
        ]
    );
    assert!(dir.path().join("attempt-0").exists());
    let (orders, mails) = (consuming(), consuming());
    let first = worker.register("orders", &orders);
    worker.tick_after(10);
    assert_eq!(mark(dir.path()), None);
    let second = worker.register("mails", &mails);
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    assert!(!dir.path().join("attempt-0").exists());
    let left = mark(dir.path()).unwrap();
    assert_eq!((left.sequence, left.phase, left.consumers_subscribed), (1, Phase::Running, 2));
    assert_eq!(left.monotonic_ns, START + 20 * SECOND);

    for _ in 0..100 {
        worker.tick_after(10);
    }
    assert_eq!(lines.take(), [""; 0]);
    assert_eq!(mark(dir.path()).unwrap().sequence, 101);

    worker.liveness.stopping_at(worker.now_ns);
    worker.tick_here();
    drop((first, second));
    worker.tick_after(10);
    assert_eq!(
        lines.take(),
        ["INFO [liveness] slot 0: shutting down: consumers are no longer checked"]
    );
    assert_eq!(mark(dir.path()).unwrap().phase, Phase::Draining { left_ms: 50_000 });
}

#[test]
fn what_is_wrong_with_which() {
    let dir = capture::directory().unwrap();
    healthy!(lines, worker, orders, mails, builder(dir.path()));
    orders.turn(ConsumerState::Stopped);
    worker.tick_after(10);
    worker.tick_after(10);
    assert_eq!(
        lines.take(),
        ["ERROR [liveness] slot 0: became unhealthy (expected 2 consumers): orders stopped"]
    );
    let stale = mark(dir.path()).unwrap();
    assert_eq!(stale.monotonic_ns, worker.now_ns - 20 * SECOND);

    orders.turn(ConsumerState::Consuming);
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);

    mails.turn(ConsumerState::Stopped);
    let third = worker.register("extra", &consuming());
    worker.tick_after(10);
    assert_eq!(
        lines.take(),
        [
            "ERROR [liveness] slot 0: became unhealthy (expected 2 consumers): mails stopped; 3 registered"
        ]
    );
    drop(third);
    mails.turn(ConsumerState::Consuming);
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
}

#[test]
fn seventeen_stopped_consumers_are_not_all_named() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()).consumers(18));
    let switches: Vec<_> = (0..18).map(|_| consuming()).collect();
    let _registered: Vec<_> = switches
        .iter()
        .enumerate()
        .map(|(n, switch)| worker.register(&format!("q{n}"), switch))
        .collect();
    worker.tick_after(10);
    lines.take();
    switches.iter().for_each(|switch| switch.turn(ConsumerState::Stopped));
    worker.tick_after(10);
    let said = lines.take().remove(0);
    assert!(said.ends_with("; q14 stopped; q15 stopped; … and 2 more"), "{said}");
}

#[test]
fn recovering_is_healthy_for_ever() {
    let dir = capture::directory().unwrap();
    healthy!(lines, worker, orders, mails, builder(dir.path()));
    orders.turn(ConsumerState::Recovering);
    for _ in 0..1_000 {
        worker.tick_after(10);
    }
    assert_eq!(mark(dir.path()).unwrap().phase, Phase::Recovering);
    assert_eq!(lines.take(), [""; 0]);
    mails.turn(ConsumerState::Recovering);
    orders.turn(ConsumerState::Consuming);
    worker.tick_after(10);
    assert_eq!(mark(dir.path()).unwrap().phase, Phase::Recovering);
}

#[test]
fn the_recovery_grace_is_each_consumers_own() {
    let dir = capture::directory().unwrap();
    let grace = Duration::from_secs(60);
    healthy!(lines, worker, orders, mails, builder(dir.path()).recovery_grace(grace));
    orders.turn(ConsumerState::Recovering);
    for _ in 0..4 {
        worker.tick_after(10);
    }
    mails.turn(ConsumerState::Recovering);
    for _ in 0..3 {
        worker.tick_after(10);
    }
    // `orders` was first seen recovering sixty seconds ago.
    assert_eq!(lines.take(), [""; 0]);
    worker.tick_after(10);
    assert_eq!(
        lines.take(),
        [
            "ERROR [liveness] slot 0: became unhealthy (expected 2 consumers): orders recovering 70s > 60s"
        ]
    );
    orders.turn(ConsumerState::Consuming);
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    orders.turn(ConsumerState::Recovering);
    worker.tick_after(10);
    worker.tick_after(10);
    // A new recovery has a new grace; that of `mails` is at its end.
    assert_eq!(lines.take(), [""; 0]);
    worker.tick_after(10);
    assert_eq!(
        lines.take(),
        [
            "ERROR [liveness] slot 0: became unhealthy (expected 2 consumers): mails recovering 70s > 60s"
        ]
    );
}

#[test]
fn a_panicking_consumer_is_unhealthy_and_logged_once() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()).consumers(1));
    let switch = consuming();
    let judged = switch.clone();
    let _registered = worker.liveness.register("orders", move || {
        use tickmark::Consumer;
        match judged.state() {
            ConsumerState::Stopped => panic!("no channel"),
            state => state,
        }
    });
    worker.tick_after(10);
    lines.take();
    switch.turn(ConsumerState::Stopped);
    for _ in 0..3 {
        worker.tick_after(10);
    }
    switch.turn(ConsumerState::Consuming);
    worker.tick_after(10);
    assert_eq!(
        lines.take(),
        [
            "ERROR [liveness] slot 0: consumer orders panicked: no channel",
            "ERROR [liveness] slot 0: became unhealthy (expected 1 consumers): orders panicked",
            "INFO [liveness] slot 0: healthy",
        ]
    );
}

#[test]
fn a_slow_start_is_one_error() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()));
    lines.take();
    for _ in 0..5 {
        worker.tick_after(10);
    }
    assert_eq!(lines.take(), [""; 0]);
    // A tick is never quite on time.
    worker.now_ns -= SECOND / 1000;
    worker.tick_after(10);
    assert_eq!(lines.take(), ["ERROR [liveness] slot 0: not healthy 60s, expected 2 consumers"]);
    for _ in 0..100 {
        worker.tick_after(10);
    }
    assert_eq!(lines.take(), [""; 0]);
    let _registered =
        (worker.register("orders", &consuming()), worker.register("mails", &consuming()));
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    assert!(!dir.path().join("attempt-0").exists());
}

/// Starts a process that dies at once, at each of `times` (milliseconds).
fn respawn(dir: &Path, id: u64, times: impl Iterator<Item = u64>) {
    for ms in times {
        let builder = builder(dir).inspection(container(id));
        drop(Worker::start_at(builder, START + ms * 1_000_000));
    }
}

#[test]
fn a_respawn_loop_of_305_starts_is_one_info_and_one_error() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    respawn(dir.path(), 1, (0..304).map(|n| n * 197).chain([62_000]));
    let said = lines.take();
    assert!(said[0].starts_with("INFO [liveness] slot 0: started: "), "{said:?}");
    assert_eq!(
        said[1..],
        [
            "INFO [liveness] slot 0: waiting for 2 consumers",
            "ERROR [liveness] slot 0: not healthy 62s over 305 starts, expected 2 consumers",
        ]
    );

    // One more window, and one more error, with the total.
    respawn(dir.path(), 1, (1..=600).map(|n| 62_000 + n * 100));
    assert_eq!(
        lines.take(),
        ["ERROR [liveness] slot 0: not healthy 122s over 905 starts, expected 2 consumers"]
    );

    // Another container counts for itself.
    respawn(dir.path(), 2, [200_000, 200_100].into_iter());
    let said = lines.take();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("INFO [liveness] slot 0: started: "), "{said:?}");
}

#[test]
fn a_respawned_process_that_stays_unhealthy_says_so_once() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    respawn(dir.path(), 1, 0..1);
    lines.take();
    let mut worker = Worker::start_at(builder(dir.path()), START + 30 * SECOND);
    for _ in 0..100 {
        worker.tick_after(10);
    }
    assert_eq!(
        lines.take(),
        ["ERROR [liveness] slot 0: not healthy 60s over 2 starts, expected 2 consumers"]
    );
    let _registered =
        (worker.register("orders", &consuming()), worker.register("mails", &consuming()));
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    drop(worker);
    respawn(dir.path(), 1, 2_000_000..2_000_001);
    assert_eq!(lines.take().len(), 2, "a healthy slot begins to count anew");
}

#[test]
fn without_a_generation_the_count_is_the_volumes_and_a_reboot_ends_it() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let start = |boot: u8, seconds: u64| {
        let evidence = Generation { boot_id: Some([boot; 16]), ..Generation::default() };
        let unknown = Pid1::Unknown(Detail::StartTimeZero);
        let inspection = inspection(State::Unavailable, unknown, Detail::StartTimeZero, evidence);
        let builder = builder(dir.path()).inspection(inspection);
        drop(Worker::start_at(builder, START + seconds * SECOND));
    };
    let count = |lines: Vec<String>| lines.iter().filter(|line| !line.starts_with("WARN")).count();
    start(1, 0);
    assert_eq!(count(lines.take()), 2);
    start(1, 70);
    assert_eq!(
        lines.take(),
        ["ERROR [liveness] slot 0: not healthy 70s over 2 starts, expected 2 consumers"]
    );
    start(2, 71);
    assert_eq!(count(lines.take()), 2, "another boot");
    start(2, 5);
    assert_eq!(count(lines.take()), 2, "a first start in the future");
}

#[test]
fn the_shutdown_grace_ends_on_the_monotonic_clock() {
    let dir = capture::directory().unwrap();
    healthy!(lines, worker, orders, mails, builder(dir.path()));
    worker.liveness.stopping_at(worker.now_ns + 2 * SECOND);
    worker.tick_after(3);
    assert_eq!(mark(dir.path()).unwrap().phase, Phase::Draining { left_ms: 59_000 });
    // A second call does not renew it; consumers are not asked.
    worker.liveness.stopping_at(worker.now_ns);
    orders.turn(ConsumerState::Stopped);
    mails.turn(ConsumerState::Stopped);
    worker.tick_after(58);
    assert_eq!(mark(dir.path()).unwrap().phase, Phase::Draining { left_ms: 1_000 });
    let last = worker.now_ns;
    assert_eq!(lines.take().len(), 1);
    fs::remove_file(dir.path().join("expected")).unwrap();
    for _ in 0..10 {
        worker.tick_after(1);
    }
    assert_eq!(
        lines.take(),
        ["ERROR [liveness] slot 0: shutdown grace of 60s is over: the mark is no longer refreshed"]
    );
    assert_eq!(mark(dir.path()).unwrap().monotonic_ns, last);
    assert!(dir.path().join("expected").exists(), "still declared");
}

#[test]
fn stopping_refreshes_the_mark_of_an_unhealthy_slot_but_makes_none() {
    let dir = capture::directory().unwrap();
    healthy!(lines, worker, orders, _mails, builder(dir.path()));
    orders.turn(ConsumerState::Stopped);
    worker.tick_after(10);
    worker.liveness.stopping_at(worker.now_ns);
    worker.tick_after(1);
    assert_eq!(lines.take().len(), 2);
    assert_eq!(mark(dir.path()).unwrap().phase, Phase::Draining { left_ms: 59_000 });

    let dir = capture::directory().unwrap();
    let mut worker = Worker::start(builder(dir.path()));
    worker.liveness.stopping_at(worker.now_ns);
    worker.tick_after(1);
    worker.tick_after(60);
    assert_eq!(mark(dir.path()), None);
    assert!(dir.path().join("expected").exists());
}

#[test]
fn an_interrupted_publication_is_said_once() {
    let dir = capture::directory().unwrap();
    let marks = dir.path().join("marks");
    healthy!(lines, worker, _orders, _mails, builder(&marks));
    fs::remove_dir_all(&marks).unwrap();
    fs::write(&marks, "in the way").unwrap();
    for _ in 0..3 {
        worker.tick_after(10);
    }
    let said = lines.take();
    assert_eq!(said.len(), 1, "{said:?}");
    let start = format!("ERROR [liveness] slot 0: cannot publish: {}: ", marks.display());
    assert!(said[0].starts_with(&start) && said[0].contains("ENOTDIR"), "{said:?}");
    fs::remove_file(&marks).unwrap();
    worker.tick_after(10);
    assert!(mark(&marks).is_some());
    fs::remove_dir_all(&marks).unwrap();
    fs::write(&marks, "in the way again").unwrap();
    worker.tick_after(10);
    assert_eq!(lines.take().len(), 1, "a new interruption");
}

#[test]
fn nothing_ends_the_monitor() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    type Holder = std::sync::Arc<std::sync::Mutex<Option<tickmark::Registration>>>;

    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()).consumers(1));
    lines.take();
    // A consumer that unregisters while it is asked goes with the monitor's own snapshot, and
    // takes the application's drop with it.
    let plant = |worker: &Worker| {
        let holder = Holder::default();
        let (held, bomb) = (holder.clone(), Bomb);
        let registration = worker.liveness.register("bomb", move || {
            let _kept = &bomb;
            drop(held.lock().unwrap().take());
            ConsumerState::Consuming
        });
        *holder.lock().unwrap() = Some(registration);
    };
    plant(&worker);
    worker.tick_after(10);
    plant(&worker);
    worker.tick_after(10);
    assert_eq!(lines.take(), ["ERROR [liveness] slot 0: monitor loop failed: dropped"]);
    let _registered = worker.register("orders", &consuming());
    worker.tick_after(10);
    plant(&worker);
    worker.tick_after(10);
    let said = lines.take();
    assert_eq!(said[0], "INFO [liveness] slot 0: healthy");
    assert_eq!(said[1], "ERROR [liveness] slot 0: monitor loop failed: dropped");
}

#[test]
fn a_poisoned_registry_does_not_kill_the_monitor() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()).consumers(1));
    let liveness = worker.liveness.clone();
    let died = std::thread::spawn(move || {
        let bomb = Bomb;
        let _registered = liveness.register("bomb", move || {
            let _kept = &bomb;
            ConsumerState::Consuming
        });
    });
    assert!(died.join().is_err());
    lines.take();
    let _registered = worker.register("orders", &consuming());
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
}

#[test]
fn topology_messages() {
    let formula = Generation {
        mount_namespace_inode: Some(4_026_532_616),
        pid1_start_time: Some(12_345),
        ..Generation::default()
    };
    let unreadable = Detail::CannotRead("/proc/1/ns/mnt", Errno::ACCESS);
    let rows = [
        (
            inspection(State::Unverifiable, Pid1::Unknown(unreadable), unreadable, formula.clone()),
            "WARN [liveness] slot 0: PID topology unverified (cannot read /proc/1/ns/mnt (EACCES)): \
             the container generation still scopes the heartbeat, but shareProcessNamespace and \
             hostPID cannot be ruled out",
        ),
        (
            inspection(
                State::Unavailable,
                Pid1::Unknown(unreadable),
                Detail::StartTimeZero,
                Generation::default(),
            ),
            "WARN [liveness] slot 0: no container generation (PID 1 start time is zero; possible \
             hostPID or virtualized procfs): falling back to freshness only, which cannot reject \
             a heartbeat inherited from a previous container",
        ),
        (
            inspection(
                State::VerifiedByUniqueId,
                Pid1::Elsewhere(Detail::Mounts(Witness::Cgroup)),
                Detail::Mounts(Witness::Cgroup),
                container(1).evidence,
            ),
            "INFO [liveness] slot 0: PID 1 is outside this container (PID 1 and this process share \
             no mount, and PID 1's cgroup is outside this container's): the container generation \
             rests on ids that do not repeat instead",
        ),
    ];
    for (degraded, message) in rows {
        let dir = capture::directory().unwrap();
        let (lines, _capturing) = capture();
        let start = |inspection: &tickmark::procfs::Inspection, ms: u64| {
            let builder = builder(dir.path()).inspection(inspection.clone());
            let mut worker = Worker::start_at(builder, START + ms * 1_000_000);
            worker.tick_after(1);
            lines.take()
        };
        assert_eq!(start(&degraded, 0)[0], message);
        assert_eq!(start(&degraded, 100), [""; 0], "a respawn does not repeat it");
        // Verified, and verified by a unique id with PID 1 unknown, clear it.
        let unknown = Pid1::Unknown(unreadable);
        for clear in [
            container(1),
            inspection(State::VerifiedByUniqueId, unknown, unreadable, container(1).evidence),
        ] {
            start(&clear, 200);
            assert!(!dir.path().join("topology-report").exists());
            assert_eq!(start(&degraded, 300)[0], message);
            assert!(dir.path().join("topology-report").exists());
        }
        if degraded.generation.is_some() {
            let mut other = degraded.clone();
            let evidence = Generation {
                pid1_start_time: Some(54_321),
                mount_namespace_id: degraded.evidence.mount_namespace_id.map(|id| id + 1),
                ..degraded.evidence.clone()
            };
            other.generation = Some(evidence.clone());
            other.evidence = evidence;
            assert_eq!(start(&other, 400)[0], message, "once a generation");
        }
    }
}

fn degraded() -> tickmark::procfs::Inspection {
    let formula = Generation {
        mount_namespace_inode: Some(4_026_532_616),
        pid1_start_time: Some(12_345),
        ..Generation::default()
    };
    let unreadable = Detail::CannotRead("/proc/1/ns/mnt", Errno::ACCESS);
    inspection(State::Unverifiable, Pid1::Unknown(unreadable), unreadable, formula)
}

fn about_topology(lines: &capture::Lines) -> usize {
    lines.take().iter().filter(|line| line.contains("PID topology unverified")).count()
}

#[test]
fn slots_that_start_in_one_instant_say_the_topology_once() {
    const SLOTS: u32 = 8;
    for round in 0..50 {
        let dir = capture::directory().unwrap();
        let (lines, _capturing) = capture();
        let together = std::sync::Barrier::new(SLOTS as usize);
        std::thread::scope(|scope| {
            for slot in 0..SLOTS {
                let (together, lines, path) = (&together, lines.clone(), dir.path());
                scope.spawn(move || {
                    let _capturing = tracing::subscriber::set_default(lines);
                    let (_liveness, monitor) = builder(path)
                        .inspection(degraded())
                        .slot(slot)
                        .processes(SLOTS)
                        .start_without_thread()
                        .unwrap();
                    let mut monitor = monitor.unwrap();
                    together.wait();
                    for second in 0..3 {
                        let monotonic_ns = START + second * SECOND;
                        monitor.tick(Now { monotonic_ns, realtime_ns: 0 });
                    }
                });
            }
        });
        assert_eq!(about_topology(&lines), 1, "round {round}");
    }
}

#[test]
fn a_slot_waits_for_the_one_that_is_saying_it() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    // As in the middle of another's report; the lock is the open file's, not the process's.
    let another = fs::File::open(dir.path()).unwrap();
    another.lock().unwrap();
    let mut worker = Worker::start(builder(dir.path()).inspection(degraded()));
    assert_eq!(about_topology(&lines), 0);
    assert!(dir.path().join("expected").exists(), "the rest of the tick is as ever");
    // It ended before it had said anything.
    drop(another);
    worker.tick_after(10);
    assert_eq!(about_topology(&lines), 1);
    worker.tick_after(10);
    assert_eq!(about_topology(&lines), 0);
}

#[test]
fn an_unsafe_topology_is_published_instead_of_everything() {
    let proof = Detail::Namespaces { pid1: 1, own: 2 };
    let outside = inspection(State::Unsafe, Pid1::Elsewhere(proof), proof, Generation::default());
    for (encoding, text) in [(Encoding::Binary, false), (Encoding::Text, true)] {
        let dir = capture::directory().unwrap();
        let (lines, _capturing) = capture();
        let builder = builder(dir.path()).inspection(outside.clone()).format(encoding);
        let mut worker = Worker::start(builder.clone());
        let _registered =
            (worker.register("orders", &consuming()), worker.register("mails", &consuming()));
        worker.tick_after(10);
        let said = lines.take();
        assert_eq!(
            said[0],
            "ERROR [liveness] slot 0: unsupported PID topology: pod must not set \
             shareProcessNamespace or hostPID (PID 1 is in mnt:[1], this process in mnt:[2]): \
             recreate the pod without those settings"
        );
        assert!(said[1].starts_with("INFO [liveness] slot 0: started: "), "{said:?}");
        assert_eq!(said.len(), 2);
        drop(worker);
        // Later containers of the volume do not repeat it.
        let _second = Worker::start(builder);
        assert!(lines.take().iter().all(|line| line.contains("started: ")));
        let mut files: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        files.sort();
        assert_eq!(files, ["topology-report", "topology-unsafe"]);
        if text {
            assert_eq!(
                fs::read_to_string(dir.path().join("topology-unsafe")).unwrap(),
                "unsupported PID topology: pod must not set shareProcessNamespace or hostPID\n\
                 PID 1 is in mnt:[1], this process in mnt:[2]\n"
            );
        }
    }
}

#[test]
fn anothers_topology_unsafe_is_one_error() {
    let dir = capture::directory().unwrap();
    fs::write(dir.path().join("topology-unsafe"), "").unwrap();
    let (lines, _capturing) = capture();
    let mut worker = Worker::start(builder(dir.path()));
    worker.tick_after(10);
    let said = lines.take();
    assert_eq!(
        said[0],
        "ERROR [liveness] slot 0: topology-unsafe was left in the marks directory by another \
         process: every probe fails until the volume is recreated"
    );
    assert_eq!(said.iter().filter(|line| line.starts_with("ERROR")).count(), 1);
}

#[test]
fn a_slot_that_is_none_publishes_nothing() {
    let rows = [
        (
            &[("TICKMARK_SLOT", "two")][..],
            "ERROR [liveness] slot two: TICKMARK_SLOT is not a slot (0 to 4095): this process \
             publishes nothing",
        ),
        (
            &[("TICKMARK_SLOT", "4096"), ("TICKMARK_PROCESSES", "4096")],
            "ERROR [liveness] slot 4096: TICKMARK_SLOT is not a slot (0 to 4095): this process \
             publishes nothing",
        ),
        (
            &[("TICKMARK_SLOT", "-1")],
            "ERROR [liveness] slot -1: TICKMARK_SLOT is not a slot (0 to 4095): this process \
             publishes nothing",
        ),
        (
            &[("TICKMARK_SLOT", "2"), ("TICKMARK_PROCESSES", "2")],
            "ERROR [liveness] slot 2: the slot is not below the declared 2 process(es): this \
             process publishes nothing",
        ),
        (
            // An invalid number of processes is the default.
            &[("TICKMARK_SLOT", "1"), ("TICKMARK_PROCESSES", "many")],
            "ERROR [liveness] slot 1: the slot is not below the declared 1 process(es): this \
             process publishes nothing",
        ),
    ];
    for (variables, line) in rows {
        let dir = capture::directory().unwrap();
        let (lines, _capturing) = capture();
        let (liveness, monitor) =
            builder_with(dir.path(), variables).start_without_thread().unwrap();
        assert!(monitor.is_none());
        drop(liveness.register("orders", consuming()));
        assert_eq!(lines.take(), [line]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    for blank in [("TICKMARK_SLOT", " "), ("TICKMARK_PROCESSES", "2")] {
        let dir = capture::directory().unwrap();
        let started = builder_with(dir.path(), &[blank]).start_without_thread().unwrap();
        assert!(started.1.is_some());
    }
}

#[test]
fn a_tick_from_the_environment_that_does_not_fit() {
    let rows = [
        (
            &[("TICKMARK_TICK", "45")][..],
            Some(
                "WARN [liveness] slot 0: TICKMARK_TICK of 45s is not below the maximum age of 45s: \
                 ticking every 10s",
            ),
            "max_age=45s tick=10s",
        ),
        (
            &[("KICKS_LIVENESS_TICK", "9"), ("TICKMARK_MAX_AGE", "5")],
            Some(
                "WARN [liveness] slot 0: KICKS_LIVENESS_TICK of 9s is not below the maximum age of \
                 5s: ticking every 2.5s",
            ),
            "max_age=5s tick=2.5s",
        ),
        (
            &[("KICKS_LIVENESS_MAX_AGE", "10")],
            Some(
                "WARN [liveness] slot 0: the default tick of 10s is not below the maximum age of \
                 10s: ticking every 5s",
            ),
            "max_age=10s tick=5s",
        ),
        (&[("TICKMARK_TICK", "7"), ("KICKS_LIVENESS_TICK", "8")], None, "max_age=45s tick=7s"),
        (&[("TICKMARK_TICK", ""), ("KICKS_LIVENESS_TICK", "8")], None, "max_age=45s tick=8s"),
        (&[("TICKMARK_TICK", "0")], None, "max_age=45s tick=10s"),
        (&[("TICKMARK_TICK", "1.5")], None, "max_age=45s tick=10s"),
        (&[("TICKMARK_TICK", "-3")], None, "max_age=45s tick=10s"),
        (&[("TICKMARK_TICK", "99999999999999999999")], None, "max_age=45s tick=10s"),
    ];
    for (variables, warning, settings) in rows {
        let dir = capture::directory().unwrap();
        let (lines, _capturing) = capture();
        drop(Worker::start(builder_with(dir.path(), variables)));
        let said = lines.take();
        let warned = said.iter().find(|line| line.starts_with("WARN")).map(String::as_str);
        assert_eq!(warned, warning, "{variables:?}");
        assert!(said.iter().any(|line| line.contains(settings)), "{said:?}");
    }
}

#[test]
fn mistakes_in_code_fail() {
    let dir = capture::directory().unwrap();
    let good = || builder(dir.path());
    let seconds = Duration::from_secs;
    assert!(mistake(good().tick(Duration::ZERO)).is_tick());
    assert!(mistake(good().tick(seconds(45))).is_tick());
    assert!(mistake(good().shutdown_grace(Duration::ZERO)).is_grace());
    assert!(mistake(good().shutdown_grace(Duration::MAX)).is_grace());
    assert!(mistake(good().recovery_grace(Duration::ZERO)).is_grace());
    assert!(mistake(good().startup_grace_ticks(0)).is_grace());
    assert!(mistake(good().consumers(0)).is_consumers());
    assert!(mistake(Liveness::builder()).is_consumers());
    assert!(mistake(good().slot(4096)).is_slot());
    assert!(mistake(good().slot(2).processes(2)).is_slot());
    assert!(mistake(good().processes(0)).is_processes());
    assert!(mistake(good().processes(4097)).is_processes());
    assert_eq!(
        mistake(good().tick(seconds(50))).to_string(),
        "tick of 50s is not below the maximum age of 45s: every mark would be stale"
    );
}

#[test]
fn code_wins_over_the_environment() {
    let dir = capture::directory().unwrap();
    let (lines, _capturing) = capture();
    let variables = [
        ("TICKMARK_SLOT", "x"),
        ("TICKMARK_PROCESSES", "9"),
        ("TICKMARK_TICK", "99"),
        ("TICKMARK_FORMAT", "text"),
        ("TICKMARK_SHUTDOWN_GRACE", "5"),
    ];
    let builder = builder_with(dir.path(), &variables)
        .slot(1)
        .processes(2)
        .tick(Duration::from_millis(2500))
        .format(Encoding::Binary)
        .shutdown_grace(Duration::from_secs(7));
    let worker = Worker::start(builder);
    let said = lines.take();
    assert!(said[0].contains("slot 1: started: "), "{said:?}");
    assert!(said[0].ends_with(" tick=2.5s processes=2 consumers=2"), "{said:?}");
    assert_eq!(fs::read(dir.path().join("expected")).unwrap()[0], 0xF5);
    let mut worker = worker;
    worker.liveness.stopping_at(worker.now_ns);
    worker.tick_after(7);
    assert!(lines.take()[1].contains("shutdown grace of 7s is over"));
}
