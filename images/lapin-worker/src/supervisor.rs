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
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::options::Options;
use crate::switch::Switch;

/// Set for a process that dies with the one that started it.
const SUPERVISED: &str = "DEMO_SUPERVISED";

const RESPAWN_AFTER: Duration = Duration::from_millis(200);

/// A supervisor killed with SIGKILL must not leave slots that look healthy.
pub(crate) fn die_with_supervisor() -> io::Result<()> {
    if std::env::var_os(SUPERVISED).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    Ok(())
}

enum Slot {
    Running(Pid),
    DueAt(Instant),
    Ended,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT, SIGCHLD])?;
    let (sender, arrived) = mpsc::channel();
    thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                break;
            }
        }
    });

    let mut stopping = false;
    let mut slots: Vec<Slot> = (0..options.slots).map(|_| Slot::DueAt(Instant::now())).collect();
    while !slots.iter().all(|slot| matches!(slot, Slot::Ended)) {
        start_those_due(options, &mut slots)?;
        match arrived.recv_timeout(until_next_due(&slots)) {
            Ok(SIGCHLD) => note_the_dead(&mut slots, stopping),
            Ok(number) => match Switch::from_number(number) {
                Some(switch) => pass_on(&slots[..1], switch.signal()),
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

fn start_those_due(options: &Options, slots: &mut [Slot]) -> io::Result<()> {
    for (number, slot) in slots.iter_mut().enumerate() {
        if matches!(slot, Slot::DueAt(due) if *due <= Instant::now()) {
            // Not current_exe: without a procfs that would fail, and marks need none.
            let program = std::env::args_os().next().unwrap_or_default();
            let child = Command::new(program)
                .envs(options.slot_variables())
                .env("TICKMARK_SLOT", number.to_string())
                .env("TICKMARK_PROCESSES", options.slots.to_string())
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

/// Ends every zombie among our children, which for PID 1 includes strangers' orphans.
fn reap() -> Vec<Pid> {
    let mut ended = Vec::new();
    while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
        ended.push(pid);
    }
    ended
}

fn pass_on(slots: &[Slot], signal: Signal) {
    for slot in slots {
        if let Slot::Running(pid) = slot {
            // It may have ended in between; then SIGCHLD says so.
            let _ = kill_process(*pid, signal);
        }
    }
}
