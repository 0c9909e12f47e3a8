//! The tickmark protocol: what a worker writes, what a probe reads, and what that means.
//!
//! `no_std`, no alloc, no I/O and no clock: records and their two encodings, parsers for the
//! procfs files the evidence comes from, and the verdict as one pure fold. Everything that
//! touches a system call lives in the `tickmark` crate.
//!
//! The byte layout is normative in `FORMAT.md`, beside this crate's manifest.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::panic_in_result_fn))]

#[cfg(test)]
extern crate std;

mod decode;
mod envelope;
mod errno;
mod file;
mod generation;
pub mod procfs;
mod records;
mod slot;
mod text;
mod topology;
mod verdict;
mod words;

pub use envelope::{FORMAT_VERSION, RECORD_LEN};
pub use errno::Errno;
pub use file::{AnyMark, Decoded, Encoding, MarkFile, ReadFile, Record, SlotMark};
pub use generation::{Evidence, Generation, LaunchToken, Relation};
pub use records::{
    Attempt, CONSUMER_STATES_MAX, Damage, DecodeError, Expected, Mark, Phase, TopologyReport,
    TopologyUnsafe,
};
pub use slot::{MAX_SLOTS, MaxAge, OutOfRange, Slot, SlotCount};
pub use text::{
    TEXT_MAX, TextMark, decimal, encode_expected, encode_generation, encode_mark, encode_unsafe,
};
pub use topology::{Detail, Pid1, State, Topology, UNSUPPORTED_TOPOLOGY, Witness, classify};
pub use verdict::{
    Fault, Fold, HeaderFile, Now, Own, Problem, Read, SHOWN_PROBLEMS, SlotObservation, SlotProblem,
    Verdict, VerdictLine, needs_time_namespace, needs_wall_clock,
};
pub use words::{Shown, Sink, Words, nth, say_with};

/// The length of the longest file a reader looks at; what is longer is damaged.
pub const MAX_FILE_LEN: usize = 4096;
