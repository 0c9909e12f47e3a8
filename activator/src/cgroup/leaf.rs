//! The cgroup that one process of a generation runs in, or one sidecar.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::directory::{Directory, Mark};
use super::kill::{Cgroup, Empty, Unproven};
use super::limit::Limit;
use crate::error::{Error, Kind};
use crate::name::LeafName;
use crate::process::Process;

/// A leaf by its descriptors: it stays this very cgroup, whatever its path names later.
#[derive(Debug)]
pub struct Leaf {
    pub(super) name: LeafName,
    pub(super) delegation: Arc<Directory>,
    pub(super) host: Arc<Directory>,
    pub(super) cgroup: Cgroup,
}

impl Leaf {
    /// What runs in it.
    #[must_use]
    pub fn name(&self) -> LeafName {
        self.name
    }

    /// The inode of its directory, which is the cgroup's id: since Linux 5.5 64 bits that are
    /// never given twice within a boot.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.cgroup.id
    }

    /// Moves a process here, its threads with it.
    ///
    /// # Errors
    /// [`Error::is_killed`] where the cgroup has taken a kill: the process must not run on. A
    /// process that is gone is `ESRCH`. A cgroup that was made threaded could not be killed.
    ///
    /// # References
    /// [cgroup v2](https://docs.kernel.org/admin-guide/cgroup-v2.html#processes): `cgroup.procs`.
    /// A move is not held against `pids.max`.
    pub fn place(&self, pid: u32) -> Result<(), Error> {
        self.refuse_unfit()?;
        let directory = &self.cgroup.directory;
        let moved = directory.write("cgroup.procs", &pid.to_string());
        directory.doing(moved, &format!("move process {pid} into"))?;
        // A kill that began in between may have missed it; one that begins now cannot.
        self.refuse_unfit()
    }

    /// An error where nothing may be started: it took a kill, or could not be killed.
    fn refuse_unfit(&self) -> Result<(), Error> {
        let directory = &self.cgroup.directory;
        for cgroup in [&self.host, directory] {
            if cgroup.doing(cgroup.mark(), "read the mark of")? == Mark::Killed {
                return Err(Error::new(
                    Kind::Killed,
                    format!("{} has taken a kill: start in a fresh one", cgroup.path().display()),
                ));
            }
        }
        let kind = directory.doing(directory.read("cgroup.type"), "read cgroup.type of")?;
        // The root of a threaded subtree, `domain threaded`, is killed as any other.
        match kind.trim_end() {
            "domain" | "domain threaded" => Ok(()),
            kind => Err(Error::new(
                Kind::Failed,
                format!(
                    "{} is {kind}, where nothing can be killed: start in a fresh one",
                    directory.path().display()
                ),
            )),
        }
    }

    /// Limits this leaf alone; its host's limit holds as well.
    ///
    /// # Errors
    /// [`Error::is_no_controller`] where a controller is not delegated.
    pub fn limit(&self, limit: &Limit) -> Result<(), Error> {
        limit.write(&[&self.delegation, &self.host], &self.cgroup.directory)
    }

    /// Whether a process is alive in it or below; a removed cgroup is not populated.
    ///
    /// # Errors
    /// `cgroup.events` cannot be read.
    pub fn populated(&self) -> Result<bool, Error> {
        let populated = self.cgroup.populated().map(|populated| populated.unwrap_or(false));
        self.cgroup.directory.doing(populated, "read cgroup.events of")
    }

    /// Whether all of it is frozen (`cgroup.freeze`, Linux 5.2 and later).
    ///
    /// # Errors
    /// `cgroup.events` cannot be read.
    pub fn frozen(&self) -> Result<bool, Error> {
        let frozen = match self.cgroup.frozen() {
            Err(Errno::NODEV) => Ok(false),
            other => other,
        };
        self.cgroup.directory.doing(frozen, "read cgroup.events of")
    }

    /// Kills all that is in it and proves it empty. It stays, marked, and is never spawned into
    /// again. With the `leader` that was started here, an empty cgroup proves nothing while it
    /// lives. Blocks until the proof or `deadline`.
    ///
    /// # Errors
    /// See [`Unproven`]: something may be alive.
    pub fn kill(&self, leaders: &[&Process], deadline: Instant) -> Result<Empty, Unproven> {
        self.cgroup.kill(leaders, deadline)
    }

    /// Proves it empty and kills only what is left: a clean stop leaves no mark. Where it cannot
    /// be killed, the exit of the `leaders` is the only proof. Blocks until the proof or `deadline`.
    ///
    /// # Errors
    /// See [`Unproven`]: something may be alive.
    pub fn empty(&self, leaders: &[&Process], deadline: Instant) -> Result<Empty, Unproven> {
        self.cgroup.empty(leaders, deadline)
    }
}
