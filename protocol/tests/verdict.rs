//! Every row of the verdict with its exact line, the order of the rows, and what decides
//! freshness.

mod directory;
mod examples;

use directory::{Directory, Judge, SECOND, wall_ns};
use tickmark_protocol::{
    Damage, DecodeError, Detail, Errno, Expected, Fault, Generation, LaunchToken, Mark, MarkFile,
    Now, Pid1, Read, Record, SlotObservation, UNSUPPORTED_TOPOLOGY, Verdict, encode_mark,
    needs_time_namespace, needs_wall_clock,
};

const NOT_STARTED: &str = "no /run/marks/expected: worker has not started yet \
                           (is tickmark started before the consumers?)";
const PREVIOUS: &str = "heartbeat belongs to a previous container: worker has not started yet";

fn other_container() -> Generation {
    Generation { mount_namespace_id: Some(4305), ..examples::generation() }
}

fn elsewhere(judge: &Judge) -> Judge {
    let mut judge = judge.clone();
    judge.own.pid1 = Pid1::Elsewhere(Detail::None);
    judge.own.generation.pid1_start_time = None;
    judge
}

fn of_formula(inode: u64, start: u64) -> Generation {
    Generation {
        mount_namespace_inode: Some(inode),
        pid1_start_time: Some(start),
        ..Generation::default()
    }
}

#[test]
fn healthy() {
    let judge = Judge::beside_the_worker();
    judge.says(&Directory::healthy(1), "1 process(es) healthy");
    judge.says(&Directory::healthy(2), "2 process(es) healthy");
    judge.says(&Directory::healthy(4096), "4096 process(es) healthy");
}

// Row 1.

#[test]
fn published_unsafe_topology_whether_it_can_be_read_or_not() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);
    directory.put("topology-unsafe", examples::topology_unsafe().encode());
    judge.says(&directory, UNSUPPORTED_TOPOLOGY);
    directory.put("topology-unsafe", "");
    judge.says(&directory, UNSUPPORTED_TOPOLOGY);
    directory.deny("topology-unsafe");
    judge.says(&directory, UNSUPPORTED_TOPOLOGY);
}

#[test]
fn unsafe_topology_that_this_process_proved() {
    let judge = elsewhere(&Judge::beside_the_worker());
    // Unique ids on both sides: nothing rests on PID 1.
    judge.says(&Directory::healthy(2), "2 process(es) healthy");

    let mut strict = judge.clone();
    strict.own.strict = true;
    strict.says(&Directory::healthy(2), UNSUPPORTED_TOPOLOGY);
    strict.says(&Directory::default(), UNSUPPORTED_TOPOLOGY);

    let mut text = judge.clone();
    text.own.text = true;
    text.says(&Directory::healthy(2), UNSUPPORTED_TOPOLOGY);

    let mut nothing_unique = judge.clone();
    nothing_unique.own.generation.mount_namespace_id = None;
    nothing_unique.own.generation.root_mount_id = None;
    nothing_unique.says(&Directory::healthy(2), UNSUPPORTED_TOPOLOGY);

    // The record carries none that this process holds.
    let mut directory = Directory::healthy(2);
    directory.put("generation", of_formula(4_026_532_616, 12_345).encode());
    judge.says(&directory, UNSUPPORTED_TOPOLOGY);
}

#[test]
fn text_rests_on_pid_1_file_by_file() {
    let judge = elsewhere(&Judge::beside_the_worker());
    let text = Directory::healthy_text(2);
    judge.says(&text, UNSUPPORTED_TOPOLOGY);
    for name in ["expected", "generation", "worker-1"] {
        let mut directory = Directory::healthy(2);
        directory.files.insert(name.into(), text.files[name].clone());
        judge.says(&directory, UNSUPPORTED_TOPOLOGY);
    }
}

#[test]
fn the_formula_shows_nothing_where_pid_1_is_elsewhere() {
    // A caller that left the start time in must not be believed.
    let mut judge = elsewhere(&Judge::beside_the_worker());
    judge.own.generation.pid1_start_time = Some(12_345);
    let mut directory = Directory::healthy(1);
    directory.put_mark(&Mark {
        slot: 0,
        generation: Some(of_formula(4_026_532_616, 12_345)),
        ..examples::mark()
    });
    judge.says(&directory, "worker-0 belongs to a previous container");
}

// Row 2.

#[test]
fn expected_is_missing_or_not_positive() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);
    directory.remove("expected");
    judge.says(&directory, NOT_STARTED);
    judge.says(&Directory::default(), NOT_STARTED);
    directory.put("expected", Expected { processes: 0 }.encode());
    judge.says(&directory, NOT_STARTED);
    for text in ["0", "-1", "-0", "+0", " -1000000000000000000000\n", "00"] {
        directory.put("expected", text);
        judge.says(&directory, NOT_STARTED);
    }
}

#[test]
fn expected_is_there_and_says_nothing() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);
    for rubbish in [
        &b""[..],
        b" \n",
        b"1e9",
        b"2 2",
        b"two",
        b"-",
        b"+",
        b"+-2",
        b"0x2",
        b"1_0",
        b"2\0",
        b"\xff\xfe\x00\x01",
        b"\xF5TM",
        b"\xF5TM\x01\x01",
        b"\xF5\x00",
        b"\x7fELF\x02\x01\x01",
    ] {
        directory.put("expected", rubbish);
        judge.says(&directory, "/run/marks/expected unreadable (damaged)");
    }
    let mut newer = Expected { processes: 2 }.encode();
    newer[3] = 2;
    directory.put("expected", newer);
    judge.says(&directory, "/run/marks/expected written by a newer tickmark (format 2)");
    directory.deny("expected");
    judge.says(&directory, "/run/marks/expected unreadable (EACCES)");
    directory.fail("expected", Fault::Errno(Errno(40)));
    judge.says(&directory, "/run/marks/expected unreadable (ELOOP)");
    directory.fail("expected", Fault::Errno(Errno(133)));
    judge.says(&directory, "/run/marks/expected unreadable (errno 133)");
    directory.fail("expected", Fault::NotRegular);
    judge.says(&directory, "/run/marks/expected unreadable (not a regular file)");
}

#[test]
fn expected_is_more_than_there_can_be() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(4096);
    directory.put("expected", "4096");
    judge.says(&directory, "4096 process(es) healthy");
    for (text, shown) in [
        ("4097", "4097"),
        ("1000000000", "1000000000"),
        ("4294967295", "4294967295"),
        // Larger than the field: still a problem of its own, whatever it is called.
        ("4294967296", "4294967295"),
        ("99999999999999999999999999", "4294967295"),
    ] {
        directory.put("expected", text);
        let line = format!("/run/marks/expected declares {shown} slots, more than 4096");
        judge.says(&directory, &line);
    }
    directory.put("expected", Expected { processes: 4097 }.encode());
    judge.says(&directory, "/run/marks/expected declares 4097 slots, more than 4096");
}

#[test]
fn the_directory_is_shown_on_one_line() {
    let verdict = Judge::beside_the_worker().verdict(&Directory::default());
    let line = |dir: &[u8]| verdict.line(dir).to_string();
    assert!(line(b"/a b").starts_with("no /a b/expected: "));
    assert!(line(b"/a\nb\x1b[2J\xff/").starts_with("no /a?b?[2J?//expected: "));
    // What is not ASCII has no place in the probe: a `?` for each byte.
    assert!(line("/k\u{e4}se".as_bytes()).starts_with("no /k??se/expected: "));
    assert!(line("/\u{85}".as_bytes()).starts_with("no /??/expected: "));
}

// Row 3.

#[test]
fn generation_is_missing_incomparable_or_another() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);
    directory.remove("generation");
    judge.says(&directory, PREVIOUS);
    directory.put("generation", Generation::default().encode());
    judge.says(&directory, PREVIOUS);
    directory.put("generation", other_container().encode());
    judge.says(&directory, PREVIOUS);
    directory.put("generation", "mnt:[4026532616]:12346");
    judge.says(&directory, PREVIOUS);
    directory.put("generation", "mnt:[4026532616]:0");
    judge.says(&directory, PREVIOUS);
    directory.put("generation", "mnt:[4026532616]:12345");
    judge.says(&directory, "2 process(es) healthy");
}

#[test]
fn generation_is_there_and_says_nothing() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);
    for rubbish in [&b""[..], b"mnt:[1]", b"mnt:[]:1", b"mnt:[1]:", b"pid:[1]:1", b"mnt:[1]:1\n\n"]
    {
        directory.put("generation", rubbish);
        judge.says(&directory, "/run/marks/generation unreadable (damaged)");
    }
    let mut newer = examples::generation().encode();
    newer[3] = 9;
    directory.put("generation", newer);
    judge.says(&directory, "/run/marks/generation written by a newer tickmark (format 9)");
    directory.deny("generation");
    judge.says(&directory, "/run/marks/generation unreadable (EACCES)");
}

#[test]
fn a_process_without_a_generation_judges_by_freshness_alone() {
    let judge = Judge::nobody();
    let mut directory = Directory::healthy(2);
    directory.put("generation", other_container().encode());
    judge.says(&directory, "2 process(es) healthy");
    directory.deny("generation");
    judge.says(&directory, "2 process(es) healthy");
    directory.remove("generation");
    judge.says(&directory, "2 process(es) healthy");
    judge.after(46 * SECOND).says(&directory, "worker-0 stale 46s > 45s; worker-1 stale 46s > 45s");
}

#[test]
fn a_boot_id_alone_is_no_generation() {
    let mut judge = Judge::nobody();
    judge.own.generation.boot_id = Some([1; 16]);
    judge.says(&Directory::healthy(2), "2 process(es) healthy");
}

#[test]
fn a_launched_process_reads_only_records_of_its_launch() {
    let mut judge = Judge::beside_the_worker();
    judge.own.generation.launch = LaunchToken::new(b"7f3a");
    judge.says(&Directory::healthy(1), PREVIOUS);
    let mut directory = Directory::healthy(1);
    directory.put("generation", judge.own.generation.encode());
    judge.says(&directory, "worker-0 belongs to a previous container");
    directory.put_mark(&Mark {
        slot: 0,
        generation: Some(judge.own.generation.clone()),
        ..examples::mark()
    });
    judge.says(&directory, "1 process(es) healthy");
}

// Row 4.

#[test]
fn each_problem_of_a_slot() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);

    directory.remove("worker-1");
    judge.says(&directory, "worker-1 missing");

    directory.deny("worker-1");
    judge.says(&directory, "worker-1 unreadable (EACCES)");
    directory.fail("worker-1", Fault::NotRegular);
    judge.says(&directory, "worker-1 unreadable (not a regular file)");
    directory.put("worker-1", "");
    judge.says(&directory, "worker-1 unreadable (damaged)");
    directory.fail("worker-1", Fault::Decode(DecodeError::Damaged(Damage::Length)));
    judge.says(&directory, "worker-1 unreadable (damaged)");

    let mut newer = MarkFile::encode(&examples::mark());
    newer[3] = 2;
    directory.put("worker-1", newer);
    judge.says(&directory, "worker-1 written by a newer tickmark (format 2)");

    for generation in [Some(other_container()), Some(Generation::default()), None] {
        directory.put_mark(&Mark { generation, ..examples::mark() });
        judge.says(&directory, "worker-1 belongs to a previous container");
    }

    let monotonic_ns = examples::MONOTONIC_NS + 1;
    directory.put_mark(&Mark { monotonic_ns, ..examples::mark() });
    judge.says(&directory, "worker-1 from the future");

    let monotonic_ns = examples::MONOTONIC_NS - 120 * SECOND;
    directory.put_mark(&Mark { monotonic_ns, ..examples::mark() });
    judge.says(&directory, "worker-1 stale 120s > 45s");
}

#[test]
fn a_mark_under_another_slots_name_is_damaged() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(2);
    directory.put("worker-0", MarkFile::encode(&examples::mark()));
    judge.says(&directory, "worker-0 unreadable (damaged)");
    directory.put("worker-0", encode_mark(&examples::mark()).as_bytes());
    judge.says(&directory, "worker-0 unreadable (damaged)");
}

#[test]
fn problems_are_joined_and_slots_beyond_the_count_ignored() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(4);
    directory.put("expected", "3");
    directory.remove("worker-0");
    directory.put("worker-2", "?");
    directory.remove("worker-3");
    judge.says(&directory, "worker-0 missing; worker-2 unreadable (damaged)");
    directory.put("expected", "4");
    judge.says(&directory, "worker-0 missing; worker-2 unreadable (damaged); worker-3 missing");
}

#[test]
fn sixteen_problems_are_named_and_the_others_counted() {
    let judge = Judge::beside_the_worker();
    let named = |count: u32| {
        (0..count).map(|n| format!("worker-{n} missing")).collect::<Vec<_>>().join("; ")
    };
    for (slots, more) in [(15, 0), (16, 0), (17, 1), (4096, 4080)] {
        let mut directory = Directory::healthy(0);
        directory.put("expected", format!("{slots}"));
        let mut line = named(slots.min(16));
        if more > 0 {
            line += &format!("; … and {more} more");
        }
        judge.says(&directory, &line);
    }
}

#[test]
fn a_slot_that_was_never_observed_is_missing() {
    let judge = Judge::beside_the_worker();
    let directory = Directory::healthy(2);
    let fold = tickmark_protocol::Fold::header(
        &judge.own,
        false,
        &directory.read("expected", Record::decode),
        &directory.read("generation", Record::decode),
        judge.max_age,
    );
    let line = fold.finish().line(b"/").to_string();
    assert_eq!(line, "worker-0 missing; worker-1 missing");
}

#[test]
fn what_is_observed_beyond_the_count_changes_nothing() {
    let judge = Judge::beside_the_worker();
    let directory = Directory::healthy(1);
    let mut fold = tickmark_protocol::Fold::header(
        &judge.own,
        false,
        &directory.read("expected", Record::decode),
        &directory.read("generation", Record::decode),
        judge.max_age,
    );
    let slot = fold.declared().expect("the header is healthy").slots().next().expect("one");
    let observe = |mark| SlotObservation {
        mark,
        mtime_ns: wall_ns(),
        now: judge.now,
        time_namespace: judge.time_namespace,
    };
    let mark = directory.read("worker-0", |bytes| MarkFile::decode(slot, bytes));
    assert_eq!(fold.slot(&judge.own, &observe(mark)), None);
    assert_eq!(fold.slot(&judge.own, &observe(Read::Absent)), None);
    assert_eq!(fold.finish(), Verdict::Healthy(tickmark_protocol::SlotCount::ONE));
}

// The order.

#[test]
fn the_rows_are_asked_in_order() {
    let judge = Judge::beside_the_worker();
    // Everything is wrong at once; take the problems away from the top.
    let mut directory = Directory::healthy(1);
    directory.put("topology-unsafe", "");
    directory.remove("expected");
    directory.put("generation", other_container().encode());
    directory.remove("worker-0");
    judge.says(&directory, UNSUPPORTED_TOPOLOGY);
    directory.remove("topology-unsafe");
    judge.says(&directory, NOT_STARTED);
    directory.put("expected", "");
    judge.says(&directory, "/run/marks/expected unreadable (damaged)");
    directory.put("expected", "5000");
    judge.says(&directory, "/run/marks/expected declares 5000 slots, more than 4096");
    directory.put("expected", "1");
    judge.says(&directory, PREVIOUS);
    directory.put("generation", examples::generation().encode());
    judge.says(&directory, "worker-0 missing");
    // Of another container, and stale, and the file damaged.
    let old =
        Mark { slot: 0, generation: Some(other_container()), monotonic_ns: 0, ..examples::mark() };
    let mut bytes = MarkFile::encode(&old);
    bytes[100] ^= 1;
    directory.put("worker-0", bytes);
    judge.says(&directory, "worker-0 unreadable (damaged)");
    directory.put_mark(&old);
    judge.says(&directory, "worker-0 belongs to a previous container");
    directory.put_mark(&Mark { generation: Some(examples::generation()), ..old });
    judge.says(&directory, "worker-0 stale 3600s > 45s");
    directory.put_mark(&Mark { slot: 0, ..examples::mark() });
    judge.says(&directory, "1 process(es) healthy");
}

// Freshness.

#[test]
fn a_binary_mark_ages_on_the_monotonic_clock() {
    let directory = Directory::healthy(1);
    let judge = Judge::beside_the_worker();
    judge.clone().after(45 * SECOND).says(&directory, "1 process(es) healthy");
    // Rounded up: never `stale 45s > 45s`.
    judge.clone().after(45 * SECOND + 1).says(&directory, "worker-0 stale 46s > 45s");
    judge.clone().after(120 * SECOND).says(&directory, "worker-0 stale 120s > 45s");
    // Steps of the wall clock change nothing, nor does the mtime.
    for realtime_ns in [0, i64::MIN, i64::MAX] {
        let mut stepped = judge.clone();
        stepped.now.realtime_ns = realtime_ns;
        stepped.says(&directory, "1 process(es) healthy");
    }
    let mut touched = directory.clone();
    touched.touch("worker-0", 0);
    judge.says(&touched, "1 process(es) healthy");
}

#[test]
fn in_another_time_namespace_the_mtime_decides() {
    let directory = Directory::healthy(1);
    let mut judge = Judge::beside_the_worker();
    judge.time_namespace += 1;
    // This side's clock is far ahead, then far behind.
    for monotonic_ns in [examples::MONOTONIC_NS * 2, 0] {
        judge.now.monotonic_ns = monotonic_ns;
        judge.says(&directory, "1 process(es) healthy");
        let mut old = directory.clone();
        old.touch("worker-0", wall_ns() - 45 * SECOND as i64);
        judge.says(&old, "1 process(es) healthy");
        old.touch("worker-0", wall_ns() - 120 * SECOND as i64);
        judge.says(&old, "worker-0 stale 120s > 45s");
        old.touch("worker-0", wall_ns() + 120 * SECOND as i64);
        judge.says(&old, "worker-0 from the future 120s");
    }
}

#[test]
fn the_time_namespace_is_needed_only_where_the_clock_alone_would_reject() {
    let (mark, judge) = (examples::mark(), Judge::beside_the_worker());
    let at = |monotonic_ns| Now { monotonic_ns, ..judge.now };
    let needed = |ns| needs_time_namespace(&mark, at(ns), judge.max_age);
    assert!(!needed(examples::MONOTONIC_NS));
    assert!(!needed(examples::MONOTONIC_NS + 45 * SECOND));
    assert!(needed(examples::MONOTONIC_NS + 45 * SECOND + 1));
    assert!(needed(examples::MONOTONIC_NS - 1));
}

#[test]
fn the_wall_clock_is_needed_where_the_mtime_may_decide() {
    let (mark, mut judge) = (examples::mark(), Judge::beside_the_worker());
    let needed = |judge: &Judge| needs_wall_clock(&judge.own, &mark, judge.now, judge.max_age);
    assert!(!needed(&judge));
    assert!(needed(&judge.clone().after(46 * SECOND)));
    judge.own.generation.boot_id = Some([9; 16]);
    assert!(needed(&judge));
}

#[test]
fn a_mark_of_another_boot_is_another_container_or_judged_by_its_mtime() {
    let generation = Generation { boot_id: Some([9; 16]), ..examples::generation() };
    let mut directory = Directory::healthy(1);
    directory.put_mark(&Mark { slot: 0, generation: Some(generation), ..examples::mark() });
    Judge::beside_the_worker().says(&directory, "worker-0 belongs to a previous container");

    // Without a generation of its own. The monotonic clock happens to call the mark fresh.
    let mut judge = Judge::nobody();
    judge.own.generation.boot_id = examples::generation().boot_id;
    judge.says(&directory, "1 process(es) healthy");
    directory.touch("worker-0", wall_ns() - 3600 * SECOND as i64);
    judge.says(&directory, "worker-0 stale 3600s > 45s");
    // And where it would call it stale, or from the future.
    directory.touch("worker-0", wall_ns());
    for monotonic_ns in [0, u64::MAX] {
        judge.now.monotonic_ns = monotonic_ns;
        judge.says(&directory, "1 process(es) healthy");
    }
}

#[test]
fn a_text_mark_ages_by_its_mtime() {
    let directory = Directory::healthy_text(1);
    let judge = Judge::beside_the_worker();
    judge.says(&directory, "1 process(es) healthy");
    for (offset_s, line) in [
        (-45, "1 process(es) healthy"),
        (-46, "worker-0 stale 46s > 45s"),
        (-120, "worker-0 stale 120s > 45s"),
        // As the gem: a clock a little behind the file server's is no reason to restart.
        (45, "1 process(es) healthy"),
        (46, "worker-0 from the future 46s"),
        (120, "worker-0 from the future 120s"),
    ] {
        let mut touched = directory.clone();
        touched.touch("worker-0", wall_ns() + offset_s * SECOND as i64);
        judge.says(&touched, line);
    }
    let mut touched = directory.clone();
    touched.touch("worker-0", wall_ns() - 45 * SECOND as i64 - 1);
    judge.says(&touched, "worker-0 stale 46s > 45s");
    for (mtime_ns, stale) in [(i64::MIN, true), (i64::MAX, false)] {
        touched.touch("worker-0", mtime_ns);
        let (line, exit) = judge.answer(&touched);
        assert_eq!(exit, 1);
        assert!(line.starts_with(if stale {
            "worker-0 stale"
        } else {
            "worker-0 from the future"
        }));
    }
}

#[test]
fn text_and_binary_side_by_side() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy(3);
    let text = Directory::healthy_text(3);
    for name in ["generation", "worker-1"] {
        directory.files.insert(name.into(), text.files[name].clone());
        judge.says(&directory, "3 process(es) healthy");
    }
    // Each still ages in its own way.
    judge.after(60 * SECOND).says(
        &directory,
        "worker-0 stale 60s > 45s; worker-1 stale 60s > 45s; worker-2 stale 60s > 45s",
    );
}

#[test]
fn a_text_mark_of_another_container_or_of_none() {
    let judge = Judge::beside_the_worker();
    let mut directory = Directory::healthy_text(1);
    let line = "2026-11-29T18:00:00Z pid=7 slot=0";
    for mark in [format!("{line}\n"), format!("{line} generation=mnt:[4026532616]:12346\n")] {
        directory.put("worker-0", mark);
        judge.says(&directory, "worker-0 belongs to a previous container");
    }
    // The gem's rule: without a generation of one's own, freshness alone.
    directory.remove("generation");
    Judge::nobody().says(&directory, "1 process(es) healthy");
}

#[test]
fn text_where_this_process_has_only_unique_ids() {
    // Nothing that text carries: as in the gem, freshness alone. A binary mark beside it is
    // still compared.
    let mut judge = Judge::beside_the_worker();
    judge.own.generation.pid1_start_time = Some(0);
    judge.own.text = true;
    let mut directory = Directory::healthy_text(2);
    judge.says(&directory, "2 process(es) healthy");
    directory.remove("generation");
    judge.says(&directory, "2 process(es) healthy");
    directory.put_mark(&Mark { generation: Some(other_container()), ..examples::mark() });
    judge.says(&directory, "worker-1 belongs to a previous container");
}
