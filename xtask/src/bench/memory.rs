//! The memory that is a program's own when it exits: `Anonymous` and `Swap` of its `smaps_rollup`,
//! read while ptrace holds it at its exit (`PTRACE_O_TRACEEXIT`), where its memory is still there.
//! `Private_Dirty` would not do: it counts pages of a file that was just built and not yet written back.
//! Pages of the file that nobody wrote to are the page cache's, shared by every probe.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::outcome::{Doing as _, Failure};

/// In KiB.
pub(super) fn own_at_exit(program: &Path, arguments: &[OsString]) -> Result<u64, Failure> {
    // A shell that stops itself and then becomes the program: seized before the program starts,
    // with no code of ours between fork and exec.
    let child = Command::new("/bin/sh")
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .doing("run /bin/sh")?;
    let pid = Pid::from_raw(i32::try_from(child.id()).doing("a process id")?);
    let own = traced(pid);
    if own.is_err() {
        // Whatever went wrong, leave no stopped process behind; it may be gone already.
        let _gone = kill(pid, Signal::SIGKILL);
    }
    // Reaps it; after the trace it is on its way out.
    let _status = waitpid(pid, None);
    own
}

fn traced(pid: Pid) -> Result<u64, Failure> {
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).doing("wait for the shell to stop")?;
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACEEXIT).doing("ptrace the probe")?;
    kill(pid, Signal::SIGCONT).doing("continue the shell")?;
    loop {
        match waitpid(pid, None).doing("wait for the probe")? {
            WaitStatus::PtraceEvent(_, _, event) if event == nix::libc::PTRACE_EVENT_EXIT => {
                let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
                    .doing("read smaps_rollup")?;
                ptrace::detach(pid, None).doing("let the probe exit")?;
                return private(&rollup)
                    .ok_or_else(|| Failure::failed("smaps_rollup has no Anonymous"));
            }
            WaitStatus::PtraceEvent(..) => ptrace::cont(pid, None).doing("continue")?,
            // The stop of its own and the signal that ended it; neither is to be delivered again.
            WaitStatus::Stopped(_, Signal::SIGSTOP | Signal::SIGCONT | Signal::SIGTRAP) => {
                ptrace::cont(pid, None).doing("continue")?;
            }
            WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal).doing("continue")?,
            other => return Err(Failure::failed(format!("the probe was lost: {other:?}"))),
        }
    }
}

fn private(rollup: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some(kib("Anonymous:")? + kib("Swap:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_file_s_counts() {
        let rollup = "00200000-7ffd [rollup]\nRss: 40 kB\nPrivate_Dirty: 64 kB\n\
                      Anonymous:            24 kB\nSwap:                  4 kB\nSwapPss: 4 kB\n";
        assert_eq!(private(rollup), Some(28));
        assert_eq!(private("Rss: 40 kB\n"), None);
    }

    #[test]
    fn a_program_is_measured_at_its_exit() {
        // Needs ptrace, which a container may forbid.
        match own_at_exit(Path::new("/bin/true"), &[]) {
            Ok(own) => assert!((8..4096).contains(&own), "{own} KiB"),
            Err(failure) if failure.to_string().contains("EPERM") => {
                eprintln!("skipped: {failure}")
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}
