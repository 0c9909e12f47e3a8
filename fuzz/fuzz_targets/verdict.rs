//! The verdict over a directory made of any bytes.
//!
//! The first bytes choose what the reader is and what the header says; each slot then takes a
//! few bytes that change a healthy mark, or replace it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tickmark_protocol::{
    AnyMark, Decoded, Detail, Encoding, Errno, Expected, Fault, Fold, Generation, Mark, MarkFile,
    MaxAge, Now, Own, Phase, Pid1, Read, Record, SlotObservation, Verdict, encode_mark,
};

const NOW_NS: u64 = 3_600_000_000_000;
const WALL_NS: i64 = 1_795_975_200_000_000_000;

/// A generation whose pieces are chosen by the bits of `which`, each with a value that
/// `other` may change.
fn generation(which: u8, other: u8) -> Generation {
    let id = |bit: u8| (which & bit != 0).then_some(u64::from(other & bit) + 1);
    Generation {
        boot_id: (which & 1 != 0).then_some([other & 1; 16]),
        launch: None,
        mount_namespace_id: id(2),
        root_mount_id: id(4),
        cgroup_id: id(8),
        mount_namespace_inode: id(16),
        pid1_start_time: id(32),
    }
}

fn whole(which: u8) -> Option<Generation> {
    (which & 128 == 0).then(|| generation(which, 0))
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.iter().copied();
    let mut next = || bytes.next().unwrap_or_default();

    let reader = next();
    let mut own = Own {
        generation: generation(next(), 0),
        pid1: match reader & 3 {
            0 | 1 => Pid1::Here,
            2 => Pid1::Elsewhere(Detail::None),
            _ => Pid1::Unknown(Detail::None),
        },
        strict: reader & 4 != 0,
        text: reader & 8 != 0,
    };
    if own.pid1.is_elsewhere() {
        own.generation.pid1_start_time = None;
    }
    let time_namespace = u64::from(reader >> 4 & 1);
    let published = reader & 32 != 0;
    let encoding = |text| if text { Encoding::Text } else { Encoding::Binary };
    let count = next();
    let expected = match count {
        255 => Read::Absent,
        254 => Read::Failed(Fault::NotRegular),
        253 => {
            Expected::decode(b"99999").map_or_else(|e| Read::Failed(Fault::Decode(e)), Read::Found)
        }
        _ => Read::Found(Decoded {
            record: Expected { processes: u32::from(count % 20) },
            encoding: encoding(count & 128 != 0),
        }),
    };
    let (which, other) = (next(), next());
    let written = match which {
        255 => Read::Absent,
        254 => Read::Failed(Fault::Errno(Errno::ACCESS)),
        _ => Read::Found(Decoded {
            record: generation(which, other),
            encoding: encoding(which & 128 != 0),
        }),
    };
    let max_age = MaxAge::DEFAULT;
    let mut fold = Fold::header(&own, published, &expected, &written, max_age);
    let Some(declared) = fold.declared() else {
        let verdict = fold.finish();
        assert!(!verdict.is_healthy());
        let _ = verdict.line(b"/\xff").to_string();
        return;
    };

    let mut all_fresh = true;
    for slot in declared.slots() {
        let (kind, age, mtime) = (next(), next(), next());
        // Seconds, from 28 ahead to 227 past.
        let monotonic_ns = NOW_NS + 28_000_000_000 - u64::from(age) * 1_000_000_000;
        let mtime_ns = WALL_NS + (64 - i64::from(mtime)) * 1_000_000_000;
        let mark = Mark {
            slot: slot.get(),
            pid: 7,
            sequence: 1,
            wall_ms: 1_795_975_200_000,
            monotonic_ns,
            tick_ms: 10_000,
            phase: Phase::Running,
            consumers_subscribed: 1,
            consumers_expected: 1,
            jobs_in_flight: 0,
            oldest_job_ms: 0,
            time_namespace: u64::from(kind & 1),
            generation: whole(next()).map(|whole| match next() {
                0 => own.generation.clone(),
                1 => whole,
                other => generation(other, other),
            }),
            consumer_states: Default::default(),
        };
        let file = match kind >> 1 & 7 {
            0..=3 => MarkFile::encode(&mark).to_vec(),
            4 | 5 => encode_mark(&mark).as_bytes().to_vec(),
            6 => (0..next()).map(|_| next()).collect(),
            _ => {
                let mut bytes = MarkFile::encode(&mark);
                let bit = usize::from(u16::from_le_bytes([next(), next()])) % 4096;
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes.to_vec()
            }
        };
        let read = match MarkFile::decode(slot, &file) {
            Ok(mark) => Read::Found(mark),
            Err(error) => Read::Failed(Fault::Decode(error)),
        };
        let clock = 0..=u64::from(max_age.as_secs());
        let by_mtime = mtime_ns.abs_diff(WALL_NS) <= max_age.as_nanos();
        let of_this = |held: Option<&Generation>, text: bool| {
            if text {
                let own = own.generation.formula();
                own.is_none() || held.and_then(Generation::formula) == own
            } else {
                !own.generation.identifies()
                    || held.is_some_and(|held| own.generation.relation(held).is_same())
            }
        };
        all_fresh &= match &read {
            Read::Found(AnyMark::Binary(mark)) => {
                let age_ns = NOW_NS.checked_sub(mark.monotonic_ns);
                let by_clock =
                    age_ns.is_some_and(|age| clock.contains(&age.div_ceil(1_000_000_000)));
                of_this(mark.generation.as_ref(), false) && (by_clock || by_mtime)
            }
            Read::Found(AnyMark::Text(mark)) => {
                !own.pid1.is_elsewhere() && of_this(mark.generation.as_ref(), true) && by_mtime
            }
            _ => false,
        };
        let now = Now { monotonic_ns: NOW_NS, realtime_ns: WALL_NS };
        fold.slot(&own, &SlotObservation { mark: read, mtime_ns, now, time_namespace });
    }
    let verdict = fold.finish();
    if let Verdict::Healthy(count) = &verdict {
        assert_eq!(*count, declared);
        assert!(all_fresh && !published);
        assert!(!(own.pid1.is_elsewhere() && (own.strict || own.text)));
    }
    let line = verdict.line(b"/marks").to_string();
    assert!(!line.is_empty() && !line.contains('\n'));
});
