//! What a pod's pause container does: be PID 1, reap, and end on SIGTERM.

use std::io;

use rustix::process::{WaitOptions, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) fn run() -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    for signal in signals.forever() {
        if signal != SIGCHLD {
            break;
        }
        reap();
    }
    Ok(())
}

/// Ends every zombie among our children, which for PID 1 includes strangers' orphans.
pub(crate) fn reap() -> Vec<rustix::process::Pid> {
    let mut ended = Vec::new();
    while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
        ended.push(pid);
    }
    ended
}
