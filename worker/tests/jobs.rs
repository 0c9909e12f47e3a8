//! Jobs that are stuck, on the test's own clock: the verdict, the line and the mark.

mod capture;

use std::fs;
use std::time::Duration;

use capture::{Switch, Worker, builder, capture, directory};
use tickmark::protocol::{AnyMark, MarkFile, Slot};
use tickmark::{ConsumerState, clock};

#[test]
fn a_worker_full_of_stuck_jobs() {
    let dir = directory().unwrap();
    let (lines, _capturing) = capture();
    // Jobs read a real clock, so the test's begins there.
    let now_ns = clock::monotonic_ns();
    let builder = builder(dir.path()).jobs(2, Duration::from_secs(30));
    let mut worker = Worker::start_at(builder, now_ns);
    let consuming = Switch::new(ConsumerState::Consuming);
    let _registered = (worker.register("orders", &consuming), worker.register("mails", &consuming));
    let first = worker.liveness.jobs().start();
    let second = worker.liveness.jobs().start();
    worker.tick_after(20);
    lines.take();
    let mark =
        || match MarkFile::decode(Slot::FIRST, &fs::read(dir.path().join("worker-0")).unwrap()) {
            Ok(AnyMark::Binary(mark)) => mark,
            other => panic!("{other:?}"),
        };
    assert_eq!(mark().jobs_in_flight, 2);
    // Jobs read the coarse clock, which is a timer tick behind.
    assert!((15_000..=20_010).contains(&mark().oldest_job_ms), "{}", mark().oldest_job_ms);
    worker.tick_after(20);
    assert_eq!(
        lines.take(),
        [
            "ERROR [liveness] slot 0: became unhealthy (expected 2 consumers): all 2 jobs older than 30s"
        ]
    );
    drop(first);
    worker.tick_after(10);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
    assert_eq!(mark().jobs_in_flight, 1);
    // Stuck while it drains: the mark says so, and the grace decides.
    worker.liveness.stopping_at(worker.now_ns);
    worker.tick_after(10);
    assert_eq!(mark().jobs_in_flight, 1);
    assert!(mark().oldest_job_ms > 40_000);
    drop(second);
}
