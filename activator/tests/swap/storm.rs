//! A thousand swaps under sixteen clients that connect as fast as they can.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::basics::Case;
use crate::client::ask;
use crate::daemon::{Daemon, Size};
use crate::site::{Site, alive};

pub(crate) const ALL: &[Case] =
    &[("a_thousand_swaps_under_sixteen_clients_lose_nothing_and_stay_flat", || {
        Box::pin(async { tokio::task::block_in_place(thousand) })
    })];

const CLIENTS: usize = 16;

/// From here on nothing grows: what is made once is made, and what is kept of the last few is full.
const FROM: usize = 100;

/// What the heap may differ by, in bytes a swap: less than the smallest leak.
const BYTES: i64 = 64;

fn thousand() {
    let swaps: usize =
        std::env::var("TICKMARK_SWAPS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let mut site = Site::new();
    site.host = "settle = \"5ms\"\n".to_owned();
    site.stage("a", "");
    site.stage("b", "");
    let mut daemon = Daemon::start(&site);
    assert_eq!(daemon.ask("swap a"), "0");

    let stop = AtomicBool::new(false);
    let asked = AtomicU64::new(0);
    let most = AtomicUsize::new(0);
    let socket = site.socket();
    let begun = Instant::now();
    let mut sizes: Vec<Size> = Vec::new();
    let failures = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut failures: BTreeMap<String, usize> = BTreeMap::new();
                    while !stop.load(Ordering::Relaxed) {
                        let number = asked.fetch_add(1, Ordering::Relaxed);
                        match ask(&socket, number) {
                            Ok(_) => {}
                            // A full backlog of one that accepts: connect again.
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                            Err(error) => {
                                *failures.entry(error.to_string()).or_default() += 1;
                            }
                        }
                    }
                    failures
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(alive(&site).len(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for number in 1..=swaps {
            let name = if number % 2 == 0 { "a" } else { "b" };
            let answer = daemon.ask(&format!("swap {name}"));
            if answer != "0" {
                stop.store(true, Ordering::Relaxed);
                panic!("swap {number}: {answer}");
            }
            if number % FROM == 0 {
                sizes.push(daemon.size());
            }
        }
        stop.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        for client in clients {
            for (failure, count) in client.join().unwrap() {
                *all.entry(failure).or_default() += count;
            }
        }
        all
    });
    let took = begun.elapsed();
    eprintln!(
        "{swaps} swaps in {:.1} s, {} requests, {} generations at most",
        took.as_secs_f64(),
        asked.load(Ordering::Relaxed),
        most.load(Ordering::Relaxed),
    );
    assert!(failures.is_empty(), "{failures:?} of {}", asked.load(Ordering::Relaxed));
    assert!(most.load(Ordering::Relaxed) <= 2, "more than two generations were alive");
    match sizes[..] {
        [first, .., last] => {
            let measured = (sizes.len() - 1) * FROM;
            eprintln!("after {FROM} swaps {first:?}, after {} {last:?}", measured + FROM);
            let grown = last.heap - first.heap;
            assert!(grown <= BYTES * measured as i64, "the heap grows by {grown} bytes: {sizes:?}");
            let most = first.resident_kib + first.resident_kib / 20 + 512;
            assert!(last.resident_kib <= most, "memory grows: {sizes:?}");
            assert!(last.files <= first.files + 3, "open files grow: {sizes:?}");
        }
        _ => eprintln!("too few swaps to say whether it grows: {sizes:?}"),
    }
    assert_eq!(daemon.ask("stop"), "0");
    assert!(alive(&site).is_empty());
}
