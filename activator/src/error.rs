//! The one error of this crate: opaque, with a predicate for each thing a caller can act on. Its
//! text names the path or the host, the cause and the next step.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Any error as the caller's own gate or hook gave it.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What failed, and what that leaves behind.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    source: Option<BoxError>,
}

/// What a caller can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A mistake in a name, an argument or the configuration.
    Usage,
    /// A system call failed.
    Io,
    /// Something that must be there is not: a host, a build, a generation.
    Unknown,
    /// The host's layout refuses: fenced or in conflict.
    Layout,
    /// The row has no generation paths.
    NoGenerationPath,
    /// The row is a unit's: it keeps stop-then-start.
    Unit,
    /// The backend cannot run staged generations.
    NoGenerations,
    /// The gate refused: nothing ran. The caller's error is the source.
    Refused,
    /// The context of the start has ended.
    Ended,
    /// The lock on the state directory is not held, or not any more.
    LeaseLost,
    /// A fence allows no launch for this host.
    Fenced,
    /// A newer request took this attempt's place.
    Superseded,
    /// Nothing says whether the build ran.
    MayHaveRun,
    /// A kill that is not proven.
    Unproven,
    /// There is no delegated cgroup.
    NoDelegation,
    /// The kernel has no `cgroup.kill`.
    NoKill,
    /// The cgroup has taken a kill and is never spawned into again.
    Killed,
    /// Something lives in a cgroup that should be empty.
    Populated,
    /// No activator made the cgroup: its limits are another's.
    NotOurs,
    /// A controller that a limit needs is not delegated.
    NoController,
    /// No containment for generations: the proof on the host covers it.
    NoContainment,
    /// A start or a switch that did not come to be: died, never healthy, link refused.
    Failed,
    /// A live listener, or a file that is not ours, is where a socket belongs.
    Occupied,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    /// As [`Error::new`], with the cause, which is said after the message.
    pub(crate) fn because(
        kind: Kind,
        message: impl Into<String>,
        source: impl Into<BoxError>,
    ) -> Error {
        Error(Arc::new(Inner { kind, message: message.into(), source: Some(source.into()) }))
    }

    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    /// A mistake in a name, an argument or the configuration.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        self.0.kind == Kind::Usage
    }

    /// A host, a build or a generation that is not there.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0.kind == Kind::Unknown
    }

    /// The host's layout refuses starts and kills; the text has the reason.
    #[must_use]
    pub fn is_layout(&self) -> bool {
        self.0.kind == Kind::Layout
    }

    /// The row's layout has no generation sockets.
    #[must_use]
    pub fn is_no_generation_path(&self) -> bool {
        self.0.kind == Kind::NoGenerationPath
    }

    /// The row is a unit's, which keeps stop-then-start.
    #[must_use]
    pub fn is_unit(&self) -> bool {
        self.0.kind == Kind::Unit
    }

    /// The backend cannot run staged generations.
    #[must_use]
    pub fn is_no_generations(&self) -> bool {
        self.0.kind == Kind::NoGenerations
    }

    /// The gate refused, so nothing of the build ran: a lost lease, a fence, an ended context or a
    /// superseded attempt among them. The caller's own error is [`Error::source`], as it was given.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(
            self.0.kind,
            Kind::Refused | Kind::Ended | Kind::LeaseLost | Kind::Fenced | Kind::Superseded
        )
    }

    /// The context of the start had ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.kind == Kind::Ended
    }

    /// The lease on the state directory is not held.
    #[must_use]
    pub fn is_lease_lost(&self) -> bool {
        self.0.kind == Kind::LeaseLost
    }

    /// A fence allows no launch.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.0.kind == Kind::Fenced
    }

    /// A newer request took this one's place.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.0.kind == Kind::Superseded
    }

    /// Nothing says whether the build ran.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.0.kind == Kind::MayHaveRun
    }

    /// Something may still be alive: a kill without its proof. No delegation and no `cgroup.kill`
    /// are among them.
    #[must_use]
    pub fn is_unproven(&self) -> bool {
        matches!(self.0.kind, Kind::Unproven | Kind::NoDelegation | Kind::NoKill)
    }

    /// There is no delegated cgroup, or none that could be killed: both leave the leader's exit as
    /// the only proof.
    #[must_use]
    pub fn is_no_delegation(&self) -> bool {
        matches!(self.0.kind, Kind::NoDelegation | Kind::NoKill)
    }

    /// The kernel has no `cgroup.kill` (before Linux 5.14).
    #[must_use]
    pub fn is_no_kill(&self) -> bool {
        self.0.kind == Kind::NoKill
    }

    /// The cgroup has taken a kill, and is never spawned into again.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.0.kind == Kind::Killed
    }

    /// Something lives in a cgroup that should be empty: kill it first.
    #[must_use]
    pub fn is_populated(&self) -> bool {
        self.0.kind == Kind::Populated
    }

    /// No activator made the cgroup, and its limits are another's to set.
    #[must_use]
    pub fn is_not_ours(&self) -> bool {
        self.0.kind == Kind::NotOurs
    }

    /// A controller that a limit needs is not delegated.
    #[must_use]
    pub fn is_no_controller(&self) -> bool {
        self.0.kind == Kind::NoController
    }

    /// Generations and sidecars have no cgroup of their own; the proof on the host covers them.
    #[must_use]
    pub fn is_no_containment(&self) -> bool {
        self.0.kind == Kind::NoContainment
    }

    /// A live listener, or a file that is not ours, is where a socket belongs.
    #[must_use]
    pub fn is_occupied(&self) -> bool {
        self.0.kind == Kind::Occupied
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Says what was being done, and to what.
pub(crate) trait Doing<T> {
    /// `message` reads as the object of "cannot": `open /run/x`.
    fn doing(self, message: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<BoxError>> Doing<T> for Result<T, E> {
    fn doing(self, message: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::because(Kind::Io, format!("cannot {}", message()), error))
    }
}
