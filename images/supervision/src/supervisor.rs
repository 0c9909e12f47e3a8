//! One process per slot: starts them, starts one again that died, and on SIGTERM passes it on
//! and waits. It takes no part in liveness: each slot leaves its own mark.

use std::io;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Set for a process that dies with the one that started it.
const SUPERVISED: &str = "DEMO_SUPERVISED";

const RESPAWN_AFTER: Duration = Duration::from_millis(200);

/// To whom a signal is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// Slot 0, so that the others stay as they are.
    First,
    /// Every slot.
    All,
}

/// A supervisor killed with SIGKILL must not leave slots that look healthy. To be called first.
///
/// # Errors
/// What prctl(2) gives.
pub fn die_with_supervisor() -> io::Result<()> {
    if std::env::var_os(SUPERVISED).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    Ok(())
}

/// Ends every zombie among our children, which for PID 1 includes strangers' orphans.
pub fn reap() -> Vec<Pid> {
    let mut ended = Vec::new();
    while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
        ended.push(pid);
    }
    ended
}

enum Slot {
    Running(Pid),
    DueAt(Instant),
    Ended,
}

/// Runs this program once for each slot, with what `prepare` adds to its `TICKMARK_SLOT` and
/// `TICKMARK_PROCESSES`, until SIGTERM or SIGINT has ended all of them.
///
/// # Errors
/// A signal that cannot be listened to, or a process that cannot be started.
pub fn run(
    slots: u32,
    passed_on: &[(Signal, Whom)],
    prepare: impl Fn(&mut Command),
) -> io::Result<()> {
    let listened = passed_on.iter().map(|(signal, _)| signal.as_raw());
    let mut signals = Signals::new(listened.chain([SIGTERM, SIGINT, SIGCHLD]))?;
    let (sender, arrived) = mpsc::channel();
    thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                break;
            }
        }
    });

    let mut stopping = false;
    let mut slots: Vec<Slot> = (0..slots).map(|_| Slot::DueAt(Instant::now())).collect();
    while !slots.iter().all(|slot| matches!(slot, Slot::Ended)) {
        start_those_due(&mut slots, &prepare)?;
        match arrived.recv_timeout(until_next_due(&slots)) {
            Ok(SIGCHLD) => note_the_dead(&mut slots, stopping),
            Ok(number) => match passed_on.iter().find(|(signal, _)| signal.as_raw() == number) {
                Some((signal, Whom::First)) => pass_on(&slots[..1], *signal),
                Some((signal, Whom::All)) => pass_on(&slots, *signal),
                None => {
                    stopping = true;
                    stop(&mut slots);
                }
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the signal thread ended"));
            }
        }
    }
    Ok(())
}

fn start_those_due(slots: &mut [Slot], prepare: impl Fn(&mut Command)) -> io::Result<()> {
    let processes = slots.len().to_string();
    for (number, slot) in slots.iter_mut().enumerate() {
        if matches!(slot, Slot::DueAt(due) if *due <= Instant::now()) {
            // Not current_exe: without a procfs that would fail, and marks need none.
            let mut command = Command::new(std::env::args_os().next().unwrap_or_default());
            prepare(&mut command);
            let child = command
                .env("TICKMARK_SLOT", number.to_string())
                .env("TICKMARK_PROCESSES", &processes)
                .env(SUPERVISED, "1")
                .spawn()?;
            tracing::info!("slot {number} runs as pid {}", child.id());
            // The child is reaped by `reap`, together with orphans given to PID 1.
            *slot = Slot::Running(Pid::from_child(&child));
        }
    }
    Ok(())
}

fn stop(slots: &mut [Slot]) {
    pass_on(slots, Signal::TERM);
    for slot in slots {
        if matches!(slot, Slot::DueAt(_)) {
            *slot = Slot::Ended;
        }
    }
}

fn until_next_due(slots: &[Slot]) -> Duration {
    slots
        .iter()
        .filter_map(|slot| match slot {
            Slot::DueAt(due) => Some(due.saturating_duration_since(Instant::now())),
            _ => None,
        })
        .min()
        .unwrap_or(Duration::from_secs(3600))
}

fn note_the_dead(slots: &mut [Slot], stopping: bool) {
    for ended in reap() {
        for (number, slot) in slots.iter_mut().enumerate() {
            if matches!(slot, Slot::Running(pid) if *pid == ended) {
                tracing::info!("slot {number} ended, pid {ended}");
                *slot = if stopping {
                    Slot::Ended
                } else {
                    Slot::DueAt(Instant::now() + RESPAWN_AFTER)
                };
            }
        }
    }
}

fn pass_on(slots: &[Slot], signal: Signal) {
    for slot in slots {
        if let Slot::Running(pid) = slot {
            // It may have ended in between; then SIGCHLD says so.
            let _ = kill_process(*pid, signal);
        }
    }
}
