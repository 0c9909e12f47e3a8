//! A host's row: what the configuration says of it, in the form that the backends read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::cgroup::Limit;
use crate::name::HostName;

/// What runs a host's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// This activator, by exec.
    Exec,
    /// The service manager, by the unit of this name; it owns the process tree.
    Unit(String),
}

/// A host's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Whose row it is.
    pub host: HostName,
    /// The canonical socket, through which clients connect; `None` for a pure queue worker.
    pub socket: Option<PathBuf>,
    /// What runs it.
    pub backing: Backing,
    /// Where its builds are staged.
    pub builds: PathBuf,
    /// What one process of it may use, where its build says nothing else.
    pub tier: Limit,
    /// Why it is in conflict with another row, where it is.
    pub conflict: Option<String>,
    /// The run directory that root lays out, where the generations' sockets are nested in one.
    pub nested: Option<PathBuf>,
    /// Whether the canonical path is someone else's to lay out: it is bound, never linked.
    pub foreign: bool,
    /// Whether a successor may run beside the incumbent.
    pub overlap: bool,
    /// How many processes one generation has; above 1 only without a socket.
    pub slots: u32,
    /// Arguments of a generation's process.
    pub args: Vec<String>,
    /// Its variables besides those that each launch gets.
    pub env: BTreeMap<String, String>,
    /// Its working directory; `None` is the directory of the staged executable.
    pub directory: Option<PathBuf>,
    /// The arguments of the sidecar, where the host has one.
    pub sidecar: Option<Vec<String>>,
}

impl Route {
    /// A row with nothing but its name: one slot, no socket, overlapping.
    #[must_use]
    pub fn new(host: HostName) -> Route {
        Route {
            host,
            socket: None,
            backing: Backing::Exec,
            builds: PathBuf::new(),
            tier: Limit::default(),
            conflict: None,
            nested: None,
            foreign: false,
            overlap: true,
            slots: 1,
            args: Vec::new(),
            env: BTreeMap::new(),
            directory: None,
            sidecar: None,
        }
    }

    /// Whether the service manager runs it.
    #[must_use]
    pub fn is_unit(&self) -> bool {
        matches!(self.backing, Backing::Unit(_))
    }
}
