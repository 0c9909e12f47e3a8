//! What liveness costs a worker: a healthy tick, and a consumer that comes and goes.

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tickmark::protocol::Now;
use tickmark::{ConsumerState, Liveness, Monitor, Registration, clock};

fn now() -> Now {
    Now { monotonic_ns: clock::monotonic_ns(), realtime_ns: clock::realtime_ns() }
}

/// A worker of `consumers` that has ticked once, with its marks on tmpfs if there is one.
fn worker(consumers: usize) -> (tempfile::TempDir, Liveness, Monitor, Vec<Registration>) {
    let shared_memory = std::path::Path::new("/dev/shm");
    let dir = if shared_memory.is_dir() {
        tempfile::tempdir_in(shared_memory)
    } else {
        tempfile::tempdir()
    };
    let dir = dir.expect("a directory for marks");
    let path = dir.path().to_str().expect("a path in UTF-8");
    let (liveness, monitor) = Liveness::builder()
        .consumers(consumers)
        .environment([("TICKMARK_DIR", path)])
        .start_without_thread()
        .expect("valid settings");
    let mut monitor = monitor.expect("slot 0");
    let registered = (0..consumers)
        .map(|n| liveness.register(&n.to_string(), || ConsumerState::Consuming))
        .collect();
    monitor.tick(now());
    (dir, liveness, monitor, registered)
}

/// A healthy tick is 19 system calls, and one futex to wait for the next: openat of the
/// directory, fstatat of the lock and of `topology-unsafe`, five for each of `expected`,
/// `generation` and the mark (openat, fchmod, write, close, renameat), close. Counted on the
/// thread `tickmark` with `strace -f -p $(pgrep -f tickmark-demo-worker)`; a debug build adds an
/// fcntl before each close.
fn tick(criterion: &mut Criterion) {
    for consumers in [1, 16, 256] {
        let (_dir, _liveness, mut monitor, _registered) = worker(consumers);
        criterion.bench_function(&format!("tick/{consumers} consumers"), |bencher| {
            bencher.iter(|| monitor.tick(now()));
        });
    }
}

fn register(criterion: &mut Criterion) {
    for others in [1, 16, 256] {
        let (_dir, liveness, _monitor, _registered) = worker(others);
        criterion.bench_function(&format!("register and unregister/{others} others"), |bencher| {
            bencher
                .iter(|| drop(black_box(liveness.register("more", || ConsumerState::Consuming))));
        });
    }
}

criterion_group!(benches, tick, register);
criterion_main!(benches);
