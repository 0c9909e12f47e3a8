//! The text encoding: the bytes that are written, and what a reader takes.

mod examples;

use tickmark_protocol::{
    AnyMark, Attempt, Damage, DecodeError, Encoding, Expected, Generation, Mark, MarkFile, Record,
    Slot, TEXT_MAX, TopologyReport, TopologyUnsafe, UNSUPPORTED_TOPOLOGY, encode_expected,
    encode_generation, encode_mark, encode_unsafe,
};

fn slot(number: u32) -> Slot {
    Slot::new(number).expect("below 4096")
}

#[test]
fn what_is_written() {
    assert_eq!(encode_expected(&examples::expected()), "2");
    assert_eq!(
        encode_generation(&examples::generation()).as_deref(),
        Some("mnt:[4026532616]:12345")
    );
    assert_eq!(
        encode_mark(&examples::mark()),
        "2026-11-29T18:00:00Z pid=7 slot=1 generation=mnt:[4026532616]:12345\n"
    );
    assert_eq!(
        encode_unsafe(&examples::topology_unsafe()),
        "unsupported PID topology: pod must not set shareProcessNamespace or hostPID\n\
         PID 1 is in mnt:[4026531841], this process in mnt:[4026532616]\n"
    );
    let without = TopologyUnsafe { detail: heapless::String::new() };
    assert_eq!(encode_unsafe(&without), &*format!("{UNSUPPORTED_TOPOLOGY}\n"));
}

#[test]
fn a_generation_without_the_pair_is_not_written() {
    for generation in [
        Generation { pid1_start_time: Some(0), ..examples::generation() },
        Generation { pid1_start_time: None, ..examples::generation() },
        Generation { mount_namespace_inode: None, ..examples::generation() },
    ] {
        assert_eq!(encode_generation(&generation), None);
        let mark = Mark { generation: Some(generation), ..examples::mark() };
        assert_eq!(encode_mark(&mark), "2026-11-29T18:00:00Z pid=7 slot=1\n");
    }
    let mark = Mark { generation: None, ..examples::mark() };
    assert_eq!(encode_mark(&mark), "2026-11-29T18:00:00Z pid=7 slot=1\n");
}

#[test]
fn what_is_written_is_read() {
    let expected = Expected::decode(encode_expected(&examples::expected()).as_bytes());
    let expected = expected.expect("text");
    assert_eq!((expected.record, expected.encoding), (examples::expected(), Encoding::Text));

    let text = encode_generation(&examples::generation()).expect("a pair");
    let generation = Generation::decode(text.as_bytes()).expect("text").record;
    assert_eq!(generation.formula(), examples::generation().formula());
    assert!(!generation.has_unique_id() && generation.boot_id.is_none());

    let text = encode_mark(&examples::mark());
    let Ok(AnyMark::Text(mark)) = MarkFile::decode(slot(1), text.as_bytes()) else {
        panic!("not a text mark")
    };
    assert_eq!((mark.wall_s(), mark.pid, mark.slot), (examples::WALL_MS / 1000, 7, 1));
    assert_eq!(mark.generation, Some(generation));

    let text = encode_unsafe(&examples::topology_unsafe());
    let unsafe_topology = TopologyUnsafe::decode(text.as_bytes()).expect("text");
    assert_eq!(unsafe_topology.record, examples::topology_unsafe());
}

#[test]
fn the_longest_of_each_has_room() {
    let mark = encode_mark(&examples::largest_mark());
    assert!(mark.ends_with(":18446744073709551615\n") && mark.len() < TEXT_MAX);
    let text = encode_unsafe(&examples::largest_unsafe());
    let read = TopologyUnsafe::decode(text.as_bytes()).expect("text").record;
    assert_eq!(read, examples::largest_unsafe());
}

#[test]
fn dates() {
    for (unix_s, date) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_709_164_800, "2024-02-29T00:00:00Z"),
        (1_735_689_599, "2024-12-31T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (4_107_542_399, "2100-02-28T23:59:59Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
    ] {
        let mark = Mark { wall_ms: unix_s * 1000 + 999, generation: None, ..examples::mark() };
        let text = encode_mark(&mark);
        assert_eq!(text, &*format!("{date} pid=7 slot=1\n"));
        let Ok(AnyMark::Text(mark)) = MarkFile::decode(slot(1), text.as_bytes()) else {
            panic!("{date} does not parse")
        };
        assert_eq!(mark.wall_s(), unix_s);
    }
}

#[test]
fn a_text_mark_that_nobody_writes() {
    let time = "2026-11-29T18:00:00Z";
    for text in [
        String::new(),
        "\n".into(),
        format!("{time} pid=7 slot=1"),
        format!("{time} pid=7 slot=1\n\n"),
        format!("{time} pid=7 slot=1\r\n"),
        format!(" {time} pid=7 slot=1\n"),
        format!("{time}  pid=7 slot=1\n"),
        format!("{time} pid=7 slot=1 \n"),
        format!("{time} slot=1 pid=7\n"),
        format!("{time} pid= slot=1\n"),
        format!("{time} pid=7 slot=\n"),
        format!("{time} pid=-7 slot=1\n"),
        format!("{time} pid=4294967296 slot=1\n"),
        format!("{time} pid=7 slot=4294967297\n"),
        format!("{time} pid=7 slot=1 generation=\n"),
        format!("{time} pid=7 slot=1 generation=mnt:[1]\n"),
        format!("{time} pid=7 slot=1 generation=mnt:[1]:\n"),
        format!("{time} pid=7 slot=1 generation=mnt:[1]:1 more\n"),
        format!("{time} pid=7 slot=1 x=mnt:[1]:1\n"),
        "2026-11-29 18:00:00Z pid=7 slot=1\n".into(),
        "2026-11-29T18:00:00 pid=7 slot=1\n".into(),
        "2026-13-29T18:00:00Z pid=7 slot=1\n".into(),
        "2026-00-29T18:00:00Z pid=7 slot=1\n".into(),
        "2026-11-00T18:00:00Z pid=7 slot=1\n".into(),
        "2026-11-29T24:00:00Z pid=7 slot=1\n".into(),
        "2026-11-29T18:60:00Z pid=7 slot=1\n".into(),
        "1969-12-31T23:59:59Z pid=7 slot=1\n".into(),
        "+026-11-29T18:00:00Z pid=7 slot=1\n".into(),
    ] {
        let said = MarkFile::decode(slot(1), text.as_bytes());
        assert_eq!(said, Err(DecodeError::Damaged(Damage::Text)), "{text:?}");
    }
    let said = MarkFile::decode(slot(1), b"2026-11-29T18:00:00Z pid=7 slot=1\xff\n");
    assert_eq!(said, Err(DecodeError::Damaged(Damage::Text)));
}

#[test]
fn an_expected_as_people_write_it() {
    for (text, processes) in [("2", 2), ("2\n", 2), (" +2\t", 2), ("002", 2), ("-2", 0)] {
        let read = Expected::decode(text.as_bytes()).map(|found| found.record.processes);
        assert_eq!(read, Ok(processes), "{text:?}");
    }
}

#[test]
fn an_unsafe_topology_in_any_text() {
    let detail = |bytes: &[u8]| {
        TopologyUnsafe::decode(bytes).map(|found| found.record.detail.as_str().to_owned())
    };
    assert_eq!(detail(b""), Ok(String::new()));
    assert_eq!(detail(b"one line"), Ok(String::new()));
    assert_eq!(detail(b"one\ntwo\nthree\n"), Ok("two".to_owned()));
    assert_eq!(detail(b"\xff"), Err(DecodeError::Damaged(Damage::Text)));
    let long = format!("x\n{}\n", "y".repeat(257));
    assert_eq!(detail(long.as_bytes()), Err(DecodeError::Damaged(Damage::Text)));
}

#[test]
fn two_files_have_no_text_form() {
    for text in ["", "305", "unverifiable\n"] {
        let damaged = DecodeError::Damaged(Damage::Text);
        assert_eq!(Attempt::decode(text.as_bytes()).map(|_| ()), Err(damaged));
        assert_eq!(TopologyReport::decode(text.as_bytes()).map(|_| ()), Err(damaged));
    }
}
