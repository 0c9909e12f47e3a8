//! Reading postcard's bytes by hand, for the three records that the probe reads at every call.
//!
//! The derived reader does the same (a property test holds the two equal over any bytes), and
//! costs the probe more than the rest of the verdict does.

use crate::envelope;
use crate::text::{self, TextMark};
use crate::{
    AnyMark, Damage, DecodeError, Encoding, Expected, Generation, LaunchToken, Mark, Phase,
};

/// What is left of a record's body. A read that fails is remembered rather than returned, and gives
/// zeroes: a branch after each of some thirty fields is what the probe has no room for.
pub(crate) struct Body<'a> {
    rest: &'a [u8],
    failed: bool,
}

/// A record that is read in place: its copies are code that the probe has no room for. After a read
/// that failed it says nothing.
pub(crate) trait Decode {
    /// Reads every field from a binary body, in wire order.
    fn fill(&mut self, body: &mut Body<'_>);

    /// Reads the text form.
    fn parse(&mut self, text: &[u8]) -> Option<()>;
}

/// Reads a file in either encoding into `record`, once for all kinds of records.
pub(crate) fn decode(
    record: &mut dyn Decode,
    kind: u8,
    bytes: &[u8],
) -> Result<Encoding, DecodeError> {
    if !envelope::is_binary(bytes) {
        let read = record.parse(bytes);
        return read.map(|()| Encoding::Text).ok_or(DecodeError::Damaged(Damage::Text));
    }
    // What follows the fields is padding, or fields of a later writer.
    let mut body = Body { rest: envelope::body(kind, bytes)?, failed: false };
    record.fill(&mut body);
    if body.failed { Err(DecodeError::Damaged(Damage::Body)) } else { Ok(Encoding::Binary) }
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
    fn fill(&mut self, body: &mut Body<'_>) {
        self.processes = body.u32();
    }

    fn parse(&mut self, text: &[u8]) -> Option<()> {
        self.processes = text::parse_expected(text)?;
        Some(())
    }
}

impl Decode for Generation {
    #[inline(never)]
    fn fill(&mut self, body: &mut Body<'_>) {
        *self = Generation::empty();
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

    #[inline(never)]
    fn parse(&mut self, text: &[u8]) -> Option<()> {
        *self = Generation::empty();
        let (inode, start) = text::parse_formula(text)?;
        self.mount_namespace_inode = Some(inode);
        self.pid1_start_time = Some(start);
        Some(())
    }
}

impl Mark {
    /// What fields are read into. Not a constant, which would lie whole in the probe.
    #[inline(never)]
    pub(crate) fn blank() -> Mark {
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

impl Decode for AnyMark {
    fn fill(&mut self, body: &mut Body<'_>) {
        *self = AnyMark::blank();
        if let AnyMark::Binary(mark) = self {
            mark.fill(body);
        }
    }

    fn parse(&mut self, text: &[u8]) -> Option<()> {
        *self = AnyMark::Text(TextMark::blank());
        match self {
            AnyMark::Text(mark) => text::parse_mark(text, mark),
            AnyMark::Binary(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde::de::DeserializeOwned;

    use super::{Body, Decode};
    use crate::{AnyMark, Expected, Generation, Mark};

    /// The derived reader of the same bytes, but that a launch token must be one.
    fn derived<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
        postcard::take_from_bytes(body).ok().map(|(record, _)| record)
    }

    fn read<T: Decode>(mut record: T, bytes: &[u8]) -> Option<T> {
        let mut body = Body { rest: bytes, failed: false };
        record.fill(&mut body);
        (!body.failed).then_some(record)
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
            prop_assert_eq!(read(Expected { processes: 7 }, &body), derived::<Expected>(&body));
            let mut before = Generation::empty();
            before.cgroup_id = Some(7);
            prop_assert_eq!(read(before, &body), derived::<Generation>(&body));
            prop_assert_eq!(
                read(AnyMark::blank(), &body),
                derived::<Mark>(&body).map(AnyMark::Binary)
            );
        }
    }
}
