//! Answers about a marks directory, as text: the verdict alone, or with what it rests on, as a table
//! for people or as one line of JSON. The probe prints these, and whatever else answers the same
//! questions must call the same code. One walk writes table and JSON, so that neither says what the
//! other does not.

use tickmark_protocol::{
    AnyMark, Detail, Encoding, Generation, Mark, Phase, Read, Relation, Shown, Sink, Topology,
    Verdict, Words, classify, nth, procfs::until_byte, say_with,
};

use crate::clock::Clocks;
use crate::observe::{Seen, age_ns, judge_with};
use crate::procfs::{Dispose, Evidence};
use crate::settings::Settings;

/// How much an answer says, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The verdict in one line, as `tickmark-probe` prints it.
    Line,
    /// A table for people, as `tickmark-probe --explain` prints it.
    Table,
    /// One line of JSON, as `tickmark-probe --json` prints it.
    Json,
}

/// Judges the directory that `settings` names and says so into `out`, line end included; returns the
/// verdict. Reads nothing but the directory and procfs, keeps nothing, and allocates nothing.
///
/// `drop` is a `dispose` for everyone who does not count system calls.
pub fn answer(
    form: Form,
    settings: &Settings<'_>,
    clocks: Clocks,
    dispose: Dispose<'_>,
    out: &mut dyn Sink,
) -> Verdict {
    let mut report = Report { out, json: form == Form::Json, joint: "{", own: Generation::empty() };
    let whole = form != Form::Line;
    if whole {
        report.settings(settings, dispose);
    }
    let mut evidence = Evidence::new(settings.launch, dispose);
    let verdict = judge_with(settings, &mut evidence, clocks, &mut |seen| {
        if whole {
            report.seen(&seen);
        }
    });
    let line = verdict.line(settings.dir.value.to_bytes());
    if whole {
        report.verdict(verdict.is_healthy(), &line);
    } else {
        say_with("%\n", &[&line], report.out);
    }
    verdict
}

/// Writes member by member, in the order in which things are seen. A member has the same name in the
/// table and in the JSON.
struct Report<'a> {
    out: &'a mut dyn Sink,
    json: bool,
    /// What stands before the next member in JSON.
    joint: &'static str,
    /// What this process can say about its container, read whole. The verdict reads its own, lazily,
    /// so that explaining a verdict cannot change it.
    own: Generation,
}

/// The members, in the order of [`NAMES`].
#[derive(Clone, Copy)]
enum Member {
    Version,
    Dir,
    DirFrom,
    MaxAgeS,
    MaxAgeFrom,
    Format,
    FormatFrom,
    Topology,
    TopologyFrom,
    TopologyState,
    TopologyDetail,
    TopologyUnsafePublished,
    Expected,
    Generation,
    Slot,
    Problem,
    AgeMs,
    SlotFormat,
    Pid,
    Consumers,
    ConsumersExpected,
    Jobs,
    Phase,
    SlotGeneration,
    OldestJobMs,
    GraceLeftMs,
    ConsumerStates,
    Healthy,
    Verdict,
}

/// Their names, a line each. The first byte says where a member stands in the table: `ROW` on a line
/// that begins with its name, `BESIDE` in parentheses behind the value before, `UNDER` on a line of its
/// own under a slot. A capital letter is a column without a name, as wide as the letter's place in the
/// alphabet; `@` is none.
const NAMES: &str = "\
-version\n\
-dir\n\
(dir_from\n\
-max_age_s\n\
(max_age_from\n\
-format\n\
(format_from\n\
-topology\n\
(topology_from\n\
-topology_state\n\
-topology_detail\n\
-topology_unsafe_published\n\
-expected\n\
-generation\n\
Fslot\n\
@problem\n\
Jage_ms\n\
Hformat\n\
Jpid\n\
Bconsumers\n\
Gconsumers_expected\n\
Fjobs\n\
Lphase\n\
@generation\n\
\x20oldest_job_ms\n\
\x20grace_left_ms\n\
\x20consumer_states\n\
-healthy\n\
-verdict";
const ROW: u8 = b'-';
const BESIDE: u8 = b'(';
const UNDER: u8 = b' ';

/// Above the slots, whose columns have the widths of [`Report::mark`].
const HEADING: &str =
    "\n\nslot  age, ms   format  pid       consumers   jobs  phase       generation|,\"slots\":[";

/// How wide the names in the table are.
const NAME_WIDTH: usize = 26;

impl<'a> Report<'a> {
    /// Says what is no member: what stands before the `|` in the table, or what stands behind it in
    /// JSON.
    #[inline(never)]
    fn layout(&mut self, texts: &str) {
        let (table, json) = until_byte(texts.as_bytes(), b'|');
        self.out.put(if self.json { json } else { table });
    }

    /// Says one member. A `bare` value is not quoted in JSON.
    #[inline(never)]
    fn member(&mut self, member: Member, bare: bool, value: &dyn Words) {
        let Some((&place, name)) = nth(NAMES, member as usize).split_first() else { return };
        if self.json {
            let quote = if bare { "" } else { "\"" };
            say_with("%\"%\":%", &[&self.joint, &Shown(name), &quote], self.out);
            value.say(&mut Escaped(self.out));
            quote.say(self.out);
            self.joint = ",";
            return;
        }
        let (before, width) = match place {
            ROW => ("\n", NAME_WIDTH),
            UNDER => ("\n      ", 0),
            BESIDE => return say_with(" (%)", &[value], self.out),
            width => return self.column(usize::from(width.wrapping_sub(b'@')), value),
        };
        before.say(self.out);
        self.column(width, &Shown(name));
        value.say(self.out);
    }

    /// Says `value` and a space, and fills the column.
    #[inline(never)]
    fn column(&mut self, width: usize, value: &dyn Words) {
        let mut counted = Counted(self.out, 0);
        value.say(&mut counted);
        counted.put(b" ");
        for _ in counted.1..width {
            self.out.put(b" ");
        }
    }

    #[inline(never)]
    fn number(&mut self, member: Member, value: u64) {
        self.member(member, true, &value);
    }

    #[inline(never)]
    fn text(&mut self, member: Member, value: &str) {
        self.member(member, false, &value);
    }

    #[inline(never)]
    fn truth(&mut self, member: Member, value: bool) {
        let word: &str = if value { "true" } else { "false" };
        self.member(member, true, &word);
    }

    #[inline(never)]
    fn settings(&mut self, settings: &Settings<'_>, dispose: Dispose<'_>) {
        self.layout("tickmark");
        self.text(Member::Version, env!("CARGO_PKG_VERSION"));
        self.member(Member::Dir, false, &Shown(settings.dir.value.to_bytes()));
        self.text(Member::DirFrom, settings.dir.source.name());
        self.number(Member::MaxAgeS, settings.max_age.value.as_secs().into());
        self.text(Member::MaxAgeFrom, settings.max_age.source.name());
        self.text(Member::Format, encoding(settings.format.value));
        self.text(Member::FormatFrom, settings.format.source.name());
        self.text(Member::Topology, if settings.strict.value { "strict" } else { "auto" });
        self.text(Member::TopologyFrom, settings.strict.source.name());
        let mut evidence = Evidence::new(settings.launch, dispose);
        evidence.read_all();
        let pid1 = evidence.pid1();
        let missing = evidence.missing();
        self.own = evidence.into_held();
        let (format, strict) = (settings.format.value, settings.strict.value);
        let Topology { state, detail, .. } = classify(pid1, &self.own, format, strict, missing);
        self.member(Member::TopologyState, false, &state);
        if self.json || !matches!(detail, Detail::None) {
            self.member(Member::TopologyDetail, false, &detail);
        }
    }

    #[inline(never)]
    fn seen(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Header { unsafe_published, expected, generation } => {
                self.truth(Member::TopologyUnsafePublished, *unsafe_published);
                match expected {
                    Read::Absent => self.member(Member::Expected, true, &"null"),
                    Read::Failed(fault) => self.member(Member::Expected, false, fault),
                    Read::Found(found) => {
                        self.number(Member::Expected, found.record.processes.into());
                    }
                }
                match generation {
                    Read::Absent => self.member(Member::Generation, true, &"null"),
                    Read::Failed(fault) => self.member(Member::Generation, false, fault),
                    Read::Found(found) => self.compared(Member::Generation, Some(&found.record)),
                }
                self.layout(HEADING);
                self.joint = "{";
            }
            Seen::Slot { slot, observation, problem } => {
                self.layout("\n");
                self.number(Member::Slot, slot.get().into());
                if let Read::Found(mark) = &observation.mark {
                    self.mark(mark, age_ns(observation) / 1_000_000);
                }
                if let Some(problem) = problem {
                    self.member(Member::Problem, false, problem);
                }
                if let Read::Found(AnyMark::Binary(mark)) = &observation.mark {
                    self.under(mark);
                }
                self.layout("|}");
                self.joint = ",{";
            }
        }
    }

    fn mark(&mut self, mark: &AnyMark, age_ms: u64) {
        self.number(Member::AgeMs, age_ms);
        self.text(Member::SlotFormat, encoding(mark.encoding()));
        match mark {
            AnyMark::Text(mark) => {
                self.number(Member::Pid, mark.pid.into());
                self.layout("                              ");
            }
            AnyMark::Binary(mark) => {
                self.number(Member::Pid, mark.pid.into());
                self.number(Member::Consumers, mark.consumers_subscribed.into());
                self.layout("of ");
                self.number(Member::ConsumersExpected, mark.consumers_expected.into());
                self.number(Member::Jobs, mark.jobs_in_flight.into());
                let phase = match mark.phase {
                    Phase::Running => "running",
                    Phase::Recovering => "recovering",
                    Phase::Draining { .. } => "draining",
                };
                self.text(Member::Phase, phase);
            }
        }
        self.compared(Member::SlotGeneration, mark.generation());
    }

    /// What has no column.
    fn under(&mut self, mark: &Mark) {
        if mark.jobs_in_flight > 0 {
            self.number(Member::OldestJobMs, mark.oldest_job_ms);
        }
        if let Phase::Draining { left_ms } = mark.phase {
            self.number(Member::GraceLeftMs, left_ms);
        }
        if !mark.consumer_states.is_empty() {
            self.member(Member::ConsumerStates, false, &Shown(&mark.consumer_states));
        }
    }

    /// How a record's generation compares with this process's.
    #[inline(never)]
    fn compared(&mut self, member: Member, written: Option<&Generation>) {
        let relation = written.map(|written| self.own.relation(written));
        self.member(member, false, &Compared(relation));
    }

    fn verdict(&mut self, healthy: bool, line: &dyn Words) {
        self.layout("\n|]");
        self.joint = ",";
        self.truth(Member::Healthy, healthy);
        self.member(Member::Verdict, false, line);
        self.layout("\n|}\n");
    }
}

/// A comparison in words, with the evidence that decided.
struct Compared(Option<Relation>);

impl Words for Compared {
    fn say(&self, sink: &mut dyn Sink) {
        let (words, evidence) = match &self.0 {
            None => ("none", None),
            Some(Relation::Incomparable) => ("incomparable", None),
            Some(Relation::Same(evidence)) => ("same by ", Some(evidence)),
            Some(Relation::Different(evidence)) => ("different by ", Some(evidence)),
        };
        words.say(sink);
        if let Some(evidence) = evidence {
            evidence.say(sink);
        }
    }
}

/// As `TICKMARK_FORMAT` names it.
#[inline(never)]
fn encoding(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Binary => "binary",
        Encoding::Text => "text",
    }
}

/// The inside of a JSON string; numbers and the like pass through it unchanged.
struct Escaped<'a>(&'a mut dyn Sink);

impl Sink for Escaped<'_> {
    fn put(&mut self, text: &[u8]) {
        for &byte in text {
            if matches!(byte, b'"' | b'\\') {
                self.0.put(b"\\");
            }
            // Nothing that is said holds a control character: a path shows it as `?`.
            self.0.put(&[byte]);
        }
    }
}

/// Counts the characters that pass.
struct Counted<'a>(&'a mut dyn Sink, usize);

impl Sink for Counted<'_> {
    fn put(&mut self, text: &[u8]) {
        // All that is padded is ASCII.
        self.1 += text.len();
        self.0.put(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    struct Collected(Vec<u8>);

    impl Sink for Collected {
        fn put(&mut self, text: &[u8]) {
            self.0.extend_from_slice(text);
        }
    }

    #[test]
    fn a_string_is_escaped() {
        for (text, escaped) in
            [("plain … ü", "plain … ü"), ("a\"b\\c", "a\\\"b\\\\c"), ("", ""), ("\"\"", "\\\"\\\"")]
        {
            let mut out = Collected(Vec::new());
            text.say(&mut Escaped(&mut out));
            assert_eq!(out.0, escaped.as_bytes());
        }
    }

    #[test]
    fn a_column_counts_what_passes() {
        let mut out = Collected(Vec::new());
        let mut counted = Counted(&mut out, 0);
        "abc".say(&mut counted);
        assert_eq!(counted.1, 3);
    }
}
