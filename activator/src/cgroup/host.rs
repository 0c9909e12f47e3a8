//! The cgroup of one host: it has no process of its own, only leaves, and its limit holds for all
//! of them together.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::directory::{Directory, Mark};
use super::kill::{Cgroup, Empty, Unproven, absent};
use super::leaf::Leaf;
use super::limit::Limit;
use super::remove::remove;
use crate::error::{Error, Kind};
use crate::name::{HostName, LeafName};
use crate::process::Process;

/// How often a fresh cgroup is tried to be made where another is in its place.
const TRIES: u32 = 3;

/// A host's cgroup by its descriptors.
#[derive(Debug)]
pub struct HostCgroup {
    name: HostName,
    parent: Arc<Directory>,
    cgroup: Cgroup,
}

impl HostCgroup {
    /// The host's directory below a delegation. With the prefix no host's name is an interface
    /// file's, or another's who shares the delegation.
    pub(super) fn directory_name(host: &HostName) -> OsString {
        format!("host-{host}").into()
    }

    pub(super) fn host_name(directory: &str) -> Option<HostName> {
        directory.strip_prefix("host-")?.parse().ok()
    }

    pub(super) fn open(
        parent: &Arc<Directory>,
        name: &HostName,
    ) -> Result<Option<HostCgroup>, Error> {
        let cgroup = Cgroup::open(parent, &HostCgroup::directory_name(name))?;
        Ok(cgroup.map(|cgroup| HostCgroup {
            name: name.clone(),
            parent: Arc::clone(parent),
            cgroup,
        }))
    }

    /// The one that is there, unless it took a kill: then it is made afresh.
    pub(super) fn open_or_make(
        parent: &Arc<Directory>,
        name: &HostName,
    ) -> Result<HostCgroup, Error> {
        if let Some(host) = HostCgroup::open(parent, name)? {
            let keep = match host.mark()? {
                Mark::Made | Mark::Unsupported => true,
                // One that none of ours made: while something lives there it is used, and never
                // limited.
                Mark::None => host.populated()?,
                Mark::Killed => false,
            };
            if keep {
                return Ok(host);
            }
        }
        let directory = HostCgroup::directory_name(name);
        let cgroup = make_afresh(parent, &directory)?;
        Ok(HostCgroup { name: name.clone(), parent: Arc::clone(parent), cgroup })
    }

    fn mark(&self) -> Result<Mark, Error> {
        let directory = &self.cgroup.directory;
        directory.doing(directory.mark(), "read the mark of")
    }

    /// Whose it is.
    #[must_use]
    pub fn name(&self) -> &HostName {
        &self.name
    }

    /// Limits the host, all its generations together. Written again and again it may rise and
    /// fall: that is how an overlap gets its room.
    ///
    /// # Errors
    /// [`Error::is_not_ours`] where no activator made this cgroup: what systemd made keeps
    /// systemd's limits. [`Error::is_no_controller`] where a controller is not delegated.
    pub fn limit(&self, limit: &Limit) -> Result<(), Error> {
        if self.mark()? == Mark::None {
            return Err(Error::new(
                Kind::NotOurs,
                format!(
                    "{} was not made by an activator, and its limits are not ours to set",
                    self.cgroup.directory.path().display()
                ),
            ));
        }
        limit.write(&[&self.parent], &self.cgroup.directory)
    }

    /// The limit in force, as the kernel has it: rounded to pages.
    ///
    /// # Errors
    /// An interface file cannot be read.
    pub fn limit_in_force(&self) -> Result<Limit, Error> {
        Limit::read(&self.cgroup.directory)
    }

    /// A leaf that nothing has run in. One that was left is removed first, depth first.
    ///
    /// # Errors
    /// [`Error::is_populated`]: something lives in the one that is there; kill it first.
    /// [`Error::is_killed`]: the host itself took a kill; ask the delegation for it again.
    pub fn fresh_leaf(&self, name: LeafName) -> Result<Leaf, Error> {
        let host = &self.cgroup.directory;
        if self.mark()? == Mark::Killed {
            return Err(Error::new(
                Kind::Killed,
                format!("{} has taken a kill: start in a fresh one", host.path().display()),
            ));
        }
        let cgroup = make_afresh(host, &name.to_string().into())?;
        Ok(self.leaf(name, cgroup))
    }

    fn leaf(&self, name: LeafName, cgroup: Cgroup) -> Leaf {
        let [delegation, host] = [&self.parent, &self.cgroup.directory].map(Arc::clone);
        Leaf { name, delegation, host, cgroup }
    }

    /// The leaf of an earlier start; `None` where there is none, which is empty.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_leaf(&self, name: LeafName) -> Result<Option<Leaf>, Error> {
        let host = &self.cgroup.directory;
        if host.doing(self.cgroup.populated(), "read cgroup.events of")?.is_none() {
            // Removed, and perhaps made again: a leaf that lives there is not absent.
            return match HostCgroup::open(&self.parent, &self.name)? {
                Some(again) => again.open_leaf(name),
                None => Ok(None),
            };
        }
        let cgroup = Cgroup::open(host, name.to_string().as_ref())?;
        Ok(cgroup.map(|cgroup| self.leaf(name, cgroup)))
    }

    /// The leaves that are there, in order. What else is below the host is not ours.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn leaves(&self) -> Result<Vec<LeafName>, Error> {
        let host = &self.cgroup.directory;
        let children = host.doing(host.children(), "list")?;
        let mut leaves: Vec<LeafName> =
            children.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        leaves.sort();
        Ok(leaves)
    }

    /// Removes a leaf that is empty, and what a worker made in it; true where there was one.
    ///
    /// # Errors
    /// [`Error::is_populated`]: something lives in it.
    pub fn remove_leaf(&self, name: LeafName) -> Result<bool, Error> {
        remove(&self.cgroup.directory, name.to_string().as_ref())
    }

    /// Kills a leaf and proves it empty, as [`Leaf::kill`]; one that is absent is empty.
    ///
    /// # Errors
    /// See [`Unproven`].
    pub fn kill_leaf(
        &self,
        name: LeafName,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<Empty, Unproven> {
        match self.open_leaf(name).map_err(Unproven::Other)? {
            Some(leaf) => leaf.kill(leaders, deadline),
            None => absent(&self.cgroup.directory.path().join(name.to_string()), leaders, deadline),
        }
    }

    /// Whether a process is alive in any leaf.
    ///
    /// # Errors
    /// `cgroup.events` cannot be read.
    pub fn populated(&self) -> Result<bool, Error> {
        let populated = self.cgroup.populated().map(|populated| populated.unwrap_or(false));
        self.cgroup.directory.doing(populated, "read cgroup.events of")
    }

    /// Kills every leaf at once and proves the host empty; see [`Leaf::kill`].
    ///
    /// # Errors
    /// See [`Unproven`].
    pub fn kill(&self, leaders: &[&Process], deadline: Instant) -> Result<Empty, Unproven> {
        self.cgroup.kill(leaders, deadline)
    }

    /// Proves the host empty and kills only what is left; see [`Leaf::empty`].
    ///
    /// # Errors
    /// See [`Unproven`].
    pub fn empty(&self, leaders: &[&Process], deadline: Instant) -> Result<Empty, Unproven> {
        self.cgroup.empty(leaders, deadline)
    }
}

/// Makes `name` in `parent`, in place of one that was left.
fn make_afresh(parent: &Directory, name: &OsString) -> Result<Cgroup, Error> {
    for _ in 0..TRIES {
        remove(parent, name)?;
        match parent.make(name) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(error) => {
                return parent.doing(Err(error), &format!("make {} in", name.display()));
            }
        }
        let Some(cgroup) = Cgroup::open(parent, name)? else { continue };
        cgroup.directory.doing(cgroup.directory.mark_made(), "mark")?;
        return Ok(cgroup);
    }
    Err(Error::new(
        Kind::Io,
        format!(
            "cannot make {}: another is always in its place",
            parent.path().join(name).display()
        ),
    ))
}
