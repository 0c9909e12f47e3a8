//! The verdict: one pure fold over what was observed of a marks directory. No clock, no file
//! system, no alloc. The probe, the worker's self-check, the activator and the tests call
//! this and nothing else.

use heapless::Vec;

use crate::words::{Shown, Sink, Words, display, say_with};
use crate::{
    AnyMark, DecodeError, Decoded, Encoding, Errno, Evidence, Expected, Generation, MAX_SLOTS,
    Mark, MaxAge, Pid1, Relation, Slot, SlotCount, UNSUPPORTED_TOPOLOGY,
};

/// How many problems a verdict names before it only counts them.
pub const SHOWN_PROBLEMS: usize = 16;

/// Why a file that is there gave no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It could not be opened or read.
    Errno(Errno),
    /// A directory, a FIFO, a device or a socket.
    NotRegular,
    /// It was read, and is not a record.
    Decode(DecodeError),
}

display!(Fault, Problem, VerdictLine<'_>);

impl Words for Fault {
    fn say(&self, sink: &mut dyn Sink) {
        match self {
            Fault::Errno(errno) => say_with("unreadable (%)", &[errno], sink),
            Fault::NotRegular => "unreadable (not a regular file)".say(sink),
            Fault::Decode(DecodeError::Damaged(_)) => "unreadable (damaged)".say(sink),
            Fault::Decode(DecodeError::Newer(version)) => {
                let version = u64::from(*version);
                say_with("written by a newer tickmark (format %)", &[&version], sink);
            }
        }
    }
}

/// What reading a file gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<T> {
    /// There is no such file.
    Absent,
    /// There is one, and this is why it says nothing.
    Failed(Fault),
    /// Its record.
    Found(T),
}

impl<T> Read<T> {
    /// What a file gave that could not be read.
    #[must_use]
    pub fn failed(fault: Fault) -> Read<T> {
        match fault {
            Fault::Errno(Errno::NOT_FOUND) => Read::Absent,
            fault => Read::Failed(fault),
        }
    }
}

/// What the judging process knows of itself. The caller may collect it lazily: what no record
/// at hand can be compared with need not be read. But evidence that is left out because no
/// record could be compared with it must not leave the generation without any: a process that
/// has none judges by freshness alone.
#[derive(Debug, Clone)]
pub struct Own {
    /// The evidence that was read. Holds no `pid1_start_time` where PID 1 is elsewhere.
    pub generation: Generation,
    /// Where PID 1 is. Must be read where `strict`, `text` or a record's lack of a unique id
    /// makes anything rest on it.
    pub pid1: Pid1,
    /// `TICKMARK_TOPOLOGY=strict`.
    pub strict: bool,
    /// `TICKMARK_FORMAT=text`.
    pub text: bool,
}

impl Own {
    fn rests_on_pid1(&self, written: &Generation) -> bool {
        !self.generation.shares_unique_id(written)
    }
}

/// The time at which a directory is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, nanoseconds since 1970.
    pub realtime_ns: i64,
}

/// What was observed of one slot.
#[derive(Debug)]
pub struct SlotObservation {
    /// The mark.
    pub mark: Read<AnyMark>,
    /// The file's modification time, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The time, taken after the mark was read.
    pub now: Now,
    /// Inode of the judging process's time namespace, 0 where the kernel has none; only
    /// looked at where [`needs_time_namespace`] says so.
    pub time_namespace: u64,
}

/// Whether a verdict over `mark` depends on the time namespaces of the two sides: it does
/// where the monotonic clock alone would call the mark stale or from the future.
#[must_use]
pub fn needs_time_namespace(mark: &Mark, now: Now, max_age: MaxAge) -> bool {
    monotonic_problem(mark, now, max_age).is_some()
}

/// Whether a verdict over `mark` may depend on the wall clock and the file's mtime: where the
/// monotonic clock is not surely the one the mark was taken on, or would reject it.
#[must_use]
pub fn needs_wall_clock(own: &Own, mark: &Mark, now: Now, max_age: MaxAge) -> bool {
    !same_boot(own, mark) || needs_time_namespace(mark, now, max_age)
}

/// What is wrong with one slot; of several, the first in the order of §3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// No mark.
    Missing,
    /// A mark that could not be read.
    Fault(Fault),
    /// Another incarnation of the container left it.
    PreviousContainer,
    /// Ahead of the clock; by how many seconds where the wall clock decided.
    Future(Option<u64>),
    /// Older than the maximum age; both in seconds, the age rounded up.
    Stale {
        /// The mark's age.
        age_s: u64,
        /// The maximum.
        max_s: u64,
    },
}

impl Words for Problem {
    fn say(&self, sink: &mut dyn Sink) {
        let (text, first, second) = match self {
            Problem::Missing => ("missing", 0, 0),
            Problem::Fault(fault) => return fault.say(sink),
            Problem::PreviousContainer => ("belongs to a previous container", 0, 0),
            Problem::Future(None) => ("from the future", 0, 0),
            Problem::Future(Some(seconds)) => ("from the future %s", *seconds, 0),
            Problem::Stale { age_s, max_s } => ("stale %s > %s", *age_s, *max_s),
        };
        say_with(text, &[&first, &second], sink);
    }
}

/// A slot and what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotProblem {
    /// Which slot.
    pub slot: Slot,
    /// What is wrong.
    pub problem: Problem,
}

/// The two files that are read before any mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFile {
    /// `expected`.
    Expected,
    /// `generation`.
    Generation,
}

impl HeaderFile {
    /// The file's name in the marks directory.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HeaderFile::Expected => "expected",
            HeaderFile::Generation => "generation",
        }
    }
}

/// What the probe answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack; there is no heap")]
pub enum Verdict {
    /// Each declared slot has a fresh mark of this generation.
    Healthy(SlotCount),
    /// PID 1 was proven to be outside the container. Terminal.
    UnsafeTopology,
    /// `expected` is missing or not positive.
    NotStarted,
    /// `expected` or `generation` is there and says nothing.
    HeaderFault(HeaderFile, Fault),
    /// `expected` asks for more than 4096 slots.
    TooManySlots(u32),
    /// The directory belongs to another incarnation of the container.
    PreviousContainer,
    /// Some slots are not healthy: the first 16, and how many more there are.
    Slots(Vec<SlotProblem, SHOWN_PROBLEMS>, u32),
}

impl Verdict {
    /// Whether the probe exits 0.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        matches!(self, Verdict::Healthy(_))
    }

    /// The line that the probe prints, without a line end. `dir` is the marks directory as it
    /// was given.
    #[must_use]
    pub fn line<'a>(&'a self, dir: &'a [u8]) -> VerdictLine<'a> {
        VerdictLine { verdict: self, dir }
    }
}

/// A verdict in words; see [`Verdict::line`].
#[derive(Debug, Clone, Copy)]
pub struct VerdictLine<'a> {
    verdict: &'a Verdict,
    dir: &'a [u8],
}

impl Words for VerdictLine<'_> {
    fn say(&self, sink: &mut dyn Sink) {
        let dir: &dyn Words = &Shown(self.dir);
        let (text, number) = match self.verdict {
            Verdict::Healthy(count) => {
                return say_with("% process(es) healthy", &[&u64::from(count.get())], sink);
            }
            Verdict::UnsafeTopology => (UNSUPPORTED_TOPOLOGY, 0),
            Verdict::NotStarted => (
                "no %/expected: worker has not started yet (is tickmark started before the consumers?)",
                0,
            ),
            Verdict::HeaderFault(file, fault) => {
                return say_with("%/% %", &[dir, &file.name(), fault], sink);
            }
            Verdict::TooManySlots(count) => ("%/expected declares % slots, more than 4096", *count),
            Verdict::PreviousContainer => {
                ("heartbeat belongs to a previous container: worker has not started yet", 0)
            }
            Verdict::Slots(problems, more) => {
                let mut separator = "worker-% %";
                for SlotProblem { slot, problem } in problems {
                    say_with(separator, &[&u64::from(slot.get()), problem], sink);
                    separator = "; worker-% %";
                }
                if *more == 0 {
                    return;
                }
                return say_with("; … and % more", &[&u64::from(*more)], sink);
            }
        };
        say_with(text, &[dir, &u64::from(number)], sink);
    }
}

/// As [`VerdictLine`] says it.
const _: () = assert!(MAX_SLOTS == 4096);

/// A verdict in the making. First the header, then each declared slot from 0, then the end.
#[derive(Debug)]
pub struct Fold {
    max_age: MaxAge,
    /// None where the verdict stands.
    declared: Option<SlotCount>,
    seen: u32,
    verdict: Verdict,
}

impl Fold {
    /// Steps 1 to 3. `unsafe_published` is whether `topology-unsafe` exists, readable or not.
    /// `generation` is not looked at where this process has no generation.
    #[must_use]
    pub fn header(
        own: &Own,
        unsafe_published: bool,
        expected: &Read<Decoded<Expected>>,
        generation: &Read<Decoded<Generation>>,
        max_age: MaxAge,
    ) -> Fold {
        let (declared, verdict) = match decide_header(own, unsafe_published, expected, generation) {
            Ok(declared) => (Some(declared), Verdict::Slots(Vec::new(), 0)),
            Err(verdict) => (None, verdict),
        };
        Fold { max_age, declared, seen: 0, verdict }
    }

    /// How many slots are still to be observed; `None` where the header decided.
    #[must_use]
    pub fn declared(&self) -> Option<SlotCount> {
        self.declared
    }

    /// Step 4 for the next slot. Returns what is wrong with it. Slots beyond the declared
    /// count are ignored.
    #[inline(never)]
    pub fn slot(&mut self, own: &Own, observation: &SlotObservation) -> Option<Problem> {
        if self.seen >= self.declared?.get() {
            return None;
        }
        if let Read::Found(AnyMark::Text(_)) = observation.mark
            && own.pid1.is_elsewhere()
        {
            self.declared = None;
            self.verdict = Verdict::UnsafeTopology;
            return None;
        }
        let problem = slot_problem(own, observation, self.max_age);
        self.count(problem);
        problem
    }

    /// The next slot has that problem, or none.
    fn count(&mut self, problem: Option<Problem>) {
        if let (Ok(slot), Some(problem), Verdict::Slots(problems, more)) =
            (Slot::new(self.seen), problem, &mut self.verdict)
            && problems.push(SlotProblem { slot, problem }).is_err()
        {
            *more += 1;
        }
        self.seen += 1;
    }

    /// The verdict. A declared slot that was never observed counts as missing.
    #[inline(never)]
    #[must_use]
    pub fn finish(mut self) -> Verdict {
        if let Some(declared) = self.declared {
            while self.seen < declared.get() {
                self.count(Some(Problem::Missing));
            }
            if let Verdict::Slots(problems, _) = &self.verdict
                && problems.is_empty()
            {
                self.verdict = Verdict::Healthy(declared);
            }
        }
        self.verdict
    }
}

#[expect(clippy::result_large_err, reason = "returned once, on the stack; there is no heap")]
fn decide_header(
    own: &Own,
    unsafe_published: bool,
    expected: &Read<Decoded<Expected>>,
    generation: &Read<Decoded<Generation>>,
) -> Result<SlotCount, Verdict> {
    if unsafe_published || proven_unsafe(own, expected, generation) {
        return Err(Verdict::UnsafeTopology);
    }
    let declared = match expected {
        Read::Absent => return Err(Verdict::NotStarted),
        Read::Failed(fault) => return Err(Verdict::HeaderFault(HeaderFile::Expected, *fault)),
        Read::Found(Decoded { record: Expected { processes: 0 }, .. }) => {
            return Err(Verdict::NotStarted);
        }
        Read::Found(Decoded { record, .. }) => {
            SlotCount::new(record.processes).map_err(|_| Verdict::TooManySlots(record.processes))?
        }
    };
    let identified =
        if own.text { own.generation.formula().is_some() } else { own.generation.identifies() };
    match generation {
        Read::Found(found) if !comparable_encoding(own, found.encoding) => Ok(declared),
        Read::Found(found) if same_incarnation(own, found.encoding, &found.record) => Ok(declared),
        _ if !identified => Ok(declared),
        Read::Failed(fault) => Err(Verdict::HeaderFault(HeaderFile::Generation, *fault)),
        Read::Absent | Read::Found(_) => Err(Verdict::PreviousContainer),
    }
}

/// Whether this process itself proved that PID 1 is outside, and the verdict would rest on it.
fn proven_unsafe(
    own: &Own,
    expected: &Read<Decoded<Expected>>,
    generation: &Read<Decoded<Generation>>,
) -> bool {
    own.pid1.is_elsewhere()
        && (own.strict
            || own.text
            || !own.generation.has_unique_id()
            || matches!(expected, Read::Found(Decoded { encoding: Encoding::Text, .. }))
            || matches!(generation, Read::Found(found)
                if found.encoding == Encoding::Text || own.rests_on_pid1(&found.record)))
}

/// Whether this process has a generation for records in `encoding`. Text carries no unique
/// id, so a process with nothing but such an id has none for it: freshness alone, as in the
/// gem.
fn comparable_encoding(own: &Own, encoding: Encoding) -> bool {
    match encoding {
        Encoding::Binary => own.generation.identifies(),
        Encoding::Text => own.generation.formula().is_some(),
    }
}

fn same_incarnation(own: &Own, encoding: Encoding, written: &Generation) -> bool {
    match encoding {
        Encoding::Binary => match own.generation.relation(written) {
            // Half of it is PID 1's, which is not this container's.
            Relation::Same(Evidence::InodeAndStartTime) => !own.pid1.is_elsewhere(),
            relation => relation.is_same(),
        },
        Encoding::Text => own.generation.formula() == written.formula(),
    }
}

fn slot_problem(own: &Own, observation: &SlotObservation, max_age: MaxAge) -> Option<Problem> {
    let mark = match &observation.mark {
        Read::Absent => return Some(Problem::Missing),
        Read::Failed(fault) => return Some(Problem::Fault(*fault)),
        Read::Found(mark) => mark,
    };
    if comparable_encoding(own, mark.encoding()) {
        let same = mark
            .generation()
            .is_some_and(|written| same_incarnation(own, mark.encoding(), written));
        if !same {
            return Some(Problem::PreviousContainer);
        }
    }
    match mark {
        AnyMark::Binary(mark) if same_boot(own, mark) => {
            let problem = monotonic_problem(mark, observation.now, max_age)?;
            if mark.time_namespace == observation.time_namespace {
                Some(problem)
            } else {
                mtime_problem(observation, max_age)
            }
        }
        AnyMark::Binary(_) | AnyMark::Text(_) => mtime_problem(observation, max_age),
    }
}

/// Whether the mark's monotonic clock can be this process's. Asked before that clock is looked
/// at: after a reboot it passes the value of an old mark once more, and would call it fresh.
fn same_boot(own: &Own, mark: &Mark) -> bool {
    match (&own.generation.boot_id, mark.generation.as_ref().and_then(|g| g.boot_id.as_ref())) {
        (Some(own), Some(written)) => own == written,
        _ => true,
    }
}

fn monotonic_problem(mark: &Mark, now: Now, max_age: MaxAge) -> Option<Problem> {
    match now.monotonic_ns.checked_sub(mark.monotonic_ns) {
        None => Some(Problem::Future(None)),
        Some(age) if age > max_age.as_nanos() => Some(stale(age, max_age)),
        Some(_) => None,
    }
}

fn mtime_problem(observation: &SlotObservation, max_age: MaxAge) -> Option<Problem> {
    let age = observation.now.realtime_ns.saturating_sub(observation.mtime_ns);
    if age < 0 {
        let ahead = age.unsigned_abs();
        return (ahead > max_age.as_nanos())
            .then_some(Problem::Future(Some(ahead.div_ceil(1_000_000_000))));
    }
    let age = age.unsigned_abs();
    (age > max_age.as_nanos()).then_some(stale(age, max_age))
}

fn stale(age_ns: u64, max_age: MaxAge) -> Problem {
    // Rounded up, so that the line never reads `stale 45s > 45s`.
    Problem::Stale { age_s: age_ns.div_ceil(1_000_000_000), max_s: max_age.as_secs().into() }
}
