//! Answers about a marks directory, as text: the verdict alone, or with what it rests on, as a table
//! for people or as one line of JSON. The probe prints these, and whatever else answers the same
//! questions must call the same code. One walk writes table and JSON, so that neither says what the
//! other does not.

use tickmark_protocol::{
    AnyMark, Detail, Encoding, Generation, Phase, Read, Relation, Shown, Sink, Topology, Verdict,
    Words, classify,
};

use crate::clock::Clocks;
use crate::observe::{Seen, age_ns, judge_with};
use crate::procfs::{Dispose, Evidence};
use crate::settings::{Settings, Source};

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
    let dir = settings.dir.value.to_bytes();
    if form == Form::Line {
        let mut evidence = Evidence::new(settings.launch, dispose);
        let verdict = judge_with(settings, &mut evidence, clocks, &mut |_| {});
        verdict.line(dir).say(out);
        out.put(b"\n");
        return verdict;
    }
    let mut report = Report::new(out, form == Form::Json, settings, dispose);
    report.settings(settings);
    let mut evidence = Evidence::new(settings.launch, dispose);
    let verdict = judge_with(settings, &mut evidence, clocks, &mut |seen| report.seen(&seen));
    report.verdict(&verdict, dir);
    verdict
}

/// Writes member by member, in the order in which things are seen.
struct Report<'a> {
    out: &'a mut dyn Sink,
    json: bool,
    /// What this process can say about its container, read whole. The verdict reads its own, lazily,
    /// so that explaining a verdict cannot change it.
    own: Generation,
    topology: Topology,
    /// Whether no slot was seen yet.
    first: bool,
}

/// Above the slots, whose columns have the widths of [`Report::mark`].
const HEADING: &str = "\n
slot  age, ms   format  pid       consumers   jobs  phase       generation
^F";

impl<'a> Report<'a> {
    fn new(
        out: &'a mut dyn Sink,
        json: bool,
        settings: &Settings<'_>,
        dispose: Dispose<'_>,
    ) -> Self {
        let mut evidence = Evidence::new(settings.launch, dispose);
        evidence.read_all();
        let pid1 = evidence.pid1();
        let own = evidence.held().clone();
        let topology =
            classify(pid1, &own, settings.format.value, settings.strict.value, evidence.missing());
        Self { out, json, own, topology, first: true }
    }

    /// Says `parts` in one of two texts: `table` for people, `members` for programs. In both, a `%`
    /// stands for the next part. In `table`, `^` and a letter stand for it as a column, as wide as
    /// the letter's place in the alphabet; `@` is none, `h` is 40.
    #[inline(never)]
    fn say(&mut self, table: &str, members: &str, parts: &[&dyn Words]) {
        let mut text = if self.json { members } else { table }.as_bytes();
        let mut parts = parts.iter();
        while let [byte, rest @ ..] = text {
            text = rest;
            let mark = matches!(byte, b'%' | b'^');
            match (if mark { parts.next() } else { None }, rest) {
                (None, _) => self.out.put(&[*byte]),
                (Some(part), [width, rest @ ..]) if *byte == b'^' => {
                    text = rest;
                    let mut counted = Counted(self.out, 0);
                    part.say(&mut counted);
                    counted.put(b" ");
                    for _ in counted.1..usize::from(width.wrapping_sub(b'@')) {
                        self.out.put(b" ");
                    }
                }
                (Some(part), _) if self.json => part.say(&mut Escaped(self.out)),
                (Some(part), _) => part.say(self.out),
            }
        }
    }

    fn settings(&mut self, settings: &Settings<'_>) {
        let (dir, max_age) = (&settings.dir, &settings.max_age);
        let (strict, format) = (&settings.strict, &settings.format);
        let Topology { state, detail, .. } = self.topology;
        self.say(
            concat!(
                "tickmark ",
                env!("CARGO_PKG_VERSION"),
                "\ndirectory   % (%)",
                "\nmax age, s  % (%)",
                "\nformat      % (%)",
                "\ntopology    % (%)",
                "\n  found     %",
            ),
            concat!(
                r#"{"version":""#,
                env!("CARGO_PKG_VERSION"),
                r#"","dir":"%","dir_from":"%""#,
                r#","max_age_s":%,"max_age_from":"%""#,
                r#","format":"%","format_from":"%""#,
                r#","topology":"%","topology_from":"%""#,
                r#","topology_state":"%""#,
            ),
            &[
                &Shown(dir.value.to_bytes()),
                &from(dir.source),
                &max_age.value.as_secs(),
                &from(max_age.source),
                &encoding(format.value),
                &from(format.source),
                &if strict.value { "strict" } else { "auto" },
                &from(strict.source),
                &state,
            ],
        );
        if self.json || !matches!(detail, Detail::None) {
            self.say("\n  because   %", r#","topology_detail":"%""#, &[&detail]);
        }
    }

    fn seen(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Header { unsafe_published, expected, generation } => {
                let (expected, members): (&dyn Words, _) = match expected {
                    Read::Absent => (&"null", r#","topology_unsafe_published":%,"expected":%"#),
                    Read::Failed(fault) => {
                        (fault, r#","topology_unsafe_published":%,"expected":"%""#)
                    }
                    Read::Found(found) => {
                        (&found.record.processes, r#","topology_unsafe_published":%,"expected":%"#)
                    }
                };
                self.say("\nunsafe mark %\nexpected    %", members, &[unsafe_published, expected]);
                let compared;
                let (generation, members): (&dyn Words, _) = match generation {
                    Read::Absent => (&"null", r#","generation":%,"slots":["#),
                    Read::Failed(fault) => (fault, r#","generation":"%","slots":["#),
                    Read::Found(found) => {
                        compared = self.compared(Some(&found.record));
                        (&compared, r#","generation":"%","slots":["#)
                    }
                };
                self.say("\ngeneration  %", members, &[generation]);
            }
            Seen::Slot { slot, observation, problem } => {
                let (table, members) =
                    if self.first { (HEADING, r#"{"slot":%"#) } else { ("\n^F", r#",{"slot":%"#) };
                self.first = false;
                self.say(table, members, &[&slot.get()]);
                if let Read::Found(mark) = &observation.mark {
                    self.mark(mark, age_ns(observation) / 1_000_000);
                }
                if let Some(problem) = problem {
                    self.say("^@", r#","problem":"%""#, &[problem]);
                }
                if let Read::Found(AnyMark::Binary(mark)) = &observation.mark
                    && !mark.consumer_states.is_empty()
                {
                    let states = Shown(&mark.consumer_states);
                    self.say("\n      %", r#","consumer_states":"%""#, &[&states]);
                }
                self.say("", "}", &[]);
            }
        }
    }

    fn mark(&mut self, mark: &AnyMark, age_ms: u64) {
        let format = encoding(mark.encoding());
        self.say("^J^H", r#","age_ms":%,"format":"%""#, &[&age_ms, &format]);
        match mark {
            AnyMark::Text(mark) => self.say("^h", r#","pid":%"#, &[&mark.pid]),
            AnyMark::Binary(mark) => {
                self.say(
                    "^J^Bof ^G^F",
                    r#","pid":%,"consumers":%,"consumers_expected":%,"jobs":%"#,
                    &[
                        &mark.pid,
                        &mark.consumers_subscribed,
                        &mark.consumers_expected,
                        &mark.jobs_in_flight,
                    ],
                );
                if mark.jobs_in_flight > 0 {
                    self.say("oldest ms: ^@", r#","oldest_job_ms":%"#, &[&mark.oldest_job_ms]);
                }
                let (phase, left) = match mark.phase {
                    Phase::Running => ("running", None),
                    Phase::Recovering => ("recovering", None),
                    Phase::Draining { left_ms } => ("draining", Some(left_ms)),
                };
                self.say("^L", r#","phase":"%""#, &[&phase]);
                if let Some(left) = left {
                    self.say("ms left: ^@", r#","grace_left_ms":%"#, &[&left]);
                }
            }
        }
        self.say("^@", r#","generation":"%""#, &[&self.compared(mark.generation())]);
    }

    /// How a record's generation compares with this process's.
    fn compared(&self, written: Option<&Generation>) -> Compared {
        Compared(written.map(|written| self.own.relation(written)))
    }

    fn verdict(&mut self, verdict: &Verdict, dir: &[u8]) {
        self.say(
            "\n\nhealthy     %\nverdict     %\n",
            "],\"healthy\":%,\"verdict\":\"%\"}\n",
            &[&verdict.is_healthy(), &verdict.line(dir)],
        );
    }
}

#[inline(never)]
fn from(source: Source) -> &'static str {
    match source {
        Source::Default => "default",
        Source::Environment(name) => name,
        Source::Flag => "flag",
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
