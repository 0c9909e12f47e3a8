//! Descriptors kept for the moment in which the process has run out of them: what the application
//! leaks must not keep the verdict from being told.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

/// What one answer opens at once (the connection, the marks directory, a file), and as much again: the
/// monitor may tick in the same moment.
const KEPT: usize = 6;

#[derive(Default)]
pub(super) struct Reserve([Option<OwnedFd>; KEPT]);

impl Reserve {
    /// Fills the empty places, as far as there are descriptors.
    pub(super) fn fill(&mut self) {
        for place in &mut self.0 {
            if place.is_none() {
                *place = eventfd(0, EventfdFlags::CLOEXEC).ok();
            }
        }
    }

    /// Gives all of them back to the process.
    pub(super) fn release(&mut self) {
        self.0 = [const { None }; KEPT];
    }
}
