//! The two clocks of the protocol.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Where a verdict takes the time from. The static probe has its own: finding the kernel's
/// fast clock by hand costs it more than asking the C library that it is linked with.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// As [`monotonic_ns`].
    pub monotonic_ns: fn() -> u64,
    /// As [`realtime_ns`].
    pub realtime_ns: fn() -> i64,
}

impl Clocks {
    /// The system's.
    pub const SYSTEM: Clocks = Clocks { monotonic_ns, realtime_ns };
}

/// `CLOCK_MONOTONIC` in nanoseconds: it stands still while the machine is suspended, and no
/// one sets it.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(nanoseconds(now)).unwrap_or_default()
}

/// `CLOCK_REALTIME` in nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> i64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// `CLOCK_REALTIME` in milliseconds since 1970.
#[must_use]
pub fn realtime_ms() -> u64 {
    u64::try_from(realtime_ns() / 1_000_000).unwrap_or_default()
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
