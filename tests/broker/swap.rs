//! A swap of the lapin worker by the activator: its queue is never without consumers, which go
//! from n to 2n and back to n.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tickmark_activator::config::Config;
use tickmark_activator::{Activator, BuildName, HostName, Options};

use crate::broker::Broker;
use crate::worker::{Site, program};

/// Processes of a generation, each with one consumer on the queue.
const SLOTS: u32 = 2;

pub(crate) fn a_swap_takes_consumers_from_n_to_2n_to_n() {
    let broker = Broker::shared();
    let site = Site::new();
    let queue = site.queues[0].clone();
    let place = tempfile::tempdir().unwrap();
    let builds = place.path().join("builds");
    std::fs::create_dir(&builds).unwrap();
    for name in ["1", "2"] {
        std::os::unix::fs::symlink(program(), builds.join(name)).unwrap();
    }
    let text = format!(
        "[activator]\nstate = {:?}\ncgroup = \"none\"\n\n[host.orders]\nbuilds = {builds:?}\n\
         slots = {SLOTS}\nsettle = \"1s\"\ndrain = \"20s\"\n\
         env = {{ DEMO_URI = {:?}, DEMO_QUEUES = {queue:?}, TICKMARK_TICK = \"1\", \
         TICKMARK_MAX_AGE = \"4\" }}\n",
        place.path().join("state"),
        broker.uri(),
    );
    let config = Config::parse(&text).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let host = HostName::new("orders").unwrap();
    let activator = runtime.block_on(Activator::open(config)).unwrap();
    let swap = |name: &str| {
        let build = BuildName::new(name).unwrap();
        let options = Options { deadline: Some(Duration::from_secs(60)), ..Options::default() };
        let answer = runtime.block_on(activator.swap(&host, build, options)).unwrap();
        assert_eq!(answer.outcome.exit(), 0, "{answer:?}");
    };
    swap("1");
    until_consumers(&broker, &queue, SLOTS);

    let over = Arc::new(AtomicBool::new(false));
    let watching = {
        let (broker, queue, over) = (Arc::clone(&broker), queue.clone(), Arc::clone(&over));
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let consumers = broker.queue(&queue).map_or(0, |(consumers, _)| consumers);
                if seen.last() != Some(&consumers) {
                    seen.push(consumers);
                }
            }
            seen
        })
    };
    broker.publish(&queue, 50);
    swap("2");
    until_consumers(&broker, &queue, SLOTS);
    over.store(true, Ordering::Relaxed);
    let seen = watching.join().unwrap();
    assert_eq!(seen.first(), Some(&SLOTS), "{seen:?}");
    assert_eq!(seen.last(), Some(&SLOTS), "{seen:?}");
    assert_eq!(seen.iter().max(), Some(&(2 * SLOTS)), "{seen:?}");
    assert!(*seen.iter().min().unwrap() >= SLOTS, "the queue was not served by all: {seen:?}");
    // Up, and then down: no third generation came in between.
    let top = seen.iter().position(|consumers| *consumers == 2 * SLOTS).unwrap();
    assert!(seen[..=top].is_sorted() && seen[top..].is_sorted_by(|a, b| a >= b), "{seen:?}");
    assert_eq!(broker.queue(&queue).unwrap().1, 0, "every job was taken");
    let stopped = runtime.block_on(activator.stop(&host)).unwrap();
    assert_eq!(stopped.outcome.exit(), 0, "{stopped:?}");
}

fn until_consumers(broker: &Broker, queue: &str, wanted: u32) {
    let begun = Instant::now();
    while broker.queue(queue).is_none_or(|(consumers, _)| consumers != wanted) {
        assert!(begun.elapsed() < Duration::from_secs(30), "never {wanted} consumers of {queue}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
