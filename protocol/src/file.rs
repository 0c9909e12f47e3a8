//! A file's bytes as a record, whichever of the two encodings they are in.

use crate::decode;
use crate::envelope::{self, RECORD_LEN};
use crate::text::{self, TextMark};
use crate::{
    Attempt, Damage, DecodeError, Expected, Generation, Mark, Slot, TopologyReport, TopologyUnsafe,
};

/// How a file is written. Told apart by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// 512 bytes with a checksum; the default.
    Binary,
    /// What `kicks_liveness` 0.1.4 writes.
    Text,
}

/// A record and the encoding it was found in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded<T> {
    /// The record.
    pub record: T,
    /// How it was written.
    pub encoding: Encoding,
}

/// A record with a file of its own. Sealed by its supertrait: the kinds are the format's.
pub trait Record: Sized + sealed::Kind {
    /// The 512 bytes of this record.
    fn encode(&self) -> [u8; RECORD_LEN];

    /// # Errors
    /// [`DecodeError::Newer`] for a later format version, [`DecodeError::Damaged`] for
    /// anything else that this record's writer did not write.
    fn decode(bytes: &[u8]) -> Result<Decoded<Self>, DecodeError>;
}

mod sealed {
    pub trait Kind {
        const KIND: u8;
    }
}

/// A record that the probe reads, by hand and in place.
macro_rules! by_hand {
    ($type:ty, $kind:literal, $blank:expr) => {
        impl sealed::Kind for $type {
            const KIND: u8 = $kind;
        }
        impl Record for $type {
            fn encode(&self) -> [u8; RECORD_LEN] {
                envelope::seal($kind, self)
            }
            fn decode(bytes: &[u8]) -> Result<Decoded<Self>, DecodeError> {
                let mut record: $type = $blank;
                let encoding = record.decode_into(bytes)?;
                Ok(Decoded { record, encoding })
            }
        }
        impl ReadFile for $type {
            fn decode_into(&mut self, bytes: &[u8]) -> Result<Encoding, DecodeError> {
                decode::decode(self, $kind, bytes)
            }
        }
    };
}

/// A record that only the worker reads, by the derived reader.
macro_rules! derived {
    ($type:ty, $kind:literal, $text:expr) => {
        impl sealed::Kind for $type {
            const KIND: u8 = $kind;
        }
        impl Record for $type {
            fn encode(&self) -> [u8; RECORD_LEN] {
                envelope::seal($kind, self)
            }
            fn decode(bytes: &[u8]) -> Result<Decoded<Self>, DecodeError> {
                if envelope::is_binary(bytes) {
                    let record = envelope::record(envelope::body($kind, bytes)?)?;
                    Ok(Decoded { record, encoding: Encoding::Binary })
                } else {
                    let parse: fn(&[u8]) -> Option<$type> = $text;
                    let record = parse(bytes).ok_or(DecodeError::Damaged(Damage::Text))?;
                    Ok(Decoded { record, encoding: Encoding::Text })
                }
            }
        }
    };
}

by_hand!(Expected, 1, Expected { processes: 0 });
by_hand!(Generation, 2, Generation::empty());
derived!(Attempt, 4, |_| None);
derived!(TopologyUnsafe, 5, text::parse_unsafe);
derived!(TopologyReport, 6, |_| None);

const MARK_KIND: u8 = 3;

/// What a file is read into, in place: a record is large, and each copy of it is code.
pub trait ReadFile {
    /// Reads a file's bytes; after an error the record says nothing.
    ///
    /// # Errors
    /// As [`Record::decode`].
    fn decode_into(&mut self, bytes: &[u8]) -> Result<Encoding, DecodeError>;
}

/// The mark of one slot, to be read into.
#[derive(Debug)]
pub struct SlotMark<'m> {
    /// Whose.
    pub slot: Slot,
    /// Where to.
    pub mark: &'m mut AnyMark,
}

impl ReadFile for SlotMark<'_> {
    fn decode_into(&mut self, bytes: &[u8]) -> Result<Encoding, DecodeError> {
        let encoding = decode::decode(self.mark, MARK_KIND, bytes)?;
        let (slot, damage) = match &*self.mark {
            AnyMark::Binary(mark) => (mark.slot, Damage::Body),
            AnyMark::Text(mark) => (mark.slot, Damage::Text),
        };
        if slot == self.slot.get() { Ok(encoding) } else { Err(DecodeError::Damaged(damage)) }
    }
}

/// A mark in either encoding; text carries less.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack; there is no heap")]
pub enum AnyMark {
    /// With a monotonic time stamp.
    Binary(Mark),
    /// Its file's mtime is its time stamp.
    Text(TextMark),
}

/// The bytes of `worker-<slot>`.
pub struct MarkFile;

impl MarkFile {
    /// The 512 bytes of a mark.
    #[must_use]
    pub fn encode(mark: &Mark) -> [u8; RECORD_LEN] {
        envelope::seal(MARK_KIND, mark)
    }

    /// # Errors
    /// As [`Record::decode`]; also damaged where the mark names another slot than its file.
    pub fn decode(slot: Slot, bytes: &[u8]) -> Result<AnyMark, DecodeError> {
        let mut mark = AnyMark::blank();
        SlotMark { slot, mark: &mut mark }.decode_into(bytes)?;
        Ok(mark)
    }
}

impl AnyMark {
    /// A mark that says nothing yet, to be read into.
    #[inline(never)]
    #[must_use]
    pub fn blank() -> AnyMark {
        AnyMark::Binary(Mark::blank())
    }

    /// The generation the mark names, if it names one.
    #[must_use]
    pub fn generation(&self) -> Option<&Generation> {
        match self {
            AnyMark::Binary(mark) => mark.generation.as_ref(),
            AnyMark::Text(mark) => mark.generation.as_ref(),
        }
    }

    /// The encoding it was found in.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        match self {
            AnyMark::Binary(_) => Encoding::Binary,
            AnyMark::Text(_) => Encoding::Text,
        }
    }
}
