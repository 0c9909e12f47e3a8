//! Zero bytes, a flipped bit in every position, truncation at every length, a later format:
//! what a reader says of files that no writer finished.

mod directory;
mod examples;

use directory::{Directory, Judge};
use tickmark_protocol::{
    AnyMark, Attempt, Damage, DecodeError, Decoded, Expected, Generation, Mark, MarkFile,
    RECORD_LEN, Record, Slot, TopologyReport, TopologyUnsafe, encode_mark,
};

/// A decoder with its answer reduced to whether there was a record.
type Decode = fn(&[u8]) -> Result<(), DecodeError>;

fn decode<R: Record>(bytes: &[u8]) -> Result<(), DecodeError> {
    R::decode(bytes).map(|_| ())
}

fn decode_mark(bytes: &[u8]) -> Result<(), DecodeError> {
    MarkFile::decode(slot_1(), bytes).map(|_| ())
}

fn slot_1() -> Slot {
    Slot::new(1).expect("below 4096")
}

fn every_record() -> [(&'static str, [u8; RECORD_LEN], Decode); 11] {
    [
        ("expected", examples::expected().encode(), decode::<Expected>),
        ("generation", examples::generation().encode(), decode::<Generation>),
        ("largest generation", examples::largest_generation().encode(), decode::<Generation>),
        ("mark", MarkFile::encode(&examples::mark()), decode_mark),
        (
            "largest mark",
            MarkFile::encode(&Mark { slot: 1, ..examples::largest_mark() }),
            decode_mark,
        ),
        ("attempt", examples::attempt().encode(), decode::<Attempt>),
        ("largest attempt", examples::largest_attempt().encode(), decode::<Attempt>),
        ("topology-unsafe", examples::topology_unsafe().encode(), decode::<TopologyUnsafe>),
        ("largest topology-unsafe", examples::largest_unsafe().encode(), decode::<TopologyUnsafe>),
        ("topology-report", examples::topology_report().encode(), decode::<TopologyReport>),
        ("largest topology-report", examples::largest_report().encode(), decode::<TopologyReport>),
    ]
}

#[test]
fn the_largest_record_of_each_kind_fits() {
    // Encoding panics where one does not.
    for (name, bytes, decode) in every_record() {
        assert_eq!(decode(&bytes), Ok(()), "{name}");
    }
    let mark = examples::largest_mark();
    let slot = Slot::new(mark.slot).expect("4095 is the last");
    assert_eq!(MarkFile::decode(slot, &MarkFile::encode(&mark)), Ok(AnyMark::Binary(mark)));
    let report = examples::largest_unsafe();
    let Ok(Decoded { record, .. }) = TopologyUnsafe::decode(&report.encode()) else {
        panic!("does not decode")
    };
    assert_eq!(record, report);
}

#[test]
fn a_flipped_bit_in_every_position_is_damaged_or_newer() {
    for (name, bytes, decode) in every_record() {
        for bit in 0..RECORD_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let said = decode(&flipped);
            // topology-unsafe counts by being there; no reader needs its text.
            match (bit / 8, said) {
                (3, Err(DecodeError::Newer(version))) => assert_eq!(version, flipped[3]),
                (_, Err(DecodeError::Damaged(_))) => {}
                (at, other) => panic!("{name}: bit {bit} in byte {at} reads as {other:?}"),
            }
        }
    }
}

#[test]
fn a_truncated_record_is_damaged_at_every_length() {
    for (name, bytes, decode) in every_record() {
        for length in 0..RECORD_LEN {
            let said = decode(&bytes[..length]);
            if name.ends_with("topology-unsafe") && length == 0 {
                // No bytes are text without a detail.
                assert_eq!(said, Ok(()));
                continue;
            }
            assert!(matches!(said, Err(DecodeError::Damaged(_))), "{name}: {length}: {said:?}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(decode(&longer), Err(DecodeError::Damaged(Damage::Length)), "{name}");
    }
}

#[test]
fn a_damaged_mark_has_its_line_and_never_passes() {
    let judge = Judge::beside_the_worker();
    let bytes = MarkFile::encode(&Mark { slot: 0, ..examples::mark() });
    let says = |bytes: &[u8]| {
        let mut directory = Directory::healthy(1);
        directory.put("worker-0", bytes);
        let (line, exit) = judge.answer(&directory);
        assert_eq!(exit, 1, "{line}");
        line
    };
    for bit in 0..RECORD_LEN * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        let line = says(&flipped);
        let newer = format!("worker-0 written by a newer tickmark (format {})", flipped[3]);
        assert!(
            line == "worker-0 unreadable (damaged)" || (bit / 8 == 3 && line == newer),
            "{line}"
        );
    }
    for length in 0..RECORD_LEN {
        assert_eq!(says(&bytes[..length]), "worker-0 unreadable (damaged)");
    }
}

#[test]
fn a_damaged_header_never_passes() {
    let judge = Judge::beside_the_worker();
    let healthy = Directory::healthy(1);
    for (name, bytes) in [
        ("expected", Expected { processes: 1 }.encode()),
        ("generation", examples::generation().encode()),
    ] {
        for bit in 0..RECORD_LEN * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut directory = healthy.clone();
            directory.put(name, flipped);
            let (line, exit) = judge.answer(&directory);
            assert_eq!(exit, 1);
            assert!(line.starts_with(&format!("/run/marks/{name} ")), "{line}");
        }
        for length in 0..RECORD_LEN {
            let mut directory = healthy.clone();
            directory.put(name, &bytes[..length]);
            assert_eq!(
                judge.answer(&directory),
                (format!("/run/marks/{name} unreadable (damaged)"), 1)
            );
        }
    }
}

#[test]
fn a_later_format_is_named_whatever_follows_it() {
    for version in 2..=u8::MAX {
        for length in [5, 6, 511, 512, 513, 4096] {
            let mut bytes = vec![0xA5; length];
            bytes[..4].copy_from_slice(&[0xF5, b'T', b'M', version]);
            assert_eq!(decode_mark(&bytes), Err(DecodeError::Newer(version)));
        }
    }
    // There never was a format 0.
    let mut bytes = MarkFile::encode(&examples::mark());
    bytes[3] = 0;
    assert_eq!(decode_mark(&bytes), Err(DecodeError::Damaged(Damage::Magic)));
}

#[test]
fn a_record_under_another_files_name_is_damaged() {
    for (at, (name, bytes, _)) in every_record().into_iter().enumerate() {
        for (other, (other_name, _, decode)) in every_record().into_iter().enumerate() {
            let kind = |name: &str| name.trim_start_matches("largest ").to_owned();
            if at != other && kind(name) != kind(other_name) {
                let said = decode(&bytes);
                assert_eq!(said, Err(DecodeError::Damaged(Damage::Kind)), "{name} {other_name}");
            }
        }
    }
}

#[test]
fn a_phase_or_state_that_is_not_known_is_damaged() {
    // With a checksum that fits: a change that only a new format version may make.
    let seal = |kind: u8, body: &[u8]| {
        let mut bytes = [0; RECORD_LEN];
        bytes[..5].copy_from_slice(&[0xF5, b'T', b'M', 1, kind]);
        bytes[5..5 + body.len()].copy_from_slice(body);
        let sum = crc32c(&bytes[..508]);
        bytes[508..].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let body = |phase| [1, 7, 1, 0, 0, 10, phase];
    assert_eq!(decode_mark(&seal(3, &body(0))), Ok(()));
    assert_eq!(decode_mark(&seal(3, &body(1))), Ok(()));
    assert_eq!(decode_mark(&seal(3, &body(3))), Err(DecodeError::Damaged(Damage::Body)));
    assert_eq!(decode::<TopologyReport>(&seal(6, &[5])), Ok(()));
    assert_eq!(decode::<TopologyReport>(&seal(6, &[6])), Err(DecodeError::Damaged(Damage::Body)));
    // States of consumers are at most 192 bytes.
    let states = |length: u8| {
        [&[1, 7, 1, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, length, 1], &[b'~'; 200][..]].concat()
    };
    assert_eq!(decode_mark(&seal(3, &states(0xC0))), Ok(()));
    assert_eq!(decode_mark(&seal(3, &states(0xC1))), Err(DecodeError::Damaged(Damage::Body)));
    // An Option is 0 or 1.
    assert_eq!(decode::<Generation>(&seal(2, &[2])), Err(DecodeError::Damaged(Damage::Body)));
    // A launch token is 1 to 64 bytes of graphic ASCII.
    assert_eq!(decode::<Generation>(&seal(2, &[0, 1, 1, b'x'])), Ok(()));
    for token in [&[0][..], &[1, b' '], &[1, 0x7F], &[2, 0xC3, 0xA4], &[0xFF, 0x7F]] {
        let body = [&[0, 1], token].concat();
        assert_eq!(
            decode::<Generation>(&seal(2, &body)),
            Err(DecodeError::Damaged(Damage::Body)),
            "{token:?}"
        );
    }
    // A varint that is longer than its type, or larger.
    for varint in [&[0xFF, 0xFF, 0xFF, 0xFF, 0x10][..], &[0x80, 0x80, 0x80, 0x80, 0x80, 0]] {
        let damaged = Err(DecodeError::Damaged(Damage::Body));
        assert_eq!(decode::<Expected>(&seal(1, varint)), damaged, "{varint:?}");
    }
    // A string longer than its field, and one that is not UTF-8.
    assert_eq!(
        decode::<Generation>(&seal(2, &[0, 1, 65])),
        Err(DecodeError::Damaged(Damage::Body))
    );
    assert_eq!(
        decode::<TopologyUnsafe>(&seal(5, &[1, 0xFF])),
        Err(DecodeError::Damaged(Damage::Body))
    );
}

#[test]
fn fields_that_a_later_writer_adds_at_the_end_are_ignored() {
    let mut bytes = examples::expected().encode();
    bytes[6..20].fill(0x55);
    let sum = crc32c(&bytes[..508]);
    bytes[508..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Expected::decode(&bytes).map(|d| d.record), Ok(examples::expected()));
}

/// An implementation of its own, bit by bit, so that the crate's is checked too.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |s, _| (s >> 1) ^ (0x82F6_3B78 & (s & 1).wrapping_neg()))
    })
}

#[test]
fn the_checksum_is_castagnolis() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    for (name, bytes, _) in every_record() {
        assert_eq!(bytes[508..], crc32c(&bytes[..508]).to_le_bytes(), "{name}");
    }
}

// Text.

#[test]
fn a_truncated_text_mark_is_damaged_at_every_length() {
    let text = encode_mark(&examples::mark());
    assert_eq!(decode_mark(text.as_bytes()), Ok(()));
    for length in 0..text.len() {
        let said = decode_mark(&text.as_bytes()[..length]);
        assert_eq!(said, Err(DecodeError::Damaged(Damage::Text)), "{length}");
    }
}

#[test]
fn a_flipped_bit_in_a_text_mark_is_damaged_or_in_what_only_people_read() {
    let text = encode_mark(&examples::mark());
    let AnyMark::Text(whole) = MarkFile::decode(slot_1(), text.as_bytes()).expect("text") else {
        panic!("not text")
    };
    for bit in 0..text.len() * 8 {
        let mut flipped = text.as_bytes().to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match MarkFile::decode(slot_1(), &flipped) {
            Err(DecodeError::Damaged(_)) => {}
            Ok(AnyMark::Text(mark)) => {
                assert_eq!(mark.slot, whole.slot);
                // Text has no checksum: what it cannot detect must be harmless.
                let harmless = (mark.wall_s(), mark.pid) != (whole.wall_s(), whole.pid);
                assert!(harmless != (mark.generation != whole.generation), "bit {bit}: {mark:?}");
            }
            other => panic!("bit {bit} reads as {other:?}"),
        }
    }
}

#[test]
fn a_flipped_or_truncated_text_generation_is_never_this_one() {
    let judge = Judge::beside_the_worker();
    let text = b"mnt:[4026532616]:12345";
    let says = |bytes: &[u8]| {
        let mut directory = Directory::healthy_text(1);
        directory.put("generation", bytes);
        judge.answer(&directory)
    };
    assert_eq!(says(text).1, 0);
    for bit in 0..text.len() * 8 {
        let mut flipped = *text;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(says(&flipped).1, 1, "bit {bit}");
    }
    for length in 0..text.len() {
        assert_eq!(says(&text[..length]).1, 1, "{length}");
    }
}
