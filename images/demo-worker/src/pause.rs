//! What a pod's pause container does: be PID 1, reap, and end on SIGTERM.

use std::io;

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tickmark_supervision::supervisor::reap;

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
