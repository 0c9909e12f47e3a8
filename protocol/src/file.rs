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

macro_rules! record {
    ($type:ty, $kind:literal, $read:expr, $text:expr) => {
        impl sealed::Kind for $type {
            const KIND: u8 = $kind;
        }
        impl Record for $type {
            fn encode(&self) -> [u8; RECORD_LEN] {
                envelope::seal($kind, self)
            }
            fn decode(bytes: &[u8]) -> Result<Decoded<Self>, DecodeError> {
                if envelope::is_binary(bytes) {
                    let read: fn(&[u8]) -> Result<$type, DecodeError> = $read;
                    let record = read(envelope::body($kind, bytes)?)?;
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

record!(Expected, 1, decode::read, text::parse_expected);
record!(Generation, 2, decode::read, text::parse_generation);
record!(Attempt, 4, envelope::record, |_| None);
record!(TopologyUnsafe, 5, envelope::record, text::parse_unsafe);
record!(TopologyReport, 6, envelope::record, |_| None);

const MARK_KIND: u8 = 3;

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
        MarkFile::decode_into(slot, bytes, &mut mark)?;
        Ok(mark)
    }

    /// As [`MarkFile::decode`], in place: a mark is large, and each copy of it is code. After an
    /// error `mark` says nothing.
    ///
    /// # Errors
    /// As [`MarkFile::decode`].
    pub fn decode_into(slot: Slot, bytes: &[u8], mark: &mut AnyMark) -> Result<(), DecodeError> {
        let (written, damage) = if envelope::is_binary(bytes) {
            let body = envelope::body(MARK_KIND, bytes)?;
            *mark = AnyMark::blank();
            let written = match mark {
                AnyMark::Binary(mark) => decode::fill(mark, body).then_some(mark.slot),
                AnyMark::Text(_) => None,
            };
            (written, Damage::Body)
        } else {
            let mut line = TextMark::BLANK;
            let written = text::parse_mark(bytes, &mut line).map(|()| line.slot);
            *mark = AnyMark::Text(line);
            (written, Damage::Text)
        };
        if written == Some(slot.get()) {
            return Ok(());
        }
        Err(DecodeError::Damaged(damage))
    }
}

impl AnyMark {
    /// A mark that says nothing yet, to be read into.
    #[inline(never)]
    #[must_use]
    pub fn blank() -> AnyMark {
        AnyMark::Binary(<Mark as decode::Decode>::blank())
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
