//! What is read before any mark: the directory, `topology-unsafe`, `expected`, `generation`.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tickmark::protocol::{Expected, Generation, Record as _};

use crate::answer::{Answer, NEWER, ONE_HEALTHY, PREVIOUS, UNSUPPORTED, answers, not_started};
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("header::healthy", Need::Nothing, healthy),
    case("header::not_started", Need::Nothing, not_started_yet),
    case("header::directory_that_cannot_be_read", Need::Nothing, unreadable_directory),
    case("header::expected_out_of_range", Need::Nothing, expected_out_of_range),
    case("header::expected_damaged", Need::Nothing, expected_damaged),
    case("header::expected_longer_than_a_reader_looks", Need::Nothing, expected_too_long),
    case("header::expected_unreadable", Need::Nothing, expected_unreadable),
    case("header::generation", Need::Generation, generation),
    case("header::topology_unsafe", Need::Nothing, topology_unsafe),
];

fn healthy(site: &Site) {
    for slots in [1, 4, 4096] {
        let marks = Marks::healthy(site, slots);
        answers(site, &marks, 0, format_args!("{slots} process(es) healthy"));
    }
    // Slots beyond the declared count are nobody's business.
    let marks = Marks::healthy(site, 1);
    marks.write("worker-1", "rubbish");
    marks.write("worker-4096", "rubbish");
    answers(site, &marks, 0, ONE_HEALTHY);
}

fn not_started_yet(site: &Site) {
    let missing = Marks::absent(site, "missing".as_ref());
    answers(site, &missing, 1, not_started(missing.shown()));
    let empty = Marks::empty(site);
    answers(site, &empty, 1, not_started(empty.shown()));
    // As it was given, not tidied.
    let mut command = site.bare_probe();
    command.current_dir("/").args(["--dir", "no//such/"]);
    Answer::of(&mut command).is(1, not_started("no//such/"));
}

fn unreadable_directory(site: &Site) {
    let file = Marks::absent(site, "file".as_ref());
    fs::write(file.path(), "no directory").expect("a file");
    answers(site, &file, 1, format_args!("{}/expected unreadable (ENOTDIR)", file.shown()));

    let closed = Marks::healthy(site, 1);
    closed.set_mode("", 0o000);
    Answer::of(&mut site.unprivileged_probe(&closed))
        .is(1, format_args!("{}/expected unreadable (EACCES)", closed.shown()));
    // To read files by their names takes no right to list them.
    closed.set_mode("", 0o711);
    Answer::of(&mut site.unprivileged_probe(&closed)).is(0, ONE_HEALTHY);
    closed.set_mode("", 0o755);

    let mut command = site.bare_probe();
    let long = format!("/{}", "x".repeat(256));
    command.args(["--dir", &long]);
    Answer::of(&mut command).is(1, format_args!("{long}/expected unreadable (ENAMETOOLONG)"));
}

fn expected_out_of_range(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let binary = |processes| Expected { processes }.encode().to_vec();
    for zero in [b"0".to_vec(), b"-1".to_vec(), b"-0".to_vec(), binary(0)] {
        marks.write("expected", zero);
        answers(site, &marks, 1, not_started(marks.shown()));
    }
    for (content, count) in [
        (b"1000000000".to_vec(), 1_000_000_000),
        (binary(1_000_000_000), 1_000_000_000),
        (b"4097".to_vec(), 4097),
        (binary(4097), 4097),
        (b"99999999999999999999999".to_vec(), u32::MAX),
        (binary(u32::MAX), u32::MAX),
    ] {
        marks.write("expected", content);
        let line = format!("{}/expected declares {count} slots, more than 4096", marks.shown());
        answers(site, &marks, 1, line);
    }
}

fn expected_damaged(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let whole = marks.read("expected");
    let rubbish: Vec<u8> = (0..512_u32).map(|at| (at.wrapping_mul(167) >> 3) as u8).collect();
    let mut flipped = whole.clone();
    flipped[5] ^= 2;
    let other_kind = marks.read("worker-0");
    for damaged in [
        b"".as_slice(),
        b"\n",
        b"1e9",
        b"0x1",
        b"1_0",
        b"1.0",
        b"--1",
        b"+",
        b"one",
        b"1\0",
        b"\xf5",
        b"\xf5TM\x01",
        b"\xf5TM\x00\x01",
        &whole[..511],
        &[&whole[..], b"\0"].concat(),
        &flipped,
        &other_kind,
        &rubbish,
        &[&b"\xf5"[..], &rubbish[1..]].concat(),
    ] {
        marks.write("expected", damaged);
        answers(site, &marks, 1, format_args!("{}/expected unreadable (damaged)", marks.shown()));
    }
    // A later format may have another length.
    for newer in [&[&b"\xf5TM\x02\x01"[..], &whole[5..]].concat()[..], b"\xf5TM\x02\x09"] {
        marks.write("expected", newer);
        answers(site, &marks, 1, format_args!("{}/expected {NEWER}", marks.shown()));
    }
}

/// The number of slots may stand where the reader does not look any more.
fn expected_too_long(site: &Site) {
    let marks = Marks::healthy(site, 1);
    marks.write("expected", format!("{:>4095}", 1));
    answers(site, &marks, 0, ONE_HEALTHY);
    for long in [format!("{:>4096}", 1), format!("{:>4096}{}", 1, 5), format!("{:<4097}", 1)] {
        marks.write("expected", long);
        answers(site, &marks, 1, format_args!("{}/expected unreadable (damaged)", marks.shown()));
    }
}

fn expected_unreadable(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let unreadable = |why: &str| format!("{}/expected unreadable ({why})", marks.shown());
    marks.set_mode("expected", 0o000);
    Answer::of(&mut site.unprivileged_probe(&marks)).is(1, unreadable("EACCES"));
    fs::rename(marks.file("expected"), marks.file("elsewhere")).expect("another name");
    symlink("elsewhere", marks.file("expected")).expect("a link");
    answers(site, &marks, 1, unreadable("ELOOP"));
    marks.remove("expected");
    fs::create_dir(marks.file("expected")).expect("a directory");
    answers(site, &marks, 1, unreadable("not a regular file"));
    fs::remove_dir(marks.file("expected")).expect("to remove it");
    mknodat(CWD, marks.file("expected"), FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
    answers(site, &marks, 1, unreadable("not a regular file"));
}

fn generation(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let whole = marks.read("generation");
    marks.remove("generation");
    answers(site, &marks, 1, PREVIOUS);

    let own = site.generation.clone().expect("what the case needs");
    for other in [another(&own), Generation { boot_id: own.boot_id, ..Generation::default() }] {
        marks.write("generation", other.encode());
        answers(site, &marks, 1, PREVIOUS);
    }
    if let Some(boot_id) = own.boot_id {
        let rebooted = Generation { boot_id: Some(boot_id.map(|byte| !byte)), ..own.clone() };
        marks.write("generation", rebooted.encode());
        answers(site, &marks, 1, PREVIOUS);
    }

    let mut flipped = whole.clone();
    flipped[40] ^= 1;
    for damaged in [&b""[..], &whole[..100], &flipped, b"mnt:[1]", b"mnt:[x]:1"] {
        marks.write("generation", damaged);
        answers(site, &marks, 1, format_args!("{}/generation unreadable (damaged)", marks.shown()));
    }
    marks.write("generation", b"\xf5TM\x02\x02");
    answers(site, &marks, 1, format_args!("{}/generation {NEWER}", marks.shown()));

    // Of the right incarnation the directory, of another one the mark.
    marks.write("generation", whole);
    for generation in [Some(another(&own)), None] {
        marks.put(&tickmark::protocol::Mark { generation, ..marks.mark(0) });
        answers(site, &marks, 1, "worker-0 belongs to a previous container");
    }
}

/// The same boot, and all else different.
fn another(own: &Generation) -> Generation {
    let other = |id: Option<u64>| id.map(|id| id ^ 1);
    Generation {
        mount_namespace_id: other(own.mount_namespace_id),
        root_mount_id: other(own.root_mount_id),
        cgroup_id: other(own.cgroup_id),
        mount_namespace_inode: other(own.mount_namespace_inode),
        pid1_start_time: other(own.pid1_start_time),
        ..own.clone()
    }
}

fn topology_unsafe(site: &Site) {
    let name = "topology-unsafe";
    let healthy = Marks::healthy(site, 1);
    let empty = Marks::empty(site);
    for marks in [&healthy, &empty] {
        marks.write(name, "");
        answers(site, marks, 1, UNSUPPORTED);
        marks.write(name, b"\xf5rubbish");
        answers(site, marks, 1, UNSUPPORTED);
        marks.set_mode(name, 0o000);
        Answer::of(&mut site.unprivileged_probe(marks)).is(1, UNSUPPORTED);
        marks.remove(name);
        fs::create_dir(marks.file(name)).expect("a directory");
        answers(site, marks, 1, UNSUPPORTED);
        fs::remove_dir(marks.file(name)).expect("to remove it");
        symlink("nowhere", marks.file(name)).expect("a dangling link");
        answers(site, marks, 1, UNSUPPORTED);
        marks.remove(name);
        mknodat(CWD, marks.file(name), FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
        answers(site, marks, 1, UNSUPPORTED);
        marks.remove(name);
    }
    answers(site, &healthy, 0, ONE_HEALTHY);
}
