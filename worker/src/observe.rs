//! Observing a marks directory and folding what is seen into the verdict. The probe, a
//! worker's self-check and the activator come through here; nothing else reads a mark to
//! judge it.

use tickmark_protocol::{
    AnyMark, Decoded, Detail, Encoding, Errno, Expected, Fault, Fold, Generation, Now, Own, Pid1,
    Problem, Read, Slot, SlotObservation, TopologyUnsafe, Verdict, needs_time_namespace,
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
    let (unsafe_published, expected) = match &directory {
        Ok(directory) => {
            let unsafe_published = directory.exists(FileName::TopologyUnsafe);
            (unsafe_published, directory.read(FileName::Expected, evidence.dispose()))
        }
        Err(Errno::NOT_FOUND) => (false, Read::Absent),
        Err(errno) => (false, Read::Failed(Fault::Errno(*errno))),
    };
    let generation: Read<Decoded<Generation>> = match &directory {
        Ok(directory) => directory.read(FileName::Generation, evidence.dispose()),
        Err(_) => Read::Absent,
    };
    read_evidence_for(settings, evidence, &expected, &generation);
    see(Seen::Header { unsafe_published, expected: &expected, generation: &generation });

    let mut own = own_for(settings, evidence);
    let mut fold = Fold::header(&own, unsafe_published, &expected, &generation, max_age);
    let mut namespace = None;
    if let (Some(declared), Ok(directory)) = (fold.declared(), &directory) {
        let mut monotonic = (clocks.monotonic_ns)();
        for slot in declared.slots() {
            let read = directory.read_mark(slot, evidence.dispose());
            let mut observation = SlotObservation {
                mark: read.mark,
                mtime_ns: read.mtime_ns,
                now: Now { monotonic_ns: monotonic, realtime_ns: 0 },
                time_namespace: 0,
            };
            if let Read::Found(mark) = &observation.mark {
                evidence.read_for(mark.generation(), mark.encoding());
                own = own_for(settings, evidence);
                let wall_clock = match mark {
                    AnyMark::Text(_) => true,
                    AnyMark::Binary(mark) => {
                        if mark.monotonic_ns > monotonic {
                            // Left after the clock was last read.
                            monotonic = (clocks.monotonic_ns)();
                            observation.now.monotonic_ns = monotonic;
                        }
                        if needs_time_namespace(mark, observation.now, max_age) {
                            observation.time_namespace =
                                *namespace.get_or_insert_with(time_namespace);
                        }
                        needs_wall_clock(&own, mark, observation.now, max_age)
                    }
                };
                if wall_clock {
                    observation.now.realtime_ns = (clocks.realtime_ns)();
                }
            }
            let problem = fold.slot(&own, &observation);
            see(Seen::Slot { slot, observation: &observation, problem });
        }
    }
    if let Ok(directory) = directory {
        (evidence.dispose())(Some(directory.into_fd()));
    }
    fold.finish()
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

#[inline(never)]
fn own_for(settings: &Settings<'_>, evidence: &Evidence<'_>) -> Own {
    Own {
        generation: evidence.held().clone(),
        pid1: evidence.known_pid1().unwrap_or(Pid1::Unknown(Detail::None)),
        strict: settings.strict.value,
        text: settings.format.value == Encoding::Text,
    }
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
