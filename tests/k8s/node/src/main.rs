//! Runs in a privileged pod that sees the node's processes: what no program in a scratch image can
//! do to itself. A container is named by its id, which is in the cgroup of each of its processes.
#![allow(clippy::print_stdout, reason = "a command line program")]

use std::fs;
use std::io;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

const USAGE: &str = "\
tickmark-verify-node wait
tickmark-verify-node signal NAME CONTAINER [SLOT]
tickmark-verify-node cpu CONTAINER
tickmark-verify-node busy
tickmark-verify-node time

  wait     until SIGTERM
  signal   sends TERM, STOP, CONT or KILL to the container's main process, or to that of a slot
  cpu      clock ticks: of the shim above the container with all it has reaped, of the kubelet and of
           containerd, as three numbers; then how many clock ticks a second has
  busy     clock ticks in which the node's processors were not idle, of all of them together; then how
           many clock ticks a second has. Needs no privilege
  time     the node's clock, in milliseconds since 1970
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["wait"] => wait(),
        ["signal", name, container] => signal(name, container, None),
        ["signal", name, container, slot] => signal(name, container, Some(slot)),
        ["cpu", container] => cpu(container),
        ["busy"] => busy(),
        ["time"] => time(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tickmark-verify-node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wait() -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM])?;
    signals.forever().next();
    Ok(())
}

fn signal(name: &str, container: &str, slot: Option<&str>) -> io::Result<()> {
    let signal = match name {
        "TERM" => Signal::TERM,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        "KILL" => Signal::KILL,
        _ => return Err(io::Error::other(format!("there is no signal {name} here"))),
    };
    let processes = processes_of(container)?;
    let found = match slot {
        None => main_process(&processes),
        Some(slot) => of_slot(&processes, slot),
    };
    let pid = found.ok_or_else(|| {
        io::Error::other(format!("no such process among {processes:?} of {container}"))
    })?;
    let process = Pid::from_raw(pid).ok_or_else(|| io::Error::other("not a process id"))?;
    kill_process(process, signal)?;
    println!("{pid}");
    Ok(())
}

/// In the order of their ids, which is not that of their start.
fn processes_of(container: &str) -> io::Result<Vec<i32>> {
    if container.len() < 12 {
        return Err(io::Error::other(format!("{container:?} is no container id")));
    }
    let mut found: Vec<i32> = fs::read_dir("/proc")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .is_ok_and(|cgroup| cgroup.contains(container))
        })
        .collect();
    found.sort_unstable();
    if found.is_empty() {
        return Err(io::Error::other(format!("no process of {container} on this node")));
    }
    Ok(found)
}

/// The one that none of the others has started. A process that the runtime put in later, such as a
/// probe, has the same parent and started later.
fn main_process(processes: &[i32]) -> Option<i32> {
    processes
        .iter()
        .filter_map(|&pid| Some((pid, Stat::of(pid)?)))
        .filter(|(_, stat)| !processes.contains(&stat.parent))
        .min_by_key(|(_, stat)| stat.started)
        .map(|(pid, _)| pid)
}

fn of_slot(processes: &[i32], slot: &str) -> Option<i32> {
    let wanted = format!("TICKMARK_SLOT={slot}");
    processes.iter().copied().find(|pid| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|all| all.split(|&byte| byte == 0).any(|one| one == wanted.as_bytes()))
    })
}

fn cpu(container: &str) -> io::Result<()> {
    let processes = processes_of(container)?;
    let missing = |what: &str| io::Error::other(format!("no {what} on this node"));
    let shim = main_process(&processes)
        .and_then(Stat::of)
        .and_then(|main| Stat::of(main.parent))
        .ok_or_else(|| missing("shim"))?;
    let named = |name: &str| {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let time: u64 = all
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid: &i32| {
                fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|comm| comm.trim() == name)
            })
            .filter_map(|pid| Some(Stat::of(pid)?.own))
            .sum();
        (time > 0).then_some(time).ok_or_else(|| missing(name))
    };
    println!(
        "{} {} {} {}",
        shim.own + shim.reaped,
        named("kubelet")?,
        named("containerd")?,
        rustix::param::clock_ticks_per_second()
    );
    Ok(())
}

/// Of the first line of `/proc/stat`, which no namespace changes: proc(5).
fn busy() -> io::Result<()> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let line = line.ok_or_else(|| io::Error::other("/proc/stat has no line of all processors"))?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
    let &[user, nice, system, _, _, irq, softirq, _, ..] = fields.as_slice() else {
        return Err(io::Error::other(format!("/proc/stat begins with {line:?}")));
    };
    println!(
        "{} {}",
        user + nice + system + irq + softirq,
        rustix::param::clock_ticks_per_second()
    );
    Ok(())
}

fn time() -> io::Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    println!("{}", since.as_millis());
    Ok(())
}

/// Of `/proc/PID/stat`; times in clock ticks.
struct Stat {
    parent: i32,
    started: u64,
    own: u64,
    reaped: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it may hold anything, a parenthesis too. Then come fields from the third on.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse().ok());
        Some(Stat {
            parent: i32::try_from(field(4)?).ok()?,
            own: field(14)? + field(15)?,
            reaped: field(16)? + field(17)?,
            started: field(22)?,
        })
    }
}
