//! Whether PID 1 belongs to this container, and what follows from it for the generation. The
//! reading is in the `tickmark` crate; the decision is here.

use serde::{Deserialize, Serialize};

use crate::words::{Sink, Words, display, nth, say_with};
use crate::{Encoding, Errno, Generation};

/// The verdict of a proven unsafe topology, whoever proved it.
pub const UNSUPPORTED_TOPOLOGY: &str =
    "unsupported PID topology: pod must not set shareProcessNamespace or hostPID";

/// Where PID 1 is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pid1 {
    /// In this process's mount namespace: it belongs to this container.
    Here,
    /// In another one: it is the pod's or the node's.
    Elsewhere(Detail),
    /// Could not be compared.
    Unknown(Detail),
}

impl Pid1 {
    /// Whether it was proven to be outside.
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        matches!(self, Pid1::Elsewhere(_))
    }
}

/// What proved that PID 1 is elsewhere, beside two lists of mounts that share nothing. (Two
/// processes of one namespace that are chrooted into different places see such lists too.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    /// `NS_MNT_GET_INFO` counted as many mounts as this process sees. Linux 6.12.
    WholeNamespace,
    /// PID 1's cgroup is outside this process's.
    Cgroup,
    /// This process is in the initial PID namespace.
    InitialPidNamespace,
}

/// What could not be read, or what proved a topology, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Nothing to say.
    None,
    /// A file and why it could not be read.
    CannotRead(&'static str, Errno),
    /// A file whose contents are not what the kernel writes.
    CannotParse(&'static str),
    /// PID 1's start time is zero.
    StartTimeZero,
    /// Both namespace links were read: PID 1's and ours.
    Namespaces {
        /// Inode of PID 1's mount namespace.
        pid1: u64,
        /// Inode of this process's.
        own: u64,
    },
    /// The mounts of the two share none.
    Mounts(Witness),
}

display!(Detail, State);

impl Words for Detail {
    fn say(&self, sink: &mut dyn Sink) {
        match self {
            Detail::None => {}
            Detail::CannotRead(path, errno) => {
                say_with("cannot read % (%)", &[path, errno], sink);
            }
            Detail::CannotParse(path) => say_with("cannot parse %", &[path], sink),
            Detail::StartTimeZero => {
                "PID 1 start time is zero; possible hostPID or virtualized procfs".say(sink);
            }
            Detail::Namespaces { pid1, own } => {
                say_with("PID 1 is in mnt:[%], this process in mnt:[%]", &[pid1, own], sink);
            }
            Detail::Mounts(witness) => {
                const WITNESSES: &str = "this process sees every mount of its namespace\n\
                    PID 1's cgroup is outside this container's\n\
                    this is the node's PID namespace";
                "PID 1 and this process share no mount, and ".say(sink);
                sink.put(nth(WITNESSES, *witness as usize));
            }
        }
    }
}

/// The states of §4. The order is the wire format of `topology-report`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// PID 1 is in our mount namespace.
    Verified,
    /// PID 1 is elsewhere or unknown, and nothing rests on it.
    VerifiedByUniqueId,
    /// PID 1 is elsewhere and the generation would rest on it. Terminal.
    Unsafe,
    /// Could not be compared; the generation rests on PID 1.
    Unverifiable,
    /// Linux, but no generation.
    Unavailable,
    /// Another operating system.
    NonLinux,
}

impl Words for State {
    fn say(&self, sink: &mut dyn Sink) {
        const STATES: &str =
            "verified\nverified by unique id\nunsafe\nunverifiable\nunavailable\nnon-Linux";
        sink.put(nth(STATES, *self as usize));
    }
}

/// A state, whether PID 1 was proven outside, and the detail that messages give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// The state.
    pub state: State,
    /// Where PID 1 is.
    pub pid1: Pid1,
    /// What the state's message gives in parentheses.
    pub detail: Detail,
}

/// Decides the state for a process that writes `encoding` and holds `evidence`. `missing` says
/// why the evidence does not identify the container, where it does not.
#[must_use]
pub fn classify(
    pid1: Pid1,
    evidence: &Generation,
    encoding: Encoding,
    strict: bool,
    missing: Detail,
) -> Topology {
    // Text carries no unique id, so one that was read does not count for it.
    let unique = encoding == Encoding::Binary && evidence.has_unique_id();
    let identified = unique || evidence.formula().is_some();
    let (state, detail) = match pid1 {
        Pid1::Elsewhere(detail) if strict || !unique => (State::Unsafe, detail),
        Pid1::Elsewhere(detail) => (State::VerifiedByUniqueId, detail),
        _ if !identified => (State::Unavailable, missing),
        Pid1::Here => (State::Verified, Detail::None),
        Pid1::Unknown(detail) if unique => (State::VerifiedByUniqueId, detail),
        Pid1::Unknown(detail) => (State::Unverifiable, detail),
    };
    Topology { state, pid1, detail }
}
