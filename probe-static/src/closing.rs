//! Closes descriptors late and together: what was opened in a row is closed by one system call, where
//! a worker of 32 slots would cost 32. Nothing is left open.

use rustix::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};

use crate::kernel;

/// Descriptors in one run at most; a worker of more slots is closed in several runs.
const HELD: RawFd = 64;

/// `close_range(2)`, since Linux 5.9, has this number on every architecture.
const SYS_CLOSE_RANGE: usize = 436;

/// Gaps between runs at most: a descriptor that was inherited makes one.
const RUNS: usize = 4;

/// Descriptors that are no longer needed and not yet closed.
#[derive(Debug, Default)]
pub struct Closing {
    runs: [Run; RUNS],
}

/// `first`, `first + 1` and so on: what is opened in a row is in a row.
#[derive(Debug, Default)]
struct Run {
    first: RawFd,
    length: RawFd,
}

impl Closing {
    /// Takes `fd`; it is closed with its neighbours, at the latest when this is dropped.
    pub fn take(&mut self, fd: OwnedFd) {
        // Owned by a run from here on.
        let fd = fd.into_raw_fd();
        loop {
            for run in &mut self.runs {
                if run.length == 0 {
                    run.first = fd;
                }
                if run.length < HELD && (fd == run.first + run.length || fd == run.first - 1) {
                    run.first = run.first.min(fd);
                    run.length += 1;
                    return;
                }
            }
            self.close_all();
        }
    }

    /// Closes what is held.
    pub fn close_all(&mut self) {
        for run in &mut self.runs {
            run.close();
        }
    }
}

impl Run {
    #[inline(never)]
    fn close(&mut self) {
        if self.length > 1 && close_run(self.first, self.length) {
            self.length = 0;
        }
        while self.length > 0 {
            self.length -= 1;
            // SAFETY: the run owns each of its descriptors, and this one has just left it.
            #[allow(unsafe_code)]
            drop(unsafe { OwnedFd::from_raw_fd(self.first + self.length) });
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.close_all();
    }
}

/// Whether the kernel closed the `run` descriptors from `first` on. It has closed none of them where
/// it refuses (an old kernel, a seccomp filter).
#[allow(unsafe_code)]
fn close_run(first: RawFd, run: RawFd) -> bool {
    // A descriptor that is open is not below zero.
    let (first, last) = (first as usize, (first + run - 1) as usize);
    // SAFETY: the caller owns every descriptor of this range and forgets them when this succeeds;
    // no flag is set.
    unsafe { kernel::call(SYS_CLOSE_RANGE, [first, last, 0, 0]) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_pipe_is_closed_whichever_end_comes_first() {
        for reversed in [false, true] {
            let mut closing = Closing::default();
            let (mut reader, writer) = std::io::pipe().unwrap();
            let mut ends = [writer.try_clone().unwrap().into(), writer.into()];
            if reversed {
                ends.reverse();
            }
            for end in ends {
                closing.take(end);
            }
            drop(closing);
            let mut rest = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut rest).unwrap();
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn more_than_it_can_hold_are_all_closed() {
        let mut closing = Closing::default();
        // A pipe tells whether its last writer is gone, whatever number another test got meanwhile.
        let (mut reader, writer) = std::io::pipe().unwrap();
        for _ in 0..3 * HELD {
            closing.take(writer.try_clone().unwrap().into());
        }
        closing.take(writer.into());
        drop(closing);
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut rest).unwrap();
        assert!(rest.is_empty());
    }
}
