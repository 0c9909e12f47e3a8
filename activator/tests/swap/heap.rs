//! How much of the heap is in use, to the byte: the resident size has what the allocator keeps, too,
//! and hides a leak of a few hundred bytes a swap.

#![allow(unsafe_code, reason = "an allocator is unsafe to be")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static IN_USE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counted = Counted;

struct Counted;

// SAFETY: the system's allocator does it all, and is asked for just what was asked for here.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let given = unsafe { System.alloc(layout) };
        if !given.is_null() {
            IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        }
        given
    }

    unsafe fn dealloc(&self, given: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(given, layout) };
    }
}

/// In bytes.
pub(crate) fn in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}
