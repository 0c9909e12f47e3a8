//! Properties: round trips, decoders that take any bytes, and a verdict that is healthy only
//! where every declared slot earned it.

mod directory;
mod examples;

use directory::{Directory, File, Judge, SECOND, wall_ns};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tickmark_protocol::procfs::{self, MountIds, MountInfo, unescape};
use tickmark_protocol::{
    AnyMark, Attempt, CONSUMER_STATES_MAX, Decoded, Detail, Encoding, Errno, Expected, Fault,
    Generation, LaunchToken, Mark, MarkFile, MaxAge, Phase, Pid1, Record, Relation, Slot, State,
    TopologyReport, TopologyUnsafe, Verdict, encode_expected, encode_generation, encode_mark,
    encode_unsafe,
};

fn token() -> impl Strategy<Value = LaunchToken> {
    vec(0x21..=0x7Eu8, 1..=64).prop_map(|bytes| LaunchToken::new(&bytes).expect("graphic ASCII"))
}

/// Small ids as often as any, so that two generations share some.
fn id() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..3u64, 1 => any::<u64>()]
}

fn generation() -> BoxedStrategy<Generation> {
    (
        option::of(prop_oneof![Just([1; 16]), Just([2; 16]), any::<[u8; 16]>()]),
        option::of(token()),
        option::of(id()),
        option::of(id()),
        option::of(id()),
        option::of(id()),
        option::of(id()),
    )
        .prop_map(|(boot_id, launch, namespace, root, cgroup, inode, start)| Generation {
            boot_id,
            launch,
            mount_namespace_id: namespace,
            root_mount_id: root,
            cgroup_id: cgroup,
            mount_namespace_inode: inode,
            pid1_start_time: start,
        })
        .boxed()
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Running),
        Just(Phase::Recovering),
        any::<u64>().prop_map(|left_ms| Phase::Draining { left_ms }),
    ]
}

prop_compose! {
    fn mark()(
        slot in 0..4096u32,
        (pid, tick_ms, consumers_subscribed, consumers_expected, jobs_in_flight)
            in any::<(u32, u32, u32, u32, u32)>(),
        (sequence, wall_ms, monotonic_ns, oldest_job_ms, time_namespace)
            in any::<(u64, u64, u64, u64, u64)>(),
        phase in phase(),
        generation in option::of(generation()),
        states in vec(any::<u8>(), 0..=CONSUMER_STATES_MAX),
    ) -> Mark {
        Mark {
            slot, pid, sequence, wall_ms, monotonic_ns, tick_ms, phase, consumers_subscribed,
            consumers_expected, jobs_in_flight, oldest_job_ms, time_namespace, generation,
            consumer_states: states.as_slice().try_into().expect("at most 192"),
        }
    }
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Verified),
        Just(State::VerifiedByUniqueId),
        Just(State::Unsafe),
        Just(State::Unverifiable),
        Just(State::Unavailable),
        Just(State::NonLinux),
    ]
}

fn round_trips<R: Record + PartialEq + std::fmt::Debug>(record: R) -> Result<(), TestCaseError> {
    let read = R::decode(&record.encode());
    prop_assert_eq!(read, Ok(Decoded { record, encoding: Encoding::Binary }));
    Ok(())
}

/// Bytes that look like files of ours more often than chance would have it.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..600),
        vec(any::<u8>(), 508).prop_map(|body| [&[0xF5, b'T', b'M', 1][..], &body].concat()),
        "[0-9+\\- \n]{0,12}".prop_map(String::into_bytes),
        "mnt:\\[[0-9]{0,21}\\]:[0-9]{0,21}\n?".prop_map(String::into_bytes),
        "20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]Z pid=[0-9]{1,11} \
         slot=[0-9]{1,5}( generation=mnt:\\[[0-9]{1,21}\\]:[0-9]{1,21})?\n?"
            .prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn records_round_trip(
        processes in any::<u32>(),
        generation in generation(),
        (starts, first_start_ns) in any::<(u64, u64)>(),
        last_report_ns in option::of(any::<u64>()),
        held in option::of(generation()),
        state in state(),
        detail in "\\PC{0,64}",
    ) {
        round_trips(Expected { processes })?;
        round_trips(generation)?;
        round_trips(Attempt { starts, first_start_ns, last_report_ns, generation: held.clone() })?;
        round_trips(TopologyReport { state, generation: held })?;
        let detail = detail.as_str().try_into().expect("64 characters are at most 256 bytes");
        round_trips(TopologyUnsafe { detail })?;
    }

    #[test]
    fn marks_round_trip(mark in mark()) {
        let slot = Slot::new(mark.slot).expect("below 4096");
        prop_assert_eq!(
            MarkFile::decode(slot, &MarkFile::encode(&mark)),
            Ok(AnyMark::Binary(mark))
        );
    }

    #[test]
    fn text_round_trips(
        processes in any::<u32>(),
        (inode, start) in (1..=u64::MAX, 1..=u64::MAX),
        // To the end of the year 9999, which is as far as four digits go.
        wall_s in 0..253_402_300_800u64,
        mut mark in mark(),
        detail in "[ -~]{0,256}",
    ) {
        let expected = Expected { processes };
        let read = Expected::decode(encode_expected(&expected).as_bytes());
        prop_assert_eq!(read, Ok(Decoded { record: expected, encoding: Encoding::Text }));

        let generation = Generation {
            mount_namespace_inode: Some(inode),
            pid1_start_time: Some(start),
            ..Generation::default()
        };
        let text = encode_generation(&generation).expect("both halves");
        let read = Generation::decode(text.as_bytes()).map(|found| found.record);
        prop_assert_eq!(read.as_ref(), Ok(&generation));

        mark.wall_ms = wall_s * 1000 + 999;
        mark.generation = Some(generation.clone());
        let slot = Slot::new(mark.slot).expect("below 4096");
        match MarkFile::decode(slot, encode_mark(&mark).as_bytes()) {
            Ok(AnyMark::Text(read)) => {
                prop_assert_eq!((read.wall_s(), read.pid, read.slot), (wall_s, mark.pid, mark.slot));
                prop_assert_eq!(read.generation, Some(generation));
            }
            other => prop_assert!(false, "{:?}", other),
        }

        let record = TopologyUnsafe { detail: detail.as_str().try_into().expect("256 bytes") };
        let read = TopologyUnsafe::decode(encode_unsafe(&record).as_bytes());
        prop_assert_eq!(read.map(|found| found.record), Ok(record));
    }

    #[test]
    fn decoders_and_parsers_take_any_bytes(bytes in bytes(), slot in 0..4096u32) {
        let _ = Expected::decode(&bytes);
        let _ = Generation::decode(&bytes);
        let _ = Attempt::decode(&bytes);
        let _ = TopologyUnsafe::decode(&bytes);
        let _ = TopologyReport::decode(&bytes);
        let _ = MarkFile::decode(Slot::new(slot).expect("below 4096"), &bytes);
        let _ = procfs::stat_start_time(&bytes);
        let _ = procfs::namespace_inode(&bytes, "mnt");
        let _ = procfs::boot_id(&bytes);
        let _ = procfs::at_cgroup_root(&bytes);
        let _ = procfs::pid1_cgroup_outside(&bytes, b"0::/\n", true);
        let _ = MountInfo::parse(&bytes);
        prop_assert!(unescape(&bytes).count() <= bytes.len());
    }

    #[test]
    fn mount_ids_do_not_depend_on_the_pieces(
        text in "([0-9 \nx]|[0-9]{1,21} ){0,60}",
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = text.as_bytes();
        let mut ids = Vec::new();
        MountIds::default().feed(whole, |id| ids.push(id));

        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(whole.len());
        let (mut pieces, mut found, mut from) = (MountIds::default(), Vec::new(), 0);
        for to in cuts {
            pieces.feed(&whole[from..to], |id| found.push(id));
            from = to;
        }
        prop_assert_eq!(&found, &ids);

        // The same again, by lines.
        let by_line: Vec<u64> = text
            .split('\n')
            .filter_map(|line| line.split_once(' '))
            .filter(|(id, _)| id.bytes().all(|b| b.is_ascii_digit()))
            .filter_map(|(id, _)| id.parse().ok())
            .collect();
        prop_assert_eq!(ids, by_line);
    }

    #[test]
    fn a_path_survives_the_kernels_escapes(path in vec(any::<u8>(), 0..64)) {
        let mut field = Vec::new();
        for &byte in &path {
            match byte {
                b' ' | b'\t' | b'\n' | b'\\' => field.extend(format!("\\{byte:03o}").bytes()),
                _ => field.push(byte),
            }
        }
        prop_assert_eq!(unescape(&field).collect::<Vec<_>>(), path);
    }

    #[test]
    fn a_generation_is_the_same_as_itself_where_it_identifies(
        a in generation(),
        b in generation(),
    ) {
        prop_assert_eq!(a.relation(&a).is_same(), a.identifies());
        // Both ways alike, but for the launch that only one side holds.
        if a.launch.is_some() == b.launch.is_some() {
            prop_assert_eq!(a.relation(&b), b.relation(&a));
        }
        if let Relation::Same(evidence) = a.relation(&b) {
            prop_assert!(b.identifies());
            prop_assert_ne!(evidence, tickmark_protocol::Evidence::BootId);
            prop_assert!(a.boot_id.is_none() || b.boot_id.is_none() || a.boot_id == b.boot_id);
        }
    }
}

// The verdict over directories that are healthy, nearly healthy and neither.

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![Just(Fault::Errno(Errno::ACCESS)), Just(Fault::NotRegular)]
}

fn near(now: i64) -> impl Strategy<Value = i64> {
    (-100..100i64).prop_map(move |seconds| now + seconds * SECOND as i64)
}

/// A file of one slot: mostly what a healthy worker writes, with one field or another changed.
fn slot_file(slot: u32) -> BoxedStrategy<Option<File>> {
    let bytes = (
        prop_oneof![4 => Just(Some(examples::generation())), 1 => option::of(generation())],
        prop_oneof![2 => Just(0), 1 => -100..100i64],
        prop_oneof![4 => Just(examples::TIME_NAMESPACE), 1 => Just(1)],
        prop_oneof![4 => Just(wall_ns()), 1 => near(wall_ns())],
        any::<bool>(),
        option::weighted(0.05, 0..4096usize),
    )
        .prop_map(move |(generation, age_s, time_namespace, mtime_ns, text, flip)| {
            let monotonic_ns = examples::MONOTONIC_NS.saturating_add_signed(-age_s * SECOND as i64);
            let mark = Mark { slot, monotonic_ns, time_namespace, generation, ..examples::mark() };
            let mut bytes = if text {
                encode_mark(&mark).as_bytes().to_vec()
            } else {
                MarkFile::encode(&mark).to_vec()
            };
            if let Some(bit) = flip
                && let Some(byte) = bytes.get_mut(bit / 8)
            {
                *byte ^= 1 << (bit % 8);
            }
            Some(File::Bytes { bytes, mtime_ns })
        });
    prop_oneof![
        20 => bytes,
        1 => Just(None),
        1 => fault().prop_map(|fault| Some(File::Failed(fault))),
    ]
    .boxed()
}

prop_compose! {
    fn any_directory()(
        count in prop_oneof![4 => 1..4u32, 1 => 0..20u32],
        files in (slot_file(0), slot_file(1), slot_file(2), slot_file(3)),
        header in prop_oneof![
            4 => Just(Some(examples::generation())),
            1 => option::of(generation()),
        ],
        text in any::<(bool, bool)>(),
        published in prop::bool::weighted(0.02),
    ) -> Directory {
        let mut directory = Directory::default();
        let expected = Expected { processes: count };
        if text.0 {
            directory.put("expected", encode_expected(&expected).as_bytes());
        } else {
            directory.put("expected", expected.encode());
        }
        if let Some(generation) = header {
            match encode_generation(&generation).filter(|_| text.1) {
                Some(text) => directory.put("generation", text.as_bytes()),
                None => directory.put("generation", generation.encode()),
            }
        }
        let files = [files.0, files.1, files.2, files.3];
        for (slot, file) in files.into_iter().enumerate() {
            if let Some(file) = file {
                directory.files.insert(format!("worker-{slot}"), file);
            }
        }
        if published {
            directory.put("topology-unsafe", "");
        }
        directory
    }
}

prop_compose! {
    fn judge()(
        generation in prop_oneof![
            6 => Just(examples::generation()),
            1 => Just(Generation::default()),
            1 => generation(),
        ],
        pid1 in prop_oneof![
            4 => Just(Pid1::Here),
            1 => Just(Pid1::Unknown(Detail::None)),
            1 => Just(Pid1::Elsewhere(Detail::None)),
        ],
        strict in any::<bool>(),
        text in any::<bool>(),
    ) -> Judge {
        let mut judge = Judge::beside_the_worker();
        judge.own.generation = generation;
        if pid1.is_elsewhere() {
            judge.own.generation.pid1_start_time = None;
        }
        (judge.own.pid1, judge.own.strict, judge.own.text) = (pid1, strict, text);
        judge
    }
}

/// §3 in other words: whether this file is a fresh mark of this generation.
fn is_fresh_mark_of_this_generation(judge: &Judge, slot: Slot, file: Option<&File>) -> bool {
    let Some(File::Bytes { bytes, mtime_ns }) = file else { return false };
    let Ok(mark) = MarkFile::decode(slot, bytes) else { return false };
    let own = &judge.own.generation;
    let max = i128::from(judge.max_age.as_nanos());
    let by_mtime = i128::from(judge.now.realtime_ns) - i128::from(*mtime_ns);
    let by_mtime = -max <= by_mtime && by_mtime <= max;
    match mark {
        AnyMark::Binary(mark) => {
            let held = mark.generation.clone().unwrap_or_default();
            let this = !own.identifies() || own.relation(&held).is_same();
            let age = i128::from(judge.now.monotonic_ns) - i128::from(mark.monotonic_ns);
            let by_clock = 0 <= age && age <= max;
            let another_boot = matches!((own.boot_id, held.boot_id), (Some(a), Some(b)) if a != b);
            let fresh = if another_boot {
                by_mtime
            } else {
                by_clock || (mark.time_namespace != judge.time_namespace && by_mtime)
            };
            this && fresh
        }
        AnyMark::Text(mark) => {
            let held = mark.generation.unwrap_or_default().formula();
            by_mtime
                && !judge.own.pid1.is_elsewhere()
                && own.formula().is_none_or(|f| held == Some(f))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn healthy_means_that_each_declared_slot_has_a_fresh_mark_of_this_generation(
        directory in any_directory(),
        judge in judge(),
    ) {
        let verdict = judge.verdict(&directory);
        let slots_hold = |count: u32| (0..count).all(|number| {
            let slot = Slot::new(number).expect("a few");
            let file = directory.files.get(&format!("worker-{number}"));
            is_fresh_mark_of_this_generation(&judge, slot, file)
        });
        match verdict {
            Verdict::Healthy(count) => {
                prop_assert!(!directory.files.contains_key("topology-unsafe"));
                prop_assert!(!(judge.own.pid1.is_elsewhere() && judge.own.strict));
                prop_assert!(slots_hold(count.get()));
            }
            // And the reverse: what is said of slots is said of a reason.
            Verdict::Slots(problems, _) => {
                for problem in problems {
                    let file = directory.files.get(&format!("worker-{}", problem.slot));
                    prop_assert!(!is_fresh_mark_of_this_generation(&judge, problem.slot, file));
                }
            }
            _ => {}
        }
    }

    #[test]
    fn adding_a_problem_never_turns_unhealthy_into_healthy(
        directory in any_directory(),
        judge in judge(),
        what in 0..9u8,
        slot in 0..4u32,
        fault in fault(),
    ) {
        let before = judge.verdict(&directory).is_healthy();
        let mut worse = directory.clone();
        let mut judge_worse = judge.clone();
        let name = format!("worker-{slot}");
        match what {
            0 => worse.remove(&name),
            1 => worse.fail(&name, fault),
            2 => worse.put(&name, "?"),
            3 => worse.put("topology-unsafe", ""),
            4 => worse.remove("expected"),
            5 => worse.put("expected", "4097"),
            6 => worse.fail("expected", fault),
            // For a process with a generation of its own; without one the file says nothing.
            7 => worse.fail("generation", fault),
            _ => judge_worse.max_age = MaxAge::from_secs(1).expect("positive"),
        }
        let after = judge_worse.verdict(&worse).is_healthy();
        prop_assert!(before || !after, "{directory:?}");
    }
}
