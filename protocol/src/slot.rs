//! The small numbers of the protocol, each valid by construction: a slot, a count of slots,
//! the age at which a mark is stale.

use core::fmt;
use core::num::NonZeroU32;

/// How many slots one marks directory may declare.
pub const MAX_SLOTS: u32 = 4096;

/// A number that is outside the range of the type it was meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfRange;

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("number out of range")
    }
}

impl core::error::Error for OutOfRange {}

/// A supervisor's number for one worker process, 0 to 4095. A respawned process gets its
/// slot back, and with it its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Slot 0, the only one of a worker with a single process.
    pub const FIRST: Slot = Slot(0);

    /// # Errors
    /// [`OutOfRange`] for 4096 and above.
    pub const fn new(number: u32) -> Result<Slot, OutOfRange> {
        if number < MAX_SLOTS { Ok(Slot(number)) } else { Err(OutOfRange) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many slots the probe waits for, 1 to 4096.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCount(NonZeroU32);

impl SlotCount {
    /// One process, the default.
    pub const ONE: SlotCount = SlotCount(NonZeroU32::MIN);

    /// # Errors
    /// [`OutOfRange`] for 0 and for more than 4096.
    pub const fn new(count: u32) -> Result<SlotCount, OutOfRange> {
        match NonZeroU32::new(count) {
            Some(n) if count <= MAX_SLOTS => Ok(SlotCount(n)),
            _ => Err(OutOfRange),
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// Whether `slot` is one of those declared.
    #[must_use]
    pub const fn contains(self, slot: Slot) -> bool {
        slot.0 < self.0.get()
    }

    /// Every declared slot, from 0.
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        (0..self.get()).map(Slot)
    }
}

impl fmt::Display for SlotCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The age above which a mark is stale, in whole seconds; never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MaxAge(NonZeroU32);

impl MaxAge {
    /// 45 seconds.
    pub const DEFAULT: MaxAge = MaxAge(NonZeroU32::new(45).unwrap());

    /// # Errors
    /// [`OutOfRange`] for zero.
    pub const fn from_secs(seconds: u32) -> Result<MaxAge, OutOfRange> {
        match NonZeroU32::new(seconds) {
            Some(n) => Ok(MaxAge(n)),
            None => Err(OutOfRange),
        }
    }

    /// Whole seconds.
    #[must_use]
    pub const fn as_secs(self) -> u32 {
        self.0.get()
    }

    /// Nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() as u64 * 1_000_000_000
    }
}
