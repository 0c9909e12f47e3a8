//! What the worker says about the topology, and when: a message is logged once for an
//! uninterrupted state, across the processes and containers that share the marks directory.

use std::fmt;
use std::format;
use std::string::String;

use tickmark_protocol::{Generation, Pid1, State, Topology, TopologyReport, UNSUPPORTED_TOPOLOGY};

use crate::log::SlotLog;
use crate::procfs::Inspection;

/// A message and how loud it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Error(String),
    Warn(String),
    Info(String),
}

impl Message {
    /// What is to be said about `topology`, if anything is.
    pub(crate) fn about(topology: &Topology) -> Option<Message> {
        let detail = topology.detail;
        match topology.state {
            State::Unsafe => Some(Message::Error(format!(
                "{UNSUPPORTED_TOPOLOGY} ({detail}): recreate the pod without those settings"
            ))),
            State::Unverifiable => Some(Message::Warn(format!(
                "PID topology unverified ({detail}): the container generation still scopes the \
                 heartbeat, but shareProcessNamespace and hostPID cannot be ruled out"
            ))),
            State::Unavailable => Some(Message::Warn(format!(
                "no container generation ({detail}): falling back to freshness only, which \
                 cannot reject a heartbeat inherited from a previous container"
            ))),
            State::VerifiedByUniqueId => match topology.pid1 {
                Pid1::Elsewhere(detail) => Some(Message::Info(format!(
                    "PID 1 is outside this container ({detail}): the container generation rests \
                     on ids that do not repeat instead"
                ))),
                Pid1::Here | Pid1::Unknown(_) => None,
            },
            State::Verified | State::NonLinux => None,
        }
    }

    pub(crate) fn log(&self, log: &SlotLog<impl fmt::Display>) {
        match self {
            Message::Error(line) => log.error(line),
            Message::Warn(line) => log.warn(line),
            Message::Info(line) => log.info(line),
        }
    }
}

/// The record of a message about `inspection`.
pub(crate) fn report(inspection: &Inspection) -> TopologyReport {
    TopologyReport { state: inspection.topology.state, generation: inspection.generation.clone() }
}

/// Whether a recorded message says what `now` would.
pub(crate) fn repeats(recorded: &TopologyReport, now: &TopologyReport) -> bool {
    let same = match (&recorded.generation, &now.generation) {
        (None, None) => true,
        (Some(recorded), Some(now)) => same_container(now, recorded),
        _ => false,
    };
    recorded.state == now.state && same
}

fn same_container(now: &Generation, recorded: &Generation) -> bool {
    now.relation(recorded).is_same()
}
