//! Answering allocates nothing, so that a million requests leave no more behind than a thousand. A file
//! of its own, for the allocator is the process's: it counts every thread, the server's among them.
//!
//! `TICKMARK_REQUESTS=1000000 cargo test --release --package tickmark --features serve --test
//! serve_allocations -- --nocapture` is the whole million.
#![allow(unsafe_code, reason = "a global allocator that counts")]

mod capture;
mod serving;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serving::Served;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that is needed.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: [&[u8]; 5] = [
    b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /explain HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n",
    b"no request at all\r\n\r\n",
];

/// Asks `count` times, each of the requests in turn, without allocating.
fn ask(address: SocketAddr, count: usize) {
    let mut answer = [0; 64 * 1024];
    for request in REQUESTS.iter().cycle().take(count) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut length = 0;
        loop {
            match stream.read(&mut answer[length..]).unwrap() {
                0 => break,
                read => length += read,
            }
        }
        assert!(answer.starts_with(b"HTTP/1.1 "));
    }
}

/// Uses each place of the server: whoever comes first there finds no buffers yet.
fn fill_places(address: SocketAddr) {
    for request in &REQUESTS[..3] {
        let streams: Vec<TcpStream> = (0..31)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(request).unwrap();
                // It has its answer, and keeps its place as long as this end is open.
                stream.read_exact(&mut [0; 1]).unwrap();
                stream
            })
            .collect();
        drop(streams);
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn answering_allocates_nothing() {
    let count = std::env::var("TICKMARK_REQUESTS").map_or(2_000, |text| text.parse().unwrap());
    // The monitor's healthy tick allocates nothing either.
    let served = Served::new(Duration::from_millis(300));
    let liveness = served.start();
    let _registered = served.register(&liveness);
    served.wait_for(200);
    fill_places(served.address);
    ask(served.address, 500);
    let (resident, before) = (resident_kib(), ALLOCATIONS.load(Ordering::Relaxed));
    let began = Instant::now();
    ask(served.address, count);
    let (after, took) = (ALLOCATIONS.load(Ordering::Relaxed), began.elapsed());
    let grown = resident_kib().saturating_sub(resident);
    eprintln!(
        "{count} requests: {} allocations, {grown} KiB more resident, {} us each",
        after - before,
        took.as_micros() / count as u128
    );
    assert_eq!(after - before, 0, "allocations in {count} requests");
    assert!(grown < 256, "{grown} KiB more resident after {count} requests");
    drop(Box::new(1));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > after, "it counts");
}
