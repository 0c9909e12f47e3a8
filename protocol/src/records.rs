//! The records: what each file of the marks directory says. Field order is wire order; a
//! change here changes FORMAT.md, and a test fails until it does.

use core::fmt;

use heapless::{String, Vec};
use serde::{Deserialize, Serialize};

use crate::{Generation, State};

/// `expected`: how many slots the probe waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Slots 0 to `processes` − 1 must each have a mark.
    pub processes: u32,
}

/// The longest text of [`Mark::consumer_states`], in bytes. With every field at its longest a mark
/// keeps 79 bytes for what may be added to it later.
pub const CONSUMER_STATES_MAX: usize = 192;

/// What the worker was doing when it left a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Every consumer is consuming.
    Running,
    /// At least one consumer is re-establishing itself; counts as healthy.
    Recovering,
    /// A deliberate shutdown.
    Draining {
        /// What is left of the shutdown grace, in milliseconds.
        left_ms: u64,
    },
}

/// `worker-<slot>`: a slot's latest healthy tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The slot, the same as in the file's name.
    pub slot: u32,
    /// The worker's process id in its own PID namespace.
    pub pid: u32,
    /// Marks left by this process so far, from 1.
    pub sequence: u64,
    /// `CLOCK_REALTIME` in milliseconds since 1970, for people.
    pub wall_ms: u64,
    /// `CLOCK_MONOTONIC` in nanoseconds, for the verdict.
    pub monotonic_ns: u64,
    /// The period of the monitor in milliseconds.
    pub tick_ms: u32,
    /// What the worker was doing.
    pub phase: Phase,
    /// Consumers that were consuming or recovering.
    pub consumers_subscribed: u32,
    /// Consumers that had to be.
    pub consumers_expected: u32,
    /// Jobs that were being worked on.
    pub jobs_in_flight: u32,
    /// The age of the oldest of them in milliseconds; 0 without one.
    pub oldest_job_ms: u64,
    /// Inode of `/proc/self/ns/time`; 0 where there is none (before Linux 5.6).
    pub time_namespace: u64,
    /// Which incarnation of the container; `None` where nothing could be read.
    pub generation: Option<Generation>,
    /// What each consumer answered when it was last asked, for people: printable ASCII such as
    /// `orders consuming; mails recovering`. Empty in the marks of a worker that does not say.
    pub consumer_states: Vec<u8, CONSUMER_STATES_MAX>,
}

/// `attempt-<slot>`: starts of a slot since it was last healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Starts so far, this one included.
    pub starts: u64,
    /// `CLOCK_MONOTONIC` of the first of them, nanoseconds.
    pub first_start_ns: u64,
    /// `CLOCK_MONOTONIC` of the last ERROR about them, nanoseconds.
    pub last_report_ns: Option<u64>,
    /// The incarnation that counts; without one the count is the volume's.
    pub generation: Option<Generation>,
}

/// `topology-unsafe`: PID 1 was proven to belong to something outside the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyUnsafe {
    /// What proved it.
    pub detail: String<256>,
}

/// `topology-report`: the topology message that was logged last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyReport {
    /// The state that was reported.
    pub state: State,
    /// The incarnation it was reported for.
    pub generation: Option<Generation>,
}

/// Why bytes are not a record. The verdict says `damaged` for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Not the length the encoding has.
    Length,
    /// The magic number or the format version is none that ever was.
    Magic,
    /// The checksum does not fit the bytes.
    Checksum,
    /// The record is of another kind than the file's name says.
    Kind,
    /// The fields could not be read, or one contradicts the file's name.
    Body,
    /// Text that is not what the text encoding writes.
    Text,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Damage::Length => "wrong length",
            Damage::Magic => "no known magic number",
            Damage::Checksum => "checksum does not fit",
            Damage::Kind => "another kind of record",
            Damage::Body => "fields do not parse",
            Damage::Text => "text does not parse",
        })
    }
}

impl core::error::Error for Damage {}

/// Why a file could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// Torn, truncated or foreign bytes. Worth reading again: a write in place is not atomic.
    Damaged(Damage),
    /// A format version above this crate's.
    Newer(u8),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Damaged(damage) => write!(f, "damaged: {damage}"),
            DecodeError::Newer(version) => {
                write!(f, "written by a newer tickmark (format {version})")
            }
        }
    }
}

impl core::error::Error for DecodeError {}
