//! File descriptors beyond what std and rustix do with them: a close whose error counts, and a
//! wait with a deadline.
#![allow(unsafe_code, reason = "neither std nor rustix closes a descriptor and gives the error")]

use std::io;
use std::os::fd::{AsFd, IntoRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Closes `descriptor`, and gives the error of the close. Linux has closed it in any case:
/// `EINTR` too must not be tried again.
///
/// # References
/// [close(2)](https://man7.org/linux/man-pages/man2/close.2.html)
pub(crate) fn close(descriptor: OwnedFd) -> io::Result<()> {
    let raw = descriptor.into_raw_fd();
    // SAFETY: `raw` was owned and is owned by nobody now, so that it is closed once, here.
    match unsafe { libc::close(raw) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for one of `events` on `descriptor`, an error or a hang-up, until `deadline`; whether
/// one came. A deadline that has passed still looks once.
///
/// # References
/// [poll(2)](https://man7.org/linux/man-pages/man2/poll.2.html)
pub(crate) fn wait(
    descriptor: &impl AsFd,
    events: PollFlags,
    deadline: Instant,
) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(descriptor, events)];
        match poll(&mut polled, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // A deadline a lifetime away is one that never comes.
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 })
}

/// Watches a descriptor for being readable, in a tokio runtime.
pub(crate) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps its descriptor open, and names the same one, until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    watched.map_err(io::Error::from)
}
