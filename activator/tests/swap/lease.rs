//! A file that nobody opens: whoever tries waits until the lease on it is given up, as on a file
//! system that does not answer. So does an exec.
#![allow(unsafe_code, reason = "rustix has no fcntl for leases")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::site::PATIENCE;

/// Which signal tells the holder; the libc crate has none.
///
/// # References
/// [fcntl(2)](https://man7.org/linux/man-pages/man2/fcntl.2.html)
const F_SETSIG: libc::c_int = 10;

/// For no longer than `/proc/sys/fs/lease-break-time`, which is 45 s.
pub(crate) struct Lease(File);

impl Lease {
    pub(crate) fn on(path: &Path) -> Lease {
        let lease = Lease(File::open(path).unwrap());
        // The holder is asked by a signal; SIGIO would end this process, and this one is ignored.
        lease.set(F_SETSIG, libc::SIGURG).unwrap();
        let begun = Instant::now();
        // A process that another test is just starting may hold a copy of the descriptor that the
        // file was written by.
        while let Err(error) = lease.set(libc::F_SETLEASE, libc::F_WRLCK) {
            assert!(begun.elapsed() < PATIENCE, "no lease on {}: {error}", path.display());
            std::thread::sleep(Duration::from_millis(2));
        }
        lease
    }

    fn set(&self, what: libc::c_int, to: libc::c_int) -> io::Result<()> {
        // SAFETY: the descriptor is open, and both commands take an integer.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), what, to) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _given_up = self.set(libc::F_SETLEASE, libc::F_UNLCK);
    }
}
