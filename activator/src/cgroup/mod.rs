//! Containment by cgroup v2: one cgroup a host, one leaf a process, each killed as a whole and
//! proven empty. By hand, through rustix: every function names its interface file and since which
//! kernel there is one.
//!
//! What it does not do: set devices or io, follow a hierarchy of version 1, or keep a worker in
//! that may write another cgroup's `cgroup.procs`. Such a worker (root, or the activator's own
//! user) can leave; where that is seen, the proof is refused.
//!
//! ```text
//! delegated directory        made by systemd, a container runtime or the administrator
//! └── host-orders            the host's limit
//!     ├── generation-4-0     the incumbent
//!     ├── generation-5-0     the successor
//!     └── sidecar
//! ```

mod directory;
mod find;
mod host;
mod kill;
mod leaf;
mod limit;
mod remove;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub use self::find::Setting;
#[cfg(feature = "systemd")]
pub(crate) use self::find::is_populated;
pub use self::host::HostCgroup;
pub use self::kill::{Empty, Evidence, Unproven, leader_exit};
pub use self::leaf::Leaf;
pub use self::limit::Limit;

use self::directory::Directory;
use self::kill::absent;
use self::remove::remove;
use crate::error::Error;
use crate::name::HostName;
use crate::process::Process;

/// A delegated directory of cgroup v2. It has no limit to set: the one who delegated it did.
#[derive(Debug, Clone)]
pub struct Delegation {
    directory: Arc<Directory>,
}

impl Delegation {
    /// Where it is, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The host's cgroup, made if it is not there, made afresh if it took a kill.
    ///
    /// # Errors
    /// [`Error::is_populated`]: it took a kill and something lives in it.
    pub fn host(&self, host: &HostName) -> Result<HostCgroup, Error> {
        HostCgroup::open_or_make(&self.directory, host)
    }

    /// The host's cgroup if it is there, as it is.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_host(&self, host: &HostName) -> Result<Option<HostCgroup>, Error> {
        HostCgroup::open(&self.directory, host)
    }

    /// The hosts that have a cgroup here, in order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn hosts(&self) -> Result<Vec<HostName>, Error> {
        let children = self.directory.doing(self.directory.children(), "list")?;
        let mut hosts: Vec<HostName> =
            children.iter().filter_map(|name| HostCgroup::host_name(name.to_str()?)).collect();
        hosts.sort();
        Ok(hosts)
    }

    /// Kills the host's cgroup and proves it empty, whatever its layout; one that is absent is
    /// empty. It is kept, marked.
    ///
    /// # Errors
    /// See [`Unproven`].
    pub fn kill_host(
        &self,
        host: &HostName,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<Empty, Unproven> {
        match self.open_host(host).map_err(Unproven::Other)? {
            Some(host) => host.kill(leaders, deadline),
            None => absent(&self.host_path(host), leaders, deadline),
        }
    }

    /// Proves the host's cgroup empty and kills only what is left; one that is absent is empty.
    ///
    /// # Errors
    /// See [`Unproven`].
    pub fn empty_host(
        &self,
        host: &HostName,
        leaders: &[&Process],
        deadline: Instant,
    ) -> Result<Empty, Unproven> {
        match self.open_host(host).map_err(Unproven::Other)? {
            Some(host) => host.empty(leaders, deadline),
            None => absent(&self.host_path(host), leaders, deadline),
        }
    }

    fn host_path(&self, host: &HostName) -> PathBuf {
        self.path().join(HostCgroup::directory_name(host))
    }

    /// Removes a host's cgroup that is empty; true where there was one.
    ///
    /// # Errors
    /// [`Error::is_populated`]: something lives in it.
    pub fn remove_host(&self, host: &HostName) -> Result<bool, Error> {
        remove(&self.directory, &HostCgroup::directory_name(host))
    }
}
