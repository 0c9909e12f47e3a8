//! Observing a marks directory and folding what is seen into the verdict. The probe, a
//! worker's self-check and the activator come through here; nothing else reads a mark to
//! judge it.

use tickmark_protocol::{
    AnyMark, Decoded, Detail, Encoding, Expected, Fault, Fold, Generation, Now, Own, Pid1, Problem,
    Read, ReadFile, Slot, SlotMark, SlotObservation, TopologyUnsafe, Verdict, needs_time_namespace,
    needs_wall_clock,
};

use crate::clock::Clocks;
use crate::marks::{Directory, FileName};
use crate::procfs::{Dispose, Evidence, time_namespace};
use crate::settings::Settings;

/// What was seen on the way to a verdict, for those who want to explain it.
#[derive(Debug)]
pub enum Seen<'a> {
    /// The files before the marks.
    Header {
        /// Whether `topology-unsafe` exists.
        unsafe_published: bool,
        /// `expected`.
        expected: &'a Read<Decoded<Expected>>,
        /// `generation`; not looked for where this process has no generation.
        generation: &'a Read<Decoded<Generation>>,
    },
    /// One declared slot.
    Slot {
        /// Which.
        slot: Slot,
        /// What was observed of it.
        observation: &'a SlotObservation,
        /// What is wrong with it.
        problem: Option<Problem>,
    },
}

/// Judges the directory that `settings` names. Reads only as much evidence as the records at
/// hand can be compared with.
pub fn judge(settings: &Settings<'_>, dispose: Dispose<'_>) -> Verdict {
    let mut evidence = Evidence::new(settings.launch, dispose);
    judge_with(settings, &mut evidence, Clocks::SYSTEM, &mut |_| {})
}

/// As [`judge`], with evidence and clocks that the caller keeps, showing what is seen.
pub fn judge_with(
    settings: &Settings<'_>,
    evidence: &mut Evidence<'_>,
    clocks: Clocks,
    see: &mut dyn FnMut(Seen<'_>),
) -> Verdict {
    let max_age = settings.max_age.value;
    let directory = Directory::open(settings.dir.value);
    let mut unsafe_published = false;
    let mut expected =
        Read::Found(Decoded { record: Expected { processes: 0 }, encoding: Encoding::Binary });
    let mut generation =
        Read::Found(Decoded { record: Generation::empty(), encoding: Encoding::Binary });
    match &directory {
        Ok(directory) => {
            unsafe_published = directory.exists(FileName::TopologyUnsafe);
            read_into(directory, FileName::Expected, &mut expected, evidence);
            read_into(directory, FileName::Generation, &mut generation, evidence);
        }
        Err(errno) => {
            expected = Read::failed(Fault::Errno(*errno));
            generation = Read::Absent;
        }
    }
    read_evidence_for(settings, evidence, &expected, &generation);
    see(Seen::Header { unsafe_published, expected: &expected, generation: &generation });

    let mut own = Own {
        generation: Generation::empty(),
        pid1: Pid1::Unknown(Detail::None),
        strict: settings.strict.value,
        text: settings.format.value == Encoding::Text,
    };
    learn(&mut own, evidence);
    let mut fold = Fold::header(&own, unsafe_published, &expected, &generation, max_age);
    if let (Some(declared), Ok(directory)) = (fold.declared(), &directory) {
        let mut sight = Sight { clocks, monotonic_ns: (clocks.monotonic_ns)(), namespace: None };
        for slot in declared.slots() {
            let mut observation = SlotObservation {
                mark: Read::Found(AnyMark::blank()),
                mtime_ns: 0,
                now: Now { monotonic_ns: 0, realtime_ns: 0 },
                time_namespace: 0,
            };
            sight.observe(directory, slot, settings, evidence, &mut own, &mut observation);
            let problem = fold.slot(&own, &observation);
            see(Seen::Slot { slot, observation: &observation, problem });
        }
    }
    if let Ok(directory) = directory {
        (evidence.dispose())(Some(directory.into_fd()));
    }
    fold.finish()
}

/// Reads into the record that `read` holds.
fn read_into<R: ReadFile>(
    directory: &Directory,
    name: FileName,
    read: &mut Read<Decoded<R>>,
    evidence: &mut Evidence<'_>,
) {
    if let Read::Found(found) = read {
        match directory.read_into(name, &mut found.record, evidence.dispose()) {
            Ok((encoding, _)) => found.encoding = encoding,
            Err(fault) => *read = Read::failed(fault),
        }
    }
}

/// The clocks, and what of this process's time is read at most once.
struct Sight {
    clocks: Clocks,
    /// As it was last read; a healthy verdict reads it once.
    monotonic_ns: u64,
    namespace: Option<u64>,
}

impl Sight {
    /// Reads one slot's mark and all that it can be judged by.
    #[inline(never)]
    fn observe(
        &mut self,
        directory: &Directory,
        slot: Slot,
        settings: &Settings<'_>,
        evidence: &mut Evidence<'_>,
        own: &mut Own,
        observation: &mut SlotObservation,
    ) {
        observation.now.monotonic_ns = self.monotonic_ns;
        let Read::Found(mark) = &mut observation.mark else { return };
        let mut reading = SlotMark { slot, mark };
        match directory.read_into(FileName::Mark(slot), &mut reading, evidence.dispose()) {
            Ok((_, mtime_ns)) => observation.mtime_ns = mtime_ns,
            Err(fault) => {
                observation.mark = Read::failed(fault);
                return;
            }
        }
        evidence.read_for(mark.generation(), mark.encoding());
        learn(own, evidence);
        if let AnyMark::Binary(mark) = mark {
            if mark.monotonic_ns > self.monotonic_ns {
                // Left after the clock was last read.
                self.monotonic_ns = (self.clocks.monotonic_ns)();
                observation.now.monotonic_ns = self.monotonic_ns;
            }
            let max_age = settings.max_age.value;
            if needs_time_namespace(mark, observation.now, max_age) {
                observation.time_namespace = *self.namespace.get_or_insert_with(time_namespace);
            } else if !needs_wall_clock(own, mark, observation.now, max_age) {
                return;
            }
        }
        observation.now.realtime_ns = (self.clocks.realtime_ns)();
    }
}

fn read_evidence_for(
    settings: &Settings<'_>,
    evidence: &mut Evidence<'_>,
    expected: &Read<Decoded<Expected>>,
    generation: &Read<Decoded<Generation>>,
) {
    let text_expected = matches!(expected, Read::Found(Decoded { encoding: Encoding::Text, .. }));
    if settings.format.value == Encoding::Text || text_expected {
        evidence.read_for(None, Encoding::Text);
    }
    match generation {
        Read::Found(found) => evidence.read_for(Some(&found.record), found.encoding),
        Read::Absent | Read::Failed(_) => evidence.read_for(None, settings.format.value),
    }
    if settings.strict.value {
        evidence.pid1();
    }
}

/// Takes over what has been read by now.
#[inline(never)]
fn learn(own: &mut Own, evidence: &Evidence<'_>) {
    own.generation = evidence.held().clone();
    own.pid1 = evidence.known_pid1().unwrap_or(Pid1::Unknown(Detail::None));
}

/// The record in `topology-unsafe`, for those who explain a verdict.
pub fn published_topology(
    settings: &Settings<'_>,
    dispose: Dispose<'_>,
) -> Read<Decoded<TopologyUnsafe>> {
    match Directory::open(settings.dir.value) {
        Ok(directory) => directory.read(FileName::TopologyUnsafe, dispose),
        Err(_) => Read::Absent,
    }
}

/// The age of a mark at `now` in nanoseconds, by the clock that decides for its encoding; a
/// mark from the future has the age 0.
#[must_use]
pub fn age_ns(observation: &SlotObservation) -> u64 {
    match &observation.mark {
        Read::Found(AnyMark::Binary(mark)) => {
            observation.now.monotonic_ns.saturating_sub(mark.monotonic_ns)
        }
        _ => u64::try_from(observation.now.realtime_ns.saturating_sub(observation.mtime_ns))
            .unwrap_or(0),
    }
}
