//! Reading postcard's bytes by hand, for the three records that the probe reads at every call.
//!
//! The derived reader does the same (a property test holds the two equal over any bytes), and
//! costs the probe more than the rest of the verdict does.

use crate::{Damage, DecodeError, Expected, Generation, LaunchToken, Mark, Phase};

/// What is left of a record's body.
pub(crate) struct Body<'a>(&'a [u8]);

/// A record that can be read from a body.
pub(crate) trait Decode: Sized {
    fn decode(body: &mut Body<'_>) -> Option<Self>;
}

/// Reads a record; what follows it is padding, or fields of a later writer.
pub(crate) fn read<T: Decode>(body: &[u8]) -> Result<T, DecodeError> {
    T::decode(&mut Body(body)).ok_or(DecodeError::Damaged(Damage::Body))
}

impl Body<'_> {
    /// A varint of at most `bits` bits: seven a byte, the lowest first.
    #[inline(never)]
    fn varint(&mut self, bits: u32) -> Option<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let part = u64::from(byte & 0x7F);
            if shift + 7 > bits && part >> (bits - shift) != 0 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift += 7;
            if shift >= bits {
                return None;
            }
        }
    }

    fn u64(&mut self) -> Option<u64> {
        self.varint(64)
    }

    fn u32(&mut self) -> Option<u32> {
        self.varint(32).map(|value| value as u32)
    }

    /// The tag of an `Option`.
    fn is_some(&mut self) -> Option<bool> {
        let (&tag, rest) = self.0.split_first()?;
        self.0 = rest;
        match tag {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    #[inline(never)]
    #[expect(clippy::option_option, reason = "outside: could be read; inside: is there")]
    fn optional_u64(&mut self) -> Option<Option<u64>> {
        if self.is_some()? { self.u64().map(Some) } else { Some(None) }
    }

    fn bytes(&mut self, length: usize) -> Option<&[u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl Decode for Expected {
    fn decode(body: &mut Body<'_>) -> Option<Expected> {
        Some(Expected { processes: body.u32()? })
    }
}

impl Decode for Generation {
    #[inline(never)]
    fn decode(body: &mut Body<'_>) -> Option<Generation> {
        let boot_id = if body.is_some()? { Some(body.bytes(16)?.try_into().ok()?) } else { None };
        let launch = if body.is_some()? {
            let length = usize::try_from(body.u64()?).ok()?;
            Some(LaunchToken::new(body.bytes(length)?)?)
        } else {
            None
        };
        let mut numbers = [None; 5];
        for number in &mut numbers {
            *number = body.optional_u64()?;
        }
        let [mount_namespace_id, root_mount_id, cgroup_id, mount_namespace_inode, pid1_start_time] =
            numbers;
        Some(Generation {
            boot_id,
            launch,
            mount_namespace_id,
            root_mount_id,
            cgroup_id,
            mount_namespace_inode,
            pid1_start_time,
        })
    }
}

impl Decode for Phase {
    fn decode(body: &mut Body<'_>) -> Option<Phase> {
        match body.u32()? {
            0 => Some(Phase::Running),
            1 => Some(Phase::Recovering),
            2 => Some(Phase::Draining { left_ms: body.u64()? }),
            _ => None,
        }
    }
}

impl Decode for Mark {
    fn decode(body: &mut Body<'_>) -> Option<Mark> {
        Some(Mark {
            slot: body.u32()?,
            pid: body.u32()?,
            sequence: body.u64()?,
            wall_ms: body.u64()?,
            monotonic_ns: body.u64()?,
            tick_ms: body.u32()?,
            phase: Phase::decode(body)?,
            consumers_subscribed: body.u32()?,
            consumers_expected: body.u32()?,
            jobs_in_flight: body.u32()?,
            oldest_job_ms: body.u64()?,
            time_namespace: body.u64()?,
            generation: if body.is_some()? { Some(Generation::decode(body)?) } else { None },
        })
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
