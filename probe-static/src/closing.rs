//! Closes descriptors late and together: what was opened in a row is closed by one system call, where
//! a worker of 32 slots would cost 32. Nothing is left open.

use rustix::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd, RawFd};

use crate::kernel;

/// Descriptors held back at most; a worker of more slots is closed in several runs.
const HELD: usize = 64;

/// `close_range(2)`, since Linux 5.9, has this number on every architecture.
const SYS_CLOSE_RANGE: usize = 436;

/// Descriptors that are no longer needed and not yet closed.
#[derive(Debug, Default)]
pub struct Closing {
    held: heapless::Vec<OwnedFd, HELD>,
}

impl Closing {
    /// Takes `fd`; it is closed with its neighbours, at the latest when this is dropped.
    pub fn take(&mut self, fd: OwnedFd) {
        if self.held.is_full() {
            self.close_all();
        }
        // In order, so that the runs are as long as can be whatever was done with first.
        let number = fd.as_raw_fd();
        let before = self.held.iter().rposition(|held| held.as_raw_fd() < number);
        // There is room; if there were none, dropping the descriptor closes it too.
        drop(self.held.insert(before.map_or(0, |at| at + 1), fd));
    }

    fn close_all(&mut self) {
        while let Some(first) = self.held.first().map(OwnedFd::as_raw_fd) {
            let run = run_length(first, self.held.iter().map(OwnedFd::as_raw_fd));
            if run > 1 && close_run(first, run) {
                for fd in self.held.drain(..run) {
                    // Closed already: give up the ownership without a second close.
                    let _: RawFd = fd.into_raw_fd();
                }
            } else {
                drop(self.held.drain(..run));
            }
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.close_all();
    }
}

/// How many of `fds`, from the start, are `first`, `first + 1` and so on.
fn run_length(first: RawFd, fds: impl Iterator<Item = RawFd>) -> usize {
    fds.zip(first..).take_while(|(fd, next)| fd == next).count()
}

/// Whether the kernel closed the `run` descriptors from `first` on. It has closed none of them where
/// it refuses (an old kernel, a seccomp filter).
#[allow(unsafe_code)]
fn close_run(first: RawFd, run: usize) -> bool {
    // A descriptor that is open is not below zero.
    let first = first as usize;
    // SAFETY: the caller owns every descriptor of this range and forgets them when this succeeds;
    // no flag is set.
    unsafe { kernel::call(SYS_CLOSE_RANGE, [first, first + run - 1, 0, 0]) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_run_ends_at_the_first_gap() {
        assert_eq!(run_length(3, [3, 4, 5, 7, 8].into_iter()), 3);
        assert_eq!(run_length(3, [3].into_iter()), 1);
        assert_eq!(run_length(3, [3, 5].into_iter()), 1);
    }

    #[test]
    fn held_descriptors_are_in_order() {
        let mut closing = Closing::default();
        let (first, second) = std::io::pipe().unwrap();
        closing.take(second.into());
        closing.take(first.into());
        let numbers: Vec<_> = closing.held.iter().map(OwnedFd::as_raw_fd).collect();
        assert!(numbers.is_sorted());
        assert_eq!(numbers.len(), 2);
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
