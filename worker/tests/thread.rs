//! The real thread on the real clock: it ticks at once, `stopping` wakes it, and it ends with
//! the last liveness. Nothing here waits for a time to pass, only for a line to be logged.

mod capture;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use capture::{Lines, builder, directory};
use tickmark::marks::Publisher;
use tickmark::protocol::Slot;
use tickmark::{ConsumerState, Encoding};

#[test]
fn stopping_wakes_the_monitor_and_the_last_drop_ends_it() {
    let dir = directory().unwrap();
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let liveness = builder(dir.path()).tick(Duration::from_secs(40)).start().unwrap();
    let registered = liveness.register("orders", || ConsumerState::Consuming);
    lines.wait_for("waiting for 2 consumers");
    assert!(dir.path().join("expected").exists());

    // The next tick is 40 seconds away, and `wait_for` gives up long before.
    let clone = liveness.clone();
    std::thread::spawn(move || clone.stopping()).join().unwrap();
    liveness.stopping();
    lines.wait_for("shutting down: consumers are no longer checked");

    let path = CString::new(dir.path().as_os_str().as_bytes()).unwrap();
    let mut successor = Publisher::new(path, Slot::FIRST, Encoding::Binary);
    assert!(successor.begin().is_err(), "the monitor holds the slot");
    drop(liveness);
    let freed = std::iter::repeat_with(|| {
        std::thread::yield_now();
        successor.begin().is_ok()
    });
    assert!(freed.take(1_000_000).any(|freed| freed), "the thread ended");
    drop(registered);
}
