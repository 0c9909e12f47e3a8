//! `--explain` and `--json`: the verdict and what it rests on, as a table for people or as one line of
//! JSON. One walk writes both, so that neither says what the other does not, and both fit.

use core::fmt::{self, Display, Write as _};

use rustix::fd::OwnedFd;
use tickmark::observe::{Seen, age_ns};
use tickmark::procfs::Evidence;
use tickmark::settings::{Settings, Source};
use tickmark_protocol::{
    AnyMark, Detail, Encoding, Generation, MaxAge, Phase, Read, Relation, Topology, Verdict,
    classify,
};

use crate::arguments::Lossy;

/// Writes member by member, in the order in which things are seen.
pub(crate) struct Report<'a> {
    out: &'a mut dyn fmt::Write,
    json: bool,
    /// What this process can say about its container, read whole. The verdict reads its own, lazily,
    /// so that explaining a verdict cannot change it.
    own: Generation,
    topology: Topology,
    slots: Option<u32>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        out: &'a mut dyn fmt::Write,
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

    fn text(&mut self, text: &str) -> fmt::Result {
        self.out.write_str(text)
    }

    /// For people a line that begins with `label`, for programs a member `name`.
    fn line(&mut self, label: &str, name: &str, value: &dyn Display, quoted: bool) -> fmt::Result {
        if self.json {
            return self.member(name, value, quoted);
        }
        self.text("\n")?;
        self.column(12, &label)?;
        write!(self.out, "{value}")
    }

    fn setting(
        &mut self,
        label: &str,
        names: [&str; 2],
        value: &dyn Display,
        from: Source,
        quoted: bool,
    ) -> fmt::Result {
        let from = match from {
            Source::Default => "default",
            Source::Environment(name) => name,
            Source::Flag => "flag",
        };
        self.line(label, names[0], value, quoted)?;
        if self.json {
            return self.member(names[1], &from, true);
        }
        write!(self.out, " ({from})")
    }

    /// For people a cell of the slots' table, for programs a member.
    fn cell(&mut self, width: usize, name: &str, value: &dyn Display, quoted: bool) -> fmt::Result {
        if self.json {
            return self.member(name, value, quoted);
        }
        self.column(width, value)
    }

    fn member(&mut self, name: &str, value: &dyn Display, quoted: bool) -> fmt::Result {
        let quote = if quoted { "\"" } else { "" };
        write!(self.out, ",\"{name}\":{quote}")?;
        write!(Escaped(self.out), "{value}")?;
        self.text(quote)
    }

    fn column(&mut self, width: usize, value: &dyn Display) -> fmt::Result {
        let mut counted = Counted(self.out, 0);
        write!(counted, "{value} ")?;
        for _ in counted.1..width {
            self.text(" ")?;
        }
        Ok(())
    }

    pub(crate) fn settings(&mut self, settings: &Settings<'_>) -> fmt::Result {
        // The opening brace needs a first member, so that every other can begin with a comma.
        self.text(if self.json { "{\"version\":\"" } else { "tickmark-probe " })?;
        self.text(env!("CARGO_PKG_VERSION"))?;
        if self.json {
            self.text("\"")?;
        }
        let (dir, max_age) = (&settings.dir, &settings.max_age);
        let (strict, format) = (&settings.strict, &settings.format);
        self.setting(
            "directory",
            ["dir", "dir_from"],
            &Lossy(dir.value.to_bytes()),
            dir.source,
            true,
        )?;
        let seconds = max_age.value.as_secs();
        self.setting("max age, s", ["max_age_s", "max_age_from"], &seconds, max_age.source, false)?;
        self.setting(
            "format",
            ["format", "format_from"],
            &encoding(format.value),
            format.source,
            true,
        )?;
        let strictness = if strict.value { "strict" } else { "auto" };
        self.setting("topology", ["topology", "topology_from"], &strictness, strict.source, true)?;
        let Topology { state, detail, .. } = self.topology;
        self.line("  found", "topology_state", &state, true)?;
        if self.json || !matches!(detail, Detail::None) {
            self.line("  because", "topology_detail", &detail, true)?;
        }
        Ok(())
    }

    pub(crate) fn seen(&mut self, seen: &Seen<'_>) -> fmt::Result {
        match seen {
            Seen::Header { unsafe_published, expected, generation } => {
                self.line("unsafe mark", "topology_unsafe_published", unsafe_published, false)?;
                let (expected, quoted): (&dyn Display, bool) = match expected {
                    Read::Absent => (&"null", false),
                    Read::Failed(fault) => (fault, true),
                    Read::Found(found) => (&found.record.processes, false),
                };
                self.line("expected", "expected", expected, quoted)?;
                let compared;
                let (generation, quoted): (&dyn Display, bool) = match generation {
                    Read::Absent => (&"null", false),
                    Read::Failed(fault) => (fault, true),
                    Read::Found(found) => {
                        compared = self.compared(Some(&found.record));
                        (&compared, true)
                    }
                };
                self.line("generation", "generation", generation, quoted)?;
                self.slots = Some(0);
                if self.json {
                    self.text(",\"slots\":[")?;
                }
                Ok(())
            }
            Seen::Slot { slot, observation, problem } => {
                if self.slots == Some(0) && !self.json {
                    self.text(
                        "\n\nslot  age, ms   format  pid       consumers   jobs  phase       generation",
                    )?;
                }
                let separator = match (self.json, self.slots) {
                    (false, _) => "\n",
                    (true, Some(0)) => "{\"slot\":",
                    (true, _) => ",{\"slot\":",
                };
                self.slots = Some(1);
                self.text(separator)?;
                self.column(6, &slot.get())?;
                if let Read::Found(mark) = &observation.mark {
                    let age = age_ns(observation, MaxAge::DEFAULT) / 1_000_000;
                    self.cell(10, "age_ms", &age, false)?;
                    self.mark(mark)?;
                }
                if let Some(problem) = problem {
                    self.cell(0, "problem", problem, true)?;
                }
                self.text(if self.json { "}" } else { "" })
            }
        }
    }

    fn mark(&mut self, mark: &AnyMark) -> fmt::Result {
        let compared = self.compared(mark.generation());
        self.cell(8, "format", &encoding(mark.encoding()), true)?;
        match mark {
            AnyMark::Text(mark) => {
                self.cell(40, "pid", &mark.pid, false)?;
            }
            AnyMark::Binary(mark) => {
                self.cell(10, "pid", &mark.pid, false)?;
                self.cell(2, "consumers", &mark.consumers_subscribed, false)?;
                if !self.json {
                    self.text("of ")?;
                }
                self.cell(7, "consumers_expected", &mark.consumers_expected, false)?;
                self.cell(6, "jobs", &mark.jobs_in_flight, false)?;
                if mark.jobs_in_flight > 0 {
                    if !self.json {
                        self.text("oldest ms: ")?;
                    }
                    self.cell(0, "oldest_job_ms", &mark.oldest_job_ms, false)?;
                }
                let (phase, left) = match mark.phase {
                    Phase::Running => ("running", None),
                    Phase::Recovering => ("recovering", None),
                    Phase::Draining { left_ms } => ("draining", Some(left_ms)),
                };
                self.cell(12, "phase", &phase, true)?;
                if let Some(left) = left {
                    if !self.json {
                        self.text("ms left: ")?;
                    }
                    self.cell(0, "grace_left_ms", &left, false)?;
                }
            }
        }
        self.cell(0, "generation", &compared, true)
    }

    /// How a record's generation compares with this process's.
    fn compared(&self, written: Option<&Generation>) -> Compared {
        Compared(written.map(|written| self.own.relation(written)))
    }

    pub(crate) fn verdict(&mut self, verdict: &Verdict, dir: &[u8]) -> fmt::Result {
        let healthy = verdict.is_healthy();
        if self.json {
            self.text(if self.slots.is_some() { "]" } else { "" })?;
        } else {
            self.text("\n")?;
        }
        self.line("healthy", "healthy", &healthy, false)?;
        self.line("verdict", "verdict", &verdict.line(dir), true)?;
        self.text(if self.json { "}\n" } else { "\n" })
    }
}

/// A comparison in words, with the evidence that decided.
struct Compared(Option<Relation>);

impl Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, evidence) = match &self.0 {
            None => ("none", None),
            Some(Relation::Incomparable) => ("incomparable", None),
            Some(Relation::Same(evidence)) => ("same by ", Some(evidence)),
            Some(Relation::Different(evidence)) => ("different by ", Some(evidence)),
        };
        f.write_str(words)?;
        evidence.map_or(Ok(()), |evidence| evidence.fmt(f))
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
struct Escaped<'a>(&'a mut dyn fmt::Write);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        while let Some(at) = text.bytes().position(|b| b == b'"' || b == b'\\' || b < b' ') {
            let (plain, rest) = text.split_at(at);
            self.0.write_str(plain)?;
            // One ASCII character, so the rest is whole too.
            let (character, rest) = rest.split_at(1);
            text = rest;
            match character {
                "\"" => self.0.write_str("\\\"")?,
                "\\" => self.0.write_str("\\\\")?,
                // A control character has no place in any of these texts but a path.
                _ => self.0.write_str("\\ufffd")?,
            }
        }
        self.0.write_str(text)
    }
}

/// Counts the characters that pass.
struct Counted<'a>(&'a mut dyn fmt::Write, usize);

impl fmt::Write for Counted<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // All that is padded is ASCII.
        self.1 += text.len();
        self.0.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    fn escaped(text: &str) -> String {
        let mut out = String::new();
        write!(Escaped(&mut out), "{text}").unwrap();
        out
    }

    #[test]
    fn a_string_is_escaped() {
        assert_eq!(escaped("plain … ü"), "plain … ü");
        assert_eq!(escaped("a\"b\\c"), "a\\\"b\\\\c");
        assert_eq!(escaped("a\nb"), "a\\ufffdb");
        assert_eq!(escaped(""), "");
        assert_eq!(escaped("\"\""), "\\\"\\\"");
    }

    #[test]
    fn a_column_is_padded_and_never_cut() {
        let mut out = String::new();
        let mut counted = Counted(&mut out, 0);
        write!(counted, "{}", "abc").unwrap();
        assert_eq!(counted.1, 3);
    }
}
