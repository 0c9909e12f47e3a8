//! Several processes under one supervisor: each has a mark of its own, whatever happens to one of
//! them is its own, and a shutdown is everybody's.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tickmark::protocol::Phase;

use crate::broker::Broker;
use crate::worker::{LATE, MAX_AGE, Site, TICK, Worker, until};

const SLOTS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(30);
const JOB: Duration = Duration::from_secs(2);

fn all_healthy(site: &Site) {
    let healthy = format!("{SLOTS} process(es) healthy");
    until(PATIENCE, &healthy, || site.verdict().1 == healthy);
}

fn pid(site: &Site, slot: u32) -> Pid {
    let pid = site.mark_of(slot).unwrap().pid;
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

/// Slot 0 turns red with this ERROR, and only slot 0; a new process in its place is healthy.
fn ill_and_back(site: &Site, worker: &Worker, switch: Signal, within: Duration, wrong: &str) {
    let known = worker.errors().len();
    let others = [1, 2].map(|slot| pid(site, slot));
    worker.signal(switch);
    let said = format!("ERROR became unhealthy (expected 2 consumers): {wrong}");
    until(within + LATE, &said, || worker.errors().get(known) == Some(&said));
    until(MAX_AGE + LATE, "stale", || !site.healthy());
    let line = site.verdict().1;
    assert!(line.starts_with("worker-0 stale ") && !line.contains(';'), "{line}");
    kill_process(pid(site, 0), Signal::KILL).unwrap();
    all_healthy(site);
    assert_eq!(others, [1, 2].map(|slot| pid(site, slot)), "they were left alone");
}

pub(crate) fn many_processes() {
    let broker = Broker::shared();
    let site = Site::new();
    let [first, second] = &site.queues;
    let mut worker = site.start(
        &broker.uri(),
        &[
            ("DEMO_SLOTS", &SLOTS.to_string()),
            ("DEMO_PREFETCH", "1"),
            ("DEMO_JOB", &JOB.as_millis().to_string()),
            ("DEMO_DEADLINE", "3000"),
            ("TICKMARK_SHUTDOWN_GRACE", "4"),
        ],
    );
    all_healthy(&site);
    for queue in &site.queues {
        assert_eq!(broker.queue(queue), Some((SLOTS, 0)));
    }
    let pids = [0, 1, 2].map(|slot| pid(&site, slot));
    assert!(pids[0] != pids[1] && pids[1] != pids[2] && pids[0] != pids[2]);

    // A slot that is killed comes back, into its own file.
    kill_process(pids[1], Signal::KILL).unwrap();
    until(PATIENCE, "another process in slot 1", || pid(&site, 1) != pids[1]);
    all_healthy(&site);
    assert_eq!([pid(&site, 0), pid(&site, 2)], [pids[0], pids[2]]);
    assert_eq!(worker.errors_of(1), [""; 0]);

    ill_and_back(&site, &worker, Signal::USR1, TICK, &format!("{first} stopped"));
    ill_and_back(&site, &worker, Signal::USR2, 2 * TICK, "runtime tokio blocked");

    // Jobs that never end go to slot 0 alone while nobody else takes any.
    worker.signal(Signal::HUP);
    until(LATE, "endless", || worker.story().contains("endless-jobs"));
    let jobs = |slot| site.mark_of(slot).unwrap().jobs_in_flight;
    until(PATIENCE, "slot 0 is full", || {
        for queue in [first, second] {
            if broker.queue(queue) == Some((SLOTS, 0)) && jobs(0) < 2 {
                broker.publish(queue, 1);
            }
        }
        jobs(0) == 2
    });
    let said = "ERROR became unhealthy (expected 2 consumers): all 2 jobs older than 3s";
    until(PATIENCE, said, || worker.errors().last().is_some_and(|line| line == said));
    until(PATIENCE, "stale", || site.verdict().1.starts_with("worker-0 stale "));
    kill_process(pid(&site, 0), Signal::KILL).unwrap();
    all_healthy(&site);

    // SIGTERM is everybody's; one refuses, and it alone outlives its work.
    worker.signal(Signal::QUIT);
    until(LATE, "refused", || worker.story().contains("refuse-drain"));
    until(PATIENCE, "the queues are worked off", || [0, 1, 2].iter().all(|&slot| jobs(slot) == 0));
    for queue in &site.queues {
        broker.publish(queue, SLOTS as usize);
    }
    until(PATIENCE, "a job in each", || [0, 1, 2].iter().all(|&slot| jobs(slot) == 2));
    worker.signal(Signal::TERM);
    until(LATE, "all drain at once", || {
        (0..SLOTS).all(|slot| matches!(site.mark_of(slot).unwrap().phase, Phase::Draining { .. }))
    });
    let drained = || worker.log().iter().filter(|line| line.ends_with(" drained")).count();
    until(JOB + 2 * LATE, "two have drained", || drained() == 2);
    for queue in &site.queues {
        assert_eq!(broker.queue(queue), Some((0, 0)), "every job was acknowledged");
    }
    let said = "ERROR shutdown grace of 4s is over: the mark is no longer refreshed";
    until(PATIENCE, said, || worker.errors().last().is_some_and(|line| line == said));
    assert_eq!((worker.errors_of(1), worker.errors_of(2)), (vec![], vec![]));
    assert_eq!(worker.ended(), None, "the supervisor waits for slot 0");
    kill_process(pid(&site, 0), Signal::KILL).unwrap();
    until(PATIENCE, "the supervisor ends with its last slot", || worker.ended().is_some());
    assert!(worker.wait().success());
}
