//! One example of each record, the same as in FORMAT.md, and the largest of each kind.
#![allow(dead_code, reason = "each test takes the examples it needs")]

use tickmark_protocol::{
    Attempt, CONSUMER_STATES_MAX, Expected, Generation, LaunchToken, Mark, Phase, State,
    TopologyReport, TopologyUnsafe,
};

/// 2026-11-29T18:00:00Z.
pub(crate) const WALL_MS: u64 = 1_795_975_200_000;
/// An hour after boot.
pub(crate) const MONOTONIC_NS: u64 = 3_600_000_000_000;
pub(crate) const TIME_NAMESPACE: u64 = 4_026_531_834;

pub(crate) fn expected() -> Expected {
    Expected { processes: 2 }
}

pub(crate) fn generation() -> Generation {
    Generation {
        boot_id: Some([
            0x6f, 0x1c, 0x0a, 0x52, 0x9d, 0x0e, 0x4b, 0x7a, 0x8f, 0x43, 0x2c, 0x5d, 0x7e, 0x90,
            0xa1, 0xb3,
        ]),
        launch: None,
        mount_namespace_id: Some(4304),
        root_mount_id: Some(2_147_485_000),
        cgroup_id: None,
        mount_namespace_inode: Some(4_026_532_616),
        pid1_start_time: Some(12_345),
    }
}

pub(crate) fn mark() -> Mark {
    Mark {
        slot: 1,
        pid: 7,
        sequence: 300,
        wall_ms: WALL_MS,
        monotonic_ns: MONOTONIC_NS,
        tick_ms: 10_000,
        phase: Phase::Draining { left_ms: 45_000 },
        consumers_subscribed: 2,
        consumers_expected: 2,
        jobs_in_flight: 1,
        oldest_job_ms: 1500,
        time_namespace: TIME_NAMESPACE,
        generation: Some(generation()),
        consumer_states: states("orders consuming; mails recovering"),
    }
}

pub(crate) fn states(text: &str) -> heapless::Vec<u8, CONSUMER_STATES_MAX> {
    text.as_bytes().try_into().expect("192 bytes are enough")
}

pub(crate) fn attempt() -> Attempt {
    Attempt {
        starts: 305,
        first_start_ns: MONOTONIC_NS,
        last_report_ns: Some(MONOTONIC_NS + 62_000_000_000),
        generation: Some(generation()),
    }
}

pub(crate) fn topology_unsafe() -> TopologyUnsafe {
    TopologyUnsafe {
        detail: "PID 1 is in mnt:[4026531841], this process in mnt:[4026532616]"
            .try_into()
            .expect("256 bytes are enough"),
    }
}

pub(crate) fn topology_report() -> TopologyReport {
    TopologyReport { state: State::Unverifiable, generation: Some(generation()) }
}

/// Every field at the value that takes the most bytes.
pub(crate) fn largest_generation() -> Generation {
    Generation {
        boot_id: Some([0xFF; 16]),
        launch: LaunchToken::new(&[b'~'; 64]),
        mount_namespace_id: Some(u64::MAX),
        root_mount_id: Some(u64::MAX),
        cgroup_id: Some(u64::MAX),
        mount_namespace_inode: Some(u64::MAX),
        pid1_start_time: Some(u64::MAX),
    }
}

pub(crate) fn largest_mark() -> Mark {
    Mark {
        slot: 4095,
        pid: u32::MAX,
        sequence: u64::MAX,
        wall_ms: u64::MAX,
        monotonic_ns: u64::MAX,
        tick_ms: u32::MAX,
        phase: Phase::Draining { left_ms: u64::MAX },
        consumers_subscribed: u32::MAX,
        consumers_expected: u32::MAX,
        jobs_in_flight: u32::MAX,
        oldest_job_ms: u64::MAX,
        time_namespace: u64::MAX,
        generation: Some(largest_generation()),
        consumer_states: states(&"~".repeat(CONSUMER_STATES_MAX)),
    }
}

pub(crate) fn largest_attempt() -> Attempt {
    Attempt {
        starts: u64::MAX,
        first_start_ns: u64::MAX,
        last_report_ns: Some(u64::MAX),
        generation: Some(largest_generation()),
    }
}

pub(crate) fn largest_unsafe() -> TopologyUnsafe {
    TopologyUnsafe { detail: "~".repeat(256).as_str().try_into().expect("exactly its capacity") }
}

pub(crate) fn largest_report() -> TopologyReport {
    TopologyReport { state: State::NonLinux, generation: Some(largest_generation()) }
}
