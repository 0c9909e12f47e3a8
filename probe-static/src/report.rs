//! `--explain` and `--json`: the verdict and what it rests on, as a table for people or as one line of
//! JSON. One walk writes both, so that neither says what the other does not, and both fit.

use rustix::fd::OwnedFd;
use tickmark::observe::{Seen, age_ns};
use tickmark::procfs::Evidence;
use tickmark::settings::{Settings, Source};
use tickmark_protocol::{
    AnyMark, Detail, Encoding, Generation, Phase, Read, Relation, Shown, Sink, Topology, Verdict,
    Words, classify,
};

/// Writes member by member, in the order in which things are seen.
pub(crate) struct Report<'a> {
    out: &'a mut dyn Sink,
    json: bool,
    /// What this process can say about its container, read whole. The verdict reads its own, lazily,
    /// so that explaining a verdict cannot change it.
    own: Generation,
    topology: Topology,
    slots: Option<u32>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        out: &'a mut dyn Sink,
        json: bool,
        settings: &Settings<'_>,
        dispose: &mut dyn FnMut(OwnedFd),
    ) -> Self {
        let mut evidence = Evidence::new(settings.launch.clone(), dispose);
        evidence.read_all();
        let pid1 = evidence.pid1();
        let own = evidence.held().clone();
        let topology =
            classify(pid1, &own, settings.format.value, settings.strict.value, evidence.missing());
        Self { out, json, own, topology, slots: None }
    }

    fn text(&mut self, text: &str) {
        self.out.put(text.as_bytes());
    }

    /// For people a line that begins with `label`, for programs a member `name`.
    fn line(&mut self, label: &str, name: &str, value: &dyn Words, quoted: bool) {
        if self.json {
            return self.member(name, value, quoted);
        }
        self.text("\n");
        self.column(12, &label);
        value.say(self.out);
    }

    fn setting(
        &mut self,
        label: &str,
        names: [&str; 2],
        value: &dyn Words,
        from: Source,
        quoted: bool,
    ) {
        let from = match from {
            Source::Default => "default",
            Source::Environment(name) => name,
            Source::Flag => "flag",
        };
        self.line(label, names[0], value, quoted);
        if self.json {
            return self.member(names[1], &from, true);
        }
        self.text(" (");
        self.text(from);
        self.text(")");
    }

    /// For people a cell of the slots' table, for programs a member.
    fn cell(&mut self, width: usize, name: &str, value: &dyn Words, quoted: bool) {
        if self.json {
            return self.member(name, value, quoted);
        }
        self.column(width, value)
    }

    fn member(&mut self, name: &str, value: &dyn Words, quoted: bool) {
        let quote = if quoted { "\"" } else { "" };
        for text in [",\"", name, "\":", quote] {
            self.text(text);
        }
        value.say(&mut Escaped(self.out));
        self.text(quote);
    }

    fn column(&mut self, width: usize, value: &dyn Words) {
        let mut counted = Counted(self.out, 0);
        value.say(&mut counted);
        counted.put(b" ");
        for _ in counted.1..width {
            self.text(" ");
        }
    }

    pub(crate) fn settings(&mut self, settings: &Settings<'_>) {
        // The opening brace needs a first member, so that every other can begin with a comma.
        self.text(if self.json { "{\"version\":\"" } else { "tickmark-probe " });
        self.text(env!("CARGO_PKG_VERSION"));
        if self.json {
            self.text("\"");
        }
        let (dir, max_age) = (&settings.dir, &settings.max_age);
        let (strict, format) = (&settings.strict, &settings.format);
        self.setting(
            "directory",
            ["dir", "dir_from"],
            &Shown(dir.value.to_bytes()),
            dir.source,
            true,
        );
        let seconds = max_age.value.as_secs();
        self.setting("max age, s", ["max_age_s", "max_age_from"], &seconds, max_age.source, false);
        self.setting(
            "format",
            ["format", "format_from"],
            &encoding(format.value),
            format.source,
            true,
        );
        let strictness = if strict.value { "strict" } else { "auto" };
        self.setting("topology", ["topology", "topology_from"], &strictness, strict.source, true);
        let Topology { state, detail, .. } = self.topology;
        self.line("  found", "topology_state", &state, true);
        if self.json || !matches!(detail, Detail::None) {
            self.line("  because", "topology_detail", &detail, true);
        }
    }

    pub(crate) fn seen(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Header { unsafe_published, expected, generation } => {
                self.line("unsafe mark", "topology_unsafe_published", unsafe_published, false);
                let (expected, quoted): (&dyn Words, bool) = match expected {
                    Read::Absent => (&"null", false),
                    Read::Failed(fault) => (fault, true),
                    Read::Found(found) => (&found.record.processes, false),
                };
                self.line("expected", "expected", expected, quoted);
                let compared;
                let (generation, quoted): (&dyn Words, bool) = match generation {
                    Read::Absent => (&"null", false),
                    Read::Failed(fault) => (fault, true),
                    Read::Found(found) => {
                        compared = self.compared(Some(&found.record));
                        (&compared, true)
                    }
                };
                self.line("generation", "generation", generation, quoted);
                self.slots = Some(0);
                if self.json {
                    self.text(",\"slots\":[");
                }
            }
            Seen::Slot { slot, observation, problem } => {
                if self.slots == Some(0) && !self.json {
                    self.text(
                        "\n\nslot  age, ms   format  pid       consumers   jobs  phase       generation",
                    );
                }
                let separator = match (self.json, self.slots) {
                    (false, _) => "\n",
                    (true, Some(0)) => "{\"slot\":",
                    (true, _) => ",{\"slot\":",
                };
                self.slots = Some(1);
                self.text(separator);
                self.column(6, &slot.get());
                if let Read::Found(mark) = &observation.mark {
                    let age = age_ns(observation) / 1_000_000;
                    self.cell(10, "age_ms", &age, false);
                    self.mark(mark);
                }
                if let Some(problem) = problem {
                    self.cell(0, "problem", problem, true);
                }
                self.text(if self.json { "}" } else { "" })
            }
        }
    }

    fn mark(&mut self, mark: &AnyMark) {
        let compared = self.compared(mark.generation());
        self.cell(8, "format", &encoding(mark.encoding()), true);
        match mark {
            AnyMark::Text(mark) => {
                self.cell(40, "pid", &mark.pid, false);
            }
            AnyMark::Binary(mark) => {
                self.cell(10, "pid", &mark.pid, false);
                self.cell(2, "consumers", &mark.consumers_subscribed, false);
                if !self.json {
                    self.text("of ");
                }
                self.cell(7, "consumers_expected", &mark.consumers_expected, false);
                self.cell(6, "jobs", &mark.jobs_in_flight, false);
                if mark.jobs_in_flight > 0 {
                    if !self.json {
                        self.text("oldest ms: ");
                    }
                    self.cell(0, "oldest_job_ms", &mark.oldest_job_ms, false);
                }
                let (phase, left) = match mark.phase {
                    Phase::Running => ("running", None),
                    Phase::Recovering => ("recovering", None),
                    Phase::Draining { left_ms } => ("draining", Some(left_ms)),
                };
                self.cell(12, "phase", &phase, true);
                if let Some(left) = left {
                    if !self.json {
                        self.text("ms left: ");
                    }
                    self.cell(0, "grace_left_ms", &left, false);
                }
            }
        }
        self.cell(0, "generation", &compared, true)
    }

    /// How a record's generation compares with this process's.
    fn compared(&self, written: Option<&Generation>) -> Compared {
        Compared(written.map(|written| self.own.relation(written)))
    }

    pub(crate) fn verdict(&mut self, verdict: &Verdict, dir: &[u8]) {
        let healthy = verdict.is_healthy();
        if self.json {
            self.text(if self.slots.is_some() { "]" } else { "" });
        } else {
            self.text("\n");
        }
        self.line("healthy", "healthy", &healthy, false);
        self.line("verdict", "verdict", &verdict.line(dir), true);
        self.text(if self.json { "}\n" } else { "\n" })
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
