//! The binary encoding: 512 bytes of magic, version, kind, postcard, zeroes and CRC-32C.
//! Nothing here knows what a record means.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Damage, DecodeError};

/// The length of every binary record, in bytes.
pub const RECORD_LEN: usize = 512;
/// The version this crate writes, and the highest it reads.
pub const FORMAT_VERSION: u8 = 1;

const MAGIC: [u8; 3] = [0xF5, b'T', b'M'];
const BODY: usize = 5;
const CHECKSUM: usize = RECORD_LEN - 4;

/// CRC-32C of each half byte. A table for whole bytes is 1 KiB, which the probe has not got, and
/// without a table the checksum is most of the probe's instructions.
const CASTAGNOLI: [u32; 16] = {
    let mut table = [0; 16];
    let mut nibble = 0;
    while nibble < table.len() {
        let mut sum = nibble as u32;
        let mut bit = 0;
        while bit < 4 {
            // 0x1EDC6F41, lowest bit first.
            sum = (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg());
            bit += 1;
        }
        table[nibble] = sum;
        nibble += 1;
    }
    table
};

/// CRC-32C (`CRC-32/ISCSI`), half a byte at a time.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for &byte in bytes {
        sum ^= u32::from(byte);
        sum = (sum >> 4) ^ CASTAGNOLI[(sum & 15) as usize];
        sum = (sum >> 4) ^ CASTAGNOLI[(sum & 15) as usize];
    }
    !sum
}

/// Whether a file that starts so is binary. `F5` starts neither UTF-8 nor text.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    bytes.first() == Some(&MAGIC[0])
}

/// Lays `record` out.
///
/// # Panics
/// Never for the records of this crate: a test shows that the largest of each kind fits.
pub(crate) fn seal<T: Serialize>(kind: u8, record: &T) -> [u8; RECORD_LEN] {
    let mut bytes = [0; RECORD_LEN];
    bytes[..3].copy_from_slice(&MAGIC);
    bytes[3] = FORMAT_VERSION;
    bytes[4] = kind;
    let fits = postcard::to_slice(record, &mut bytes[BODY..CHECKSUM]).is_ok();
    assert!(fits, "record larger than its envelope");
    let sum = checksum(&bytes[..CHECKSUM]);
    bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Reads a record from its body by the derived reader.
pub(crate) fn record<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(body) {
        Ok((record, _)) => Ok(record),
        Err(_) => Err(DecodeError::Damaged(Damage::Body)),
    }
}

/// The body of a record of this kind: what is the same for every record, once. Absent tail
/// fields read as the zeroes that pad it.
#[inline(never)]
pub(crate) fn body(kind: u8, bytes: &[u8]) -> Result<&[u8], DecodeError> {
    use DecodeError::Damaged;

    if bytes.len() < BODY {
        return Err(Damaged(Damage::Length));
    }
    if bytes[..3] != MAGIC || bytes[3] == 0 {
        return Err(Damaged(Damage::Magic));
    }
    // Before the length and the checksum: a later format may have moved both.
    if bytes[3] > FORMAT_VERSION {
        return Err(DecodeError::Newer(bytes[3]));
    }
    let bytes: &[u8; RECORD_LEN] = bytes.try_into().map_err(|_| Damaged(Damage::Length))?;
    let (covered, sum) = bytes.split_at(CHECKSUM);
    if checksum(covered).to_le_bytes() != sum {
        return Err(Damaged(Damage::Checksum));
    }
    if bytes[4] != kind {
        return Err(Damaged(Damage::Kind));
    }
    Ok(&covered[BODY..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::checksum;

    #[test]
    fn the_check_value_is_the_published_one() {
        assert_eq!(checksum(b"123456789"), 0xE306_9283);
    }

    proptest! {
        #[test]
        fn another_implementation_agrees(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let other = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
            assert_eq!(checksum(&bytes), other.checksum(&bytes));
        }
    }
}
