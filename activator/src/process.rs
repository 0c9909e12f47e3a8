//! One process held by a pidfd: who it is, across a restart of the activator too, whether it has
//! exited and how, and a signal that never reaches another process of the same number.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};

use crate::descriptor;
use crate::error::{Doing as _, Error, Kind};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Which process: one number is given again, the four together are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its number in the activator's PID namespace.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks (a hundredth of a second) after boot. It stays
    /// through an exec.
    pub start_time: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The inode of its leaf's directory, where it has one; see [`Leaf::id`](crate::cgroup::Leaf::id).
    pub cgroup_id: Option<u64>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It has ended; its status went to another parent. So of a process that an earlier activator
    /// or the service manager started.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit status {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
            Exit::Unknown => f.write_str("exit status unknown: it is no child of this activator"),
        }
    }
}

/// A process that runs or has run. Dropping it leaves the process alone; one of ours that nobody
/// waits for stays a zombie until the activator ends.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
    identity: Identity,
    exit: Mutex<Option<Exit>>,
}

impl Process {
    /// Finds a process that an earlier activator started; `None` where it has ended, a zombie that
    /// its parent has not waited for included. Then nothing is known of its descendants.
    ///
    /// The pidfd comes first and the start time after it: a number that was given again in between
    /// has a later start time. Whether it has ended is the pidfd's to say: in procfs a process
    /// whose first thread has left looks like a zombie.
    ///
    /// # Errors
    /// procfs or the pidfd cannot be had. pidfds are Linux 5.3 and later, on which `poll` tells
    /// their end.
    pub fn adopt(identity: &Identity) -> Result<Option<Process>, Error> {
        if boot_id()? != identity.boot_id {
            return Ok(None);
        }
        let pid = identity.pid;
        let Some(number) = to_pid(pid) else { return Ok(None) };
        let pidfd = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // EINVAL, since Linux 6.9 ENOENT: the number is a thread's now.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error).doing(|| format!("open process {pid}")),
        };
        let start_time = read_start_time(pid)?;
        let ended = descriptor::wait(&pidfd, PollFlags::IN, Instant::now())
            .doing(|| format!("look at process {pid}"))?;
        match start_time {
            _ if ended => Ok(None),
            Some(found) if found != identity.start_time => Ok(None),
            Some(_) => {
                Ok(Some(Process { pidfd, identity: identity.clone(), exit: Mutex::new(None) }))
            }
            None => Err(Error::new(
                Kind::Io,
                format!("process {pid} lives and is not in /proc, which hides it (hidepid)"),
            )),
        }
    }

    /// One that nobody has waited for, so that its number is its own: a child of ours, or what the
    /// caller knows that of.
    pub(crate) fn of_child(pid: u32) -> Result<Process, Error> {
        let pidfd = to_pid(pid)
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .doing(|| format!("open process {pid}"))?;
        let start_time = read_start_time(pid)?.ok_or_else(|| {
            Error::new(Kind::Io, format!("process {pid} is not in /proc: is procfs mounted there?"))
        })?;
        let identity =
            Identity { pid, start_time, boot_id: boot_id()?.to_owned(), cgroup_id: None };
        Ok(Process { pidfd, identity, exit: Mutex::new(None) })
    }

    pub(crate) fn in_cgroup(mut self, id: Option<u64>) -> Process {
        self.identity.cgroup_id = id;
        self
    }

    /// What to persist so that the next activator finds it.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// Sends `signal` to this process and no other; `false` where it has ended.
    ///
    /// # Errors
    /// `EPERM`: it changed its user.
    ///
    /// # References
    /// [pidfd_send_signal(2)](https://man7.org/linux/man-pages/man2/pidfd_send_signal.2.html),
    /// Linux 5.1 and later.
    pub fn signal(&self, signal: Signal) -> Result<bool, Error> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => {
                Err(error).doing(|| format!("send {signal:?} to process {}", self.identity.pid))
            }
        }
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    /// As [`Process::wait`].
    pub fn exited(&self) -> Result<Option<Exit>, Error> {
        self.wait(Instant::now())
    }

    /// Waits until `deadline` for the whole process to end, every thread of it; `None` where it
    /// has not. A child of ours is no zombie afterwards. Blocks: with tokio, wait until the pidfd
    /// ([`AsFd`]) is readable and call [`Process::exited`].
    ///
    /// # Errors
    /// The kernel has no pidfds that can be waited for: before Linux 5.4.
    ///
    /// # References
    /// [pidfd_open(2)](https://man7.org/linux/man-pages/man2/pidfd_open.2.html): readable once it
    /// has ended, Linux 5.3. [waitid(2)](https://man7.org/linux/man-pages/man2/waitid.2.html):
    /// `P_PIDFD`, Linux 5.4.
    pub fn wait(&self, deadline: Instant) -> Result<Option<Exit>, Error> {
        let doing = || format!("wait for process {}", self.identity.pid);
        let known = |exit: &Mutex<_>| *exit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exit) = known(&self.exit) {
            return Ok(Some(exit));
        }
        if !descriptor::wait(&self.pidfd, PollFlags::IN, deadline).doing(doing)? {
            return Ok(None);
        }
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        if exit.is_none() {
            *exit = Some(self.reap().doing(doing)?);
        }
        Ok(*exit)
    }

    fn reap(&self) -> io::Result<Exit> {
        loop {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
                Ok(Some(status)) => {
                    let code = status.exit_status().map(Exit::Code);
                    let signal = || status.terminating_signal().map(Exit::Signal);
                    return Ok(code.or_else(signal).unwrap_or(Exit::Unknown));
                }
                // Not our child, or SIGCHLD is ignored.
                Ok(None) | Err(Errno::CHILD) => return Ok(Exit::Unknown),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Readable once the process has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Field 22 of `/proc/<pid>/stat`; `None` where there is no such process to be seen.
///
/// # References
/// [proc_pid_stat(5)](https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html)
fn read_start_time(pid: u32) -> Result<Option<u64>, Error> {
    let path = format!("/proc/{pid}/stat");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(error).doing(|| format!("read {path}")),
    };
    parse_start_time(&text)
        .map(Some)
        .ok_or_else(|| Error::new(Kind::Io, format!("{path} does not read as proc_pid_stat(5)")))
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// The second field is the name in parentheses, which may hold any byte, `)` among them; the state
/// after it is field 3.
fn parse_start_time(text: &[u8]) -> Option<u64> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// This boot's id, without its line end.
pub(crate) fn boot_id() -> Result<&'static str, Error> {
    static READ: OnceLock<String> = OnceLock::new();
    if let Some(id) = READ.get() {
        return Ok(id);
    }
    let text = fs::read_to_string(BOOT_ID).doing(|| format!("read {BOOT_ID}"))?;
    Ok(READ.get_or_init(|| text.trim_end().to_owned()))
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
#[allow(clippy::zombie_processes, reason = "it is the pidfd that waits for them")]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn field_22_is_read_after_the_last_parenthesis() {
        let head = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0";
        assert_eq!(parse_start_time(format!("{head} 4711 9 9\n").as_bytes()), Some(4711));
        assert_eq!(parse_start_time(head.as_bytes()), None);
        assert_eq!(parse_start_time(b""), None);
    }

    #[test]
    fn a_childs_exit_status_is_known_and_told_again() {
        let child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let process = Process::of_child(child.id()).unwrap();
        assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Code(7)));
        assert_eq!(process.exited().unwrap(), Some(Exit::Code(7)));
        assert!(!process.signal(Signal::KILL).unwrap());
    }

    #[test]
    fn the_same_number_with_another_start_time_or_boot_is_another_process() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of_child(child.id()).unwrap();
        let same = process.identity().clone();
        let later = Identity { start_time: same.start_time + 1, ..same.clone() };
        let rebooted = Identity { boot_id: "another".to_owned(), ..same.clone() };
        assert!(Process::adopt(&same).unwrap().is_some());
        assert!(Process::adopt(&later).unwrap().is_none());
        assert!(Process::adopt(&rebooted).unwrap().is_none());
        assert_eq!(process.exited().unwrap(), None);
        assert!(process.signal(Signal::KILL).unwrap());
        assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
        assert!(Process::adopt(&same).unwrap().is_none(), "it was waited for");
    }

    #[test]
    fn a_zombie_is_not_adopted() {
        let child = Command::new("true").spawn().unwrap();
        let process = Process::of_child(child.id()).unwrap();
        assert!(descriptor::wait(&process, PollFlags::IN, soon()).unwrap());
        assert!(Process::adopt(process.identity()).unwrap().is_none());
        assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Code(0)));
    }

    #[test]
    fn an_adopted_processs_status_is_said_to_be_unknown() {
        // A grandchild of ours, whose parent is another's.
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = shell.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(out), &mut line).unwrap();
        let parent = Process::of_child(shell.id()).unwrap();
        let grandchild = Process::of_child(line.trim().parse().unwrap()).unwrap();
        let adopted = Process::adopt(grandchild.identity()).unwrap().expect("it runs");
        assert_eq!(adopted.exited().unwrap(), None);
        assert!(adopted.signal(Signal::KILL).unwrap());
        assert_eq!(adopted.wait(soon()).unwrap(), Some(Exit::Unknown));
        parent.wait(soon()).unwrap();
    }
}
