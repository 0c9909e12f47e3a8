//! A watched runtime, on the test's own clock: what a tick says while the runtime is free, busy
//! with blocking tasks, blocked, and gone.

mod capture;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use capture::{SECOND, Switch, Worker, builder, capture, directory};
use tickmark::ConsumerState;
use tokio::runtime::{Builder, Handle, Runtime};

const THREADS: usize = 2;

fn many() -> Runtime {
    Builder::new_multi_thread().worker_threads(THREADS).build().unwrap()
}

/// A worker with two healthy consumers.
macro_rules! worker {
    ($worker:ident, $lines:ident) => {
        let dir = directory().unwrap();
        let ($lines, _capturing) = capture();
        let mut $worker = Worker::start(builder(dir.path()));
        let consuming = Switch::new(ConsumerState::Consuming);
        let _registered =
            ($worker.register("orders", &consuming), $worker.register("mails", &consuming));
    };
}

/// A tick, after enough real time for a runtime that is free to answer the last one.
fn tick(worker: &mut Worker) {
    thread::sleep(Duration::from_millis(100));
    worker.tick_after(10);
}

fn blocked(worker: &mut Worker, lines: &capture::Lines) -> usize {
    (1..=3)
        .find(|_| {
            tick(worker);
            let error = "ERROR [liveness] slot 0: became unhealthy (expected 2 consumers): \
                         runtime main blocked";
            lines.take().iter().any(|line| line == error)
        })
        .expect("blocked within three ticks")
}

#[test]
fn a_pool_that_is_free_busy_and_blocked() {
    worker!(worker, lines);
    let runtime = many();
    let _watch = worker.liveness.watch_runtime("main", runtime.handle());
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    for _ in 0..4 * THREADS {
        let held = std::sync::Arc::clone(&held);
        runtime.spawn_blocking(move || held.lock().unwrap().recv());
    }
    // All but one of its threads: a matter for jobs.
    let (free, freed) = mpsc::channel::<()>();
    runtime.spawn(async move { freed.recv() });
    for _ in 0..5 {
        tick(&mut worker);
    }
    assert!(lines.take().iter().all(|line| !line.starts_with("ERROR")));
    let (free_too, freed) = mpsc::channel::<()>();
    runtime.spawn(async move { freed.recv() });
    assert!(blocked(&mut worker, &lines) <= 2);
    drop((free, free_too));
    tick(&mut worker);
    tick(&mut worker);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    drop(release);
}

#[test]
fn a_single_thread_that_is_free_busy_and_blocked() {
    worker!(worker, lines);
    let (give, handle) = mpsc::channel::<Handle>();
    let (block, blocks) = mpsc::channel::<mpsc::Receiver<()>>();
    let (end, mut ends) = tokio::sync::mpsc::channel::<()>(1);
    let running = thread::spawn(move || {
        let runtime = Builder::new_current_thread().build().unwrap();
        give.send(runtime.handle().clone()).unwrap();
        runtime.block_on(async { ends.recv().await });
        runtime.shutdown_background();
    });
    let handle = handle.recv().unwrap();
    let watch = worker.liveness.watch_runtime("main", &handle);
    let (release, held) = mpsc::channel::<()>();
    handle.spawn_blocking(move || held.recv());
    for _ in 0..3 {
        tick(&mut worker);
    }
    assert!(lines.take().iter().all(|line| !line.starts_with("ERROR")));
    handle.spawn(async move {
        let held = blocks.recv().unwrap();
        held.recv()
    });
    let (free, held) = mpsc::channel();
    block.send(held).unwrap();
    assert!(blocked(&mut worker, &lines) <= 2);
    drop(free);
    tick(&mut worker);
    tick(&mut worker);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    // A runtime that nothing blocks on runs nothing.
    drop((end, release));
    running.join().unwrap();
    assert!(blocked(&mut worker, &lines) <= 2);
    drop(watch);
    tick(&mut worker);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    assert!(worker.now_ns > 10 * SECOND);
}
