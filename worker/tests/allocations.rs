//! A healthy tick allocates nothing. A file of its own, for the allocator is the process's.
#![allow(unsafe_code, reason = "a global allocator that counts")]

mod capture;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use capture::{Switch, Worker, builder, directory};
use tickmark::{ConsumerState, Encoding};

struct Counting;

thread_local! {
    /// Of this thread: the test harness allocates on its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    let _thread_is_ending = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that is needed.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_healthy_tick_allocates_nothing() {
    for encoding in [Encoding::Binary, Encoding::Text] {
        let dir = directory().unwrap();
        let mut worker = Worker::start(builder(dir.path()).format(encoding).consumers(40));
        let orders = Switch::new(ConsumerState::Consuming);
        let mails = Switch::new(ConsumerState::Recovering);
        let _registered = (worker.register("orders", &orders), worker.register("mails", &mails));
        // More than a mark can name.
        let _more: Vec<_> = (2..40).map(|n| worker.register(&n.to_string(), &orders)).collect();
        worker.tick_after(10);
        let before = ALLOCATIONS.get();
        for _ in 0..1_000 {
            worker.tick_after(10);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
        worker.liveness.stopping_at(worker.now_ns);
        worker.tick_after(1);
        let before = ALLOCATIONS.get();
        worker.tick_after(1);
        assert_eq!(ALLOCATIONS.get() - before, 0, "nor one of a shutdown");
    }
    let before = ALLOCATIONS.get();
    drop(Box::new(1));
    assert_eq!(ALLOCATIONS.get() - before, 1, "it counts");
}

#[test]
fn a_job_allocates_nothing() {
    let dir = directory().unwrap();
    let worker = Worker::start(builder(dir.path()).jobs(4, std::time::Duration::from_secs(30)));
    let jobs = worker.liveness.jobs();
    let before = ALLOCATIONS.get();
    for _ in 0..1_000 {
        // One more than there are places.
        let held = [jobs.start(), jobs.start(), jobs.start(), jobs.start(), jobs.start()];
        drop(held);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
