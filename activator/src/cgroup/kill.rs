//! Kill and proof: mark, `cgroup.kill`, and a wait for the one sign that nothing is left.
//!
//! An [`Empty`] is made here alone, and only of evidence. Whatever else happens is [`Unproven`]:
//! something may be alive, and neither its limit nor its socket may be given away.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use super::directory::{Directory, errno, read_whole};
use crate::descriptor;
use crate::error::{Error, Kind};
use crate::process::Process;

/// `populated` is read again this often, woken or not.
const LOOK: Duration = Duration::from_secs(1);

/// How often a leader that outlives its cgroup is looked at.
const LEADER_LOOK: Duration = Duration::from_millis(5);

/// Proof that nothing is left of what was started in a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Empty {
    evidence: Evidence,
}

/// By what an [`Empty`] is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evidence {
    /// `cgroup.events` said `populated 0`: neither a process in it nor below it. A zombie is none.
    Unpopulated,
    /// The cgroup was removed: the descriptor held since before answers `ENODEV`. Only an empty
    /// cgroup can be.
    Removed,
    /// There is no such cgroup.
    Absent,
    /// The leader's exit, where there is no cgroup or none that could be killed. Of its
    /// descendants nothing is known.
    LeaderExit,
}

impl Empty {
    /// By what it is proven.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        self.evidence
    }
}

/// Why there is no proof.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unproven {
    /// There is no delegated cgroup to kill.
    NoDelegation,
    /// The cgroup has no `cgroup.kill`: before Linux 5.14, or it is masked.
    NoKill(PathBuf),
    /// The cgroup became threaded, and `cgroup.kill` answers `EOPNOTSUPP` there.
    Threaded(PathBuf),
    /// Something was alive at the deadline.
    Deadline {
        /// The cgroup.
        path: PathBuf,
        /// Whether it is frozen, which alone does not keep it from being killed.
        frozen: bool,
    },
    /// The leader lives, outside the cgroup that it was started in.
    Escaped {
        /// Its number.
        pid: u32,
        /// The cgroup that it was started in.
        path: PathBuf,
        /// `/proc/<pid>/cgroup` of the unified hierarchy, where it can be read.
        found: Option<String>,
    },
    /// No cgroup can be killed, and the leader lives at the deadline.
    LeaderLives(u32),
    /// A system call failed.
    Io {
        /// What was done, and to which cgroup.
        doing: String,
        /// Its error.
        error: io::Error,
    },
    /// As [`Unproven::Io`], from another part of this crate.
    Other(Error),
}

impl Unproven {
    /// The leader's exit is the only proof there is: without a delegated cgroup, or without
    /// `cgroup.kill`.
    #[must_use]
    pub fn is_no_delegation(&self) -> bool {
        matches!(self, Unproven::NoDelegation | Unproven::NoKill(_))
    }

    /// There is no `cgroup.kill`.
    #[must_use]
    pub fn is_no_kill(&self) -> bool {
        matches!(self, Unproven::NoKill(_))
    }

    fn io(cgroup: &Directory, what: &str, error: impl Into<io::Error>) -> Unproven {
        Unproven::Io { doing: format!("{what} {}", cgroup.path().display()), error: error.into() }
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unproven::NoDelegation => f.write_str(
                "no cgroup is delegated, so that descendants cannot be killed: set `cgroup` to a \
                 delegated cgroup v2 directory",
            ),
            Unproven::NoKill(path) => write!(
                f,
                "{} has no cgroup.kill: it needs Linux 5.14 or later, and nothing mounted over it",
                path.display()
            ),
            Unproven::Threaded(path) => write!(
                f,
                "{} is threaded, where the kernel refuses cgroup.kill: kill what cgroup.threads \
                 names",
                path.display()
            ),
            Unproven::Deadline { path, frozen } => {
                let frozen = if *frozen { " (it is frozen)" } else { "" };
                write!(
                    f,
                    "{} is not empty by the deadline{frozen}: see its cgroup.procs",
                    path.display()
                )
            }
            Unproven::Escaped { pid, path, found } => write!(
                f,
                "process {pid} left {} for {} and lives: a worker that may write another cgroup's \
                 cgroup.procs is not contained; run it as another user",
                path.display(),
                found.as_deref().unwrap_or("another cgroup")
            ),
            Unproven::LeaderLives(pid) => {
                write!(f, "process {pid} lives at the deadline, and no cgroup can be killed")
            }
            Unproven::Io { doing, error } => write!(f, "cannot {doing}: {error}"),
            Unproven::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unproven {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Unproven::Io { error, .. } => Some(error),
            Unproven::Other(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Unproven> for Error {
    fn from(unproven: Unproven) -> Error {
        let kind = match &unproven {
            Unproven::NoDelegation => Kind::NoDelegation,
            Unproven::NoKill(_) => Kind::NoKill,
            _ => Kind::Unproven,
        };
        Error::because(kind, "nothing proves that all is gone", unproven)
    }
}

/// A cgroup with the descriptor that can prove it empty, held since before anything else.
#[derive(Debug)]
pub(super) struct Cgroup {
    pub(super) directory: Arc<Directory>,
    events: OwnedFd,
    pub(super) id: u64,
}

impl Cgroup {
    /// `None` where there is none.
    pub(super) fn open(parent: &Directory, name: &OsStr) -> Result<Option<Cgroup>, Error> {
        let opened = || {
            let Some(directory) = parent.child(name)? else { return Ok(None) };
            match directory.interface("cgroup.events", OFlags::RDONLY) {
                Ok(events) => {
                    let id = directory.id()?;
                    Ok(Some(Cgroup { directory: Arc::new(directory), events, id }))
                }
                // It went in between: a cgroup that is not the root has this file.
                Err(Errno::NOENT | Errno::NODEV) if parent.child(name)?.is_none() => Ok(None),
                Err(error) => Err(error),
            }
        };
        parent.doing(opened(), &format!("open {} in", name.display()))
    }

    /// `populated` of `cgroup.events`; `None` where the cgroup is removed.
    ///
    /// # References
    /// [cgroup v2](https://docs.kernel.org/admin-guide/cgroup-v2.html#un-populated-notification)
    pub(super) fn populated(&self) -> Result<Option<bool>, Errno> {
        match read_whole(&self.events) {
            Ok(text) => key(&text, "populated").map(Some).ok_or(Errno::ILSEQ),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `frozen` of `cgroup.events`, Linux 5.2 and later.
    pub(super) fn frozen(&self) -> Result<bool, Errno> {
        Ok(key(&read_whole(&self.events)?, "frozen").unwrap_or(false))
    }

    fn proof(&self) -> Result<Option<Empty>, Unproven> {
        match self.populated() {
            Ok(Some(true)) => Ok(None),
            Ok(Some(false)) => Ok(Some(Empty { evidence: Evidence::Unpopulated })),
            Ok(None) => Ok(Some(Empty { evidence: Evidence::Removed })),
            Err(error) => Err(Unproven::io(&self.directory, "read cgroup.events of", error)),
        }
    }

    /// Kills what is in this cgroup and below, and waits until it is proven empty. From the first
    /// step on it is marked, and nothing is spawned into it again.
    ///
    /// The mark is written before the kill, so that a crash in between cannot lose it; a mark that
    /// cannot be written keeps the kill from being sent. Frozen processes die too, at once.
    ///
    /// # References
    /// [cgroup v2](https://docs.kernel.org/admin-guide/cgroup-v2.html#core-interface-files):
    /// `cgroup.kill`, Linux 5.14 and later.
    pub(super) fn kill(&self, leaders: &[&Process], deadline: Instant) -> Result<Empty, Unproven> {
        let cgroup = &*self.directory;
        let kill = match cgroup.interface("cgroup.kill", OFlags::WRONLY) {
            Ok(kill) => kill,
            Err(Errno::NOENT | Errno::XDEV | Errno::NODEV) => {
                return match self.populated() {
                    Ok(None) => with_leaders(Evidence::Removed, cgroup.path(), leaders, deadline),
                    _ => Err(Unproven::NoKill(cgroup.path().to_owned())),
                };
            }
            Err(error) => return Err(Unproven::io(cgroup, "open cgroup.kill of", error)),
        };
        cgroup.mark_killed().map_err(|error| Unproven::io(cgroup, "mark", error))?;
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&kill, b"1"));
        let closed = descriptor::close(kill);
        match written {
            Ok(1) => {}
            Ok(_) => return Err(Unproven::io(cgroup, "write cgroup.kill of", Errno::IO)),
            // Removed meanwhile: the descriptor held since before has the answer.
            Err(Errno::NODEV) => {}
            Err(Errno::OPNOTSUPP) => {
                return match self.proof()? {
                    Some(empty) => with_leaders(empty.evidence, cgroup.path(), leaders, deadline),
                    None => Err(Unproven::Threaded(cgroup.path().to_owned())),
                };
            }
            Err(error) => return Err(Unproven::io(cgroup, "write cgroup.kill of", error)),
        }
        closed.map_err(|error| Unproven::io(cgroup, "close cgroup.kill of", errno(&error)))?;
        let empty = self.wait(deadline)?;
        with_leaders(empty.evidence, cgroup.path(), leaders, deadline)
    }

    /// Proves this cgroup empty, and kills only what is left in it: a clean stop leaves no mark.
    /// Where it cannot be killed, the leader's exit is the only proof, and its descendants are
    /// left as they are.
    pub(super) fn empty(&self, leaders: &[&Process], deadline: Instant) -> Result<Empty, Unproven> {
        if let Some(empty) = self.proof()? {
            return with_leaders(empty.evidence, self.directory.path(), leaders, deadline);
        }
        match self.kill(leaders, deadline) {
            Err(unproven) if unproven.is_no_delegation() => {
                leader_exit(leaders, unproven, deadline)
            }
            answer => answer,
        }
    }

    /// Reading `cgroup.events` arms a poll of the same descriptor for whatever changes after, so
    /// that no change is lost between the two.
    fn wait(&self, deadline: Instant) -> Result<Empty, Unproven> {
        loop {
            if let Some(empty) = self.proof()? {
                return Ok(empty);
            }
            let now = Instant::now();
            if now >= deadline {
                let frozen = self.frozen().unwrap_or(false);
                let path = self.directory.path().to_owned();
                return Err(Unproven::Deadline { path, frozen });
            }
            descriptor::wait(&self.events, PollFlags::PRI, deadline.min(now + LOOK))
                .map_err(|error| Unproven::Io { doing: "wait".to_owned(), error })?;
        }
    }
}

/// The proof of a cgroup that is not there.
pub(super) fn absent(
    path: &Path,
    leaders: &[&Process],
    deadline: Instant,
) -> Result<Empty, Unproven> {
    with_leaders(Evidence::Absent, path, leaders, deadline)
}

/// An empty cgroup whose leader lives has been left, and proves nothing. A process leaves its
/// cgroup a moment before its pidfd tells its end.
fn with_leaders(
    evidence: Evidence,
    path: &Path,
    leaders: &[&Process],
    deadline: Instant,
) -> Result<Empty, Unproven> {
    for leader in leaders {
        loop {
            let look = deadline.min(Instant::now() + LEADER_LOOK);
            if leader.wait(look).map_err(Unproven::Other)?.is_some() {
                break;
            }
            let found = unified_path(leader.pid());
            let elsewhere = found.as_deref().is_some_and(|found| !may_be(found, path));
            if elsewhere || Instant::now() >= deadline {
                return Err(Unproven::Escaped { pid: leader.pid(), path: path.to_owned(), found });
            }
        }
    }
    Ok(Empty { evidence })
}

/// Whether a path of `/proc/<pid>/cgroup`, which begins at another root than ours, may be this
/// cgroup or one below. A wrong yes only takes the time until the deadline.
fn may_be(found: &str, path: &Path) -> bool {
    let found = found.strip_suffix(" (deleted)").unwrap_or(found);
    Path::new(found).components().any(|name| Some(name.as_os_str()) == path.file_name())
}

/// The answer to "is it empty" where no cgroup can be killed, for which `why` is the reason: what
/// is left of the leaders is killed, and their exit is all that can be known. Whoever asks has to
/// say so: [`Evidence::LeaderExit`] tells it.
///
/// # Errors
/// `why` itself where it is another, or where there is no leader whose exit could tell.
pub fn leader_exit(
    leaders: &[&Process],
    why: Unproven,
    deadline: Instant,
) -> Result<Empty, Unproven> {
    if leaders.is_empty() || !why.is_no_delegation() {
        return Err(why);
    }
    for leader in leaders {
        leader.signal(Signal::KILL).map_err(Unproven::Other)?;
    }
    for leader in leaders {
        if leader.wait(deadline).map_err(Unproven::Other)?.is_none() {
            return Err(Unproven::LeaderLives(leader.pid()));
        }
    }
    Ok(Empty { evidence: Evidence::LeaderExit })
}

/// A key of a flat keyed file that is 0 or 1.
fn key(text: &str, name: &str) -> Option<bool> {
    text.lines().find_map(|line| match line.split_once(' ')? {
        (key, "0") if key == name => Some(false),
        (key, "1") if key == name => Some(true),
        _ => None,
    })
}

/// The unified hierarchy's line, `0::/path`.
///
/// # References
/// [cgroups(7)](https://man7.org/linux/man-pages/man7/cgroups.7.html)
fn unified_path(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_and_nothing_else_is_taken_for_it() {
        let text = "populated 1\nfrozen 0\n";
        assert_eq!(key(text, "populated"), Some(true));
        assert_eq!(key(text, "frozen"), Some(false));
        assert_eq!(key(text, "popul"), None);
        assert_eq!(key("populated 2\n", "populated"), None);
    }

    #[test]
    fn the_second_error_matches_both() {
        let none = Unproven::NoDelegation;
        let no_kill = Unproven::NoKill("/x".into());
        assert!(none.is_no_delegation() && !none.is_no_kill());
        assert!(no_kill.is_no_delegation() && no_kill.is_no_kill());
        for unproven in [none, no_kill] {
            let both = unproven.is_no_kill();
            let error = Error::from(unproven);
            assert!(error.is_unproven() && error.is_no_delegation());
            assert_eq!(error.is_no_kill(), both);
        }
    }
}
