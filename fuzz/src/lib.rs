//! What the decoders' targets share: bytes that pass the checksum, and what must hold of a
//! record that was read.

use std::fmt::Debug;

use crc::{CRC_32_ISCSI, Crc};
use tickmark_protocol::{AnyMark, Encoding, MarkFile, RECORD_LEN, Record, Slot};

/// `body` in a valid envelope. A fuzzer does not find a checksum by itself, and would never
/// come to the fields.
#[must_use]
pub fn seal(kind: u8, body: &[u8]) -> [u8; RECORD_LEN] {
    let mut bytes = [0; RECORD_LEN];
    bytes[..5].copy_from_slice(&[0xF5, b'T', b'M', 1, kind]);
    for (to, from) in bytes[5..RECORD_LEN - 4].iter_mut().zip(body) {
        *to = *from;
    }
    let sum = Crc::<u32>::new(&CRC_32_ISCSI).checksum(&bytes[..RECORD_LEN - 4]);
    bytes[RECORD_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Decodes `bytes` as they are and as the body of a sealed record. What is read from binary
/// must be read again from what it is written as.
///
/// # Panics
/// Where it is not.
pub fn decode<R: Record + PartialEq + Debug>(kind: u8, bytes: &[u8]) {
    for bytes in [bytes, &seal(kind, bytes)] {
        if let Ok(found) = R::decode(bytes)
            && found.encoding == Encoding::Binary
        {
            assert_eq!(R::decode(&found.record.encode()), Ok(found));
        }
    }
}

/// The same for a mark, whose slot must be its file's. The first two bytes choose the slot.
///
/// # Panics
/// Where a mark is not read again, or is another slot's.
pub fn decode_mark(bytes: &[u8]) {
    let [a, b, bytes @ ..] = bytes else { return };
    let slot = Slot::new(u32::from(u16::from_le_bytes([*a, *b])) % 4096).expect("below 4096");
    for bytes in [bytes, &seal(3, bytes)] {
        match MarkFile::decode(slot, bytes) {
            Ok(AnyMark::Binary(mark)) => {
                assert_eq!(mark.slot, slot.get());
                let again = MarkFile::decode(slot, &MarkFile::encode(&mark));
                assert_eq!(again, Ok(AnyMark::Binary(mark)));
            }
            Ok(AnyMark::Text(mark)) => assert_eq!(mark.slot, slot.get()),
            Err(_) => {}
        }
    }
}
