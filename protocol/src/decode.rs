//! Reading postcard's bytes by hand, for the three records that the probe reads at every call.
//!
//! The derived reader does the same (a property test holds the two equal over any bytes), and
//! costs the probe more than the rest of the verdict does.

use crate::{Damage, DecodeError, Expected, Generation, LaunchToken, Mark, Phase};

/// What is left of a record's body. A read that fails is remembered rather than returned, and gives
/// zeroes: a branch after each of some thirty fields is what the probe has no room for.
pub(crate) struct Body<'a> {
    rest: &'a [u8],
    failed: bool,
}

/// A record that can be read from a body.
pub(crate) trait Decode: Sized {
    /// What the fields are read into. Not a constant, which would lie whole in the probe.
    fn blank() -> Self;

    /// Reads every field in wire order.
    fn fill(&mut self, body: &mut Body<'_>);
}

/// Reads a record; what follows it is padding, or fields of a later writer.
pub(crate) fn read<T: Decode>(body: &[u8]) -> Result<T, DecodeError> {
    let mut record = T::blank();
    if fill(&mut record, body) { Ok(record) } else { Err(DecodeError::Damaged(Damage::Body)) }
}

/// As [`read`], in place; whether every field could be read.
pub(crate) fn fill<T: Decode>(record: &mut T, body: &[u8]) -> bool {
    let mut body = Body { rest: body, failed: false };
    record.fill(&mut body);
    !body.failed
}

impl<'a> Body<'a> {
    fn fail(&mut self) {
        self.failed = true;
        self.rest = &[];
    }

    #[inline(never)]
    fn byte(&mut self) -> u8 {
        match self.rest {
            [byte, rest @ ..] => {
                self.rest = rest;
                *byte
            }
            [] => {
                self.fail();
                0
            }
        }
    }

    /// A varint of at most `bits` bits: seven a byte, the lowest first.
    #[inline(never)]
    fn varint(&mut self, bits: u32) -> u64 {
        let (mut value, mut shift) = (0, 0);
        while shift < bits {
            let byte = self.byte();
            let part = u64::from(byte & 0x7F);
            if shift + 7 > bits && part >> (bits - shift) != 0 {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return value;
            }
            shift += 7;
        }
        self.fail();
        0
    }

    fn u64(&mut self) -> u64 {
        self.varint(64)
    }

    fn u32(&mut self) -> u32 {
        self.varint(32) as u32
    }

    /// The tag of an `Option`.
    fn is_some(&mut self) -> bool {
        let tag = self.byte();
        if tag > 1 {
            self.fail();
        }
        tag == 1
    }

    #[inline(never)]
    fn optional_u64(&mut self) -> Option<u64> {
        if self.is_some() { Some(self.u64()) } else { None }
    }

    fn bytes(&mut self, length: u64) -> &'a [u8] {
        match usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length)) {
            Some((bytes, rest)) => {
                self.rest = rest;
                bytes
            }
            None => {
                self.fail();
                &[]
            }
        }
    }
}

impl Decode for Expected {
    fn blank() -> Expected {
        Expected { processes: 0 }
    }

    fn fill(&mut self, body: &mut Body<'_>) {
        self.processes = body.u32();
    }
}

impl Decode for Generation {
    fn blank() -> Generation {
        Generation::empty()
    }

    #[inline(never)]
    fn fill(&mut self, body: &mut Body<'_>) {
        if body.is_some() {
            self.boot_id = body.bytes(16).try_into().ok();
        }
        if body.is_some() {
            let length = body.u64();
            self.launch = LaunchToken::new(body.bytes(length));
            if self.launch.is_none() {
                body.fail();
            }
        }
        self.mount_namespace_id = body.optional_u64();
        self.root_mount_id = body.optional_u64();
        self.cgroup_id = body.optional_u64();
        self.mount_namespace_inode = body.optional_u64();
        self.pid1_start_time = body.optional_u64();
    }
}

impl Decode for Mark {
    fn blank() -> Mark {
        Mark {
            slot: 0,
            pid: 0,
            sequence: 0,
            wall_ms: 0,
            monotonic_ns: 0,
            tick_ms: 0,
            phase: Phase::Running,
            consumers_subscribed: 0,
            consumers_expected: 0,
            jobs_in_flight: 0,
            oldest_job_ms: 0,
            time_namespace: 0,
            generation: None,
            consumer_states: heapless::Vec::new(),
        }
    }

    fn fill(&mut self, body: &mut Body<'_>) {
        self.slot = body.u32();
        self.pid = body.u32();
        self.sequence = body.u64();
        self.wall_ms = body.u64();
        self.monotonic_ns = body.u64();
        self.tick_ms = body.u32();
        match body.u32() {
            0 => {}
            1 => self.phase = Phase::Recovering,
            2 => self.phase = Phase::Draining { left_ms: body.u64() },
            _ => body.fail(),
        }
        self.consumers_subscribed = body.u32();
        self.consumers_expected = body.u32();
        self.jobs_in_flight = body.u32();
        self.oldest_job_ms = body.u64();
        self.time_namespace = body.u64();
        if body.is_some() {
            self.generation.insert(Generation::empty()).fill(body);
        }
        let length = body.u64();
        if self.consumer_states.extend_from_slice(body.bytes(length)).is_err() {
            body.fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde::de::DeserializeOwned;

    use super::{Decode, read};
    use crate::{Expected, Generation, Mark};

    /// The derived reader of the same bytes, but that a launch token must be one.
    fn derived<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
        postcard::take_from_bytes(body).ok().map(|(record, _)| record)
    }

    fn agree<T>(body: &[u8])
    where
        T: Decode + DeserializeOwned + PartialEq + core::fmt::Debug,
    {
        assert_eq!(read::<T>(body).ok(), derived::<T>(body));
    }

    /// Bytes that get far into a record more often than random ones.
    fn body() -> impl Strategy<Value = std::vec::Vec<u8>> {
        let byte = prop_oneof![Just(0), Just(1), Just(2), Just(0x80), Just(0xFF), 0..=255u8];
        vec(byte, 0..260)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn the_derived_reader_agrees(body in body()) {
            agree::<Expected>(&body);
            agree::<Generation>(&body);
            agree::<Mark>(&body);
        }
    }
}
