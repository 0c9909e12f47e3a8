//! `--json`: what `--explain` says, as one line of JSON for programs. What was not there is null.

use core::fmt::{self, Display, Write as _};

use tickmark::observe::{Seen, age_ns};
use tickmark::settings::Settings;
use tickmark_protocol::{AnyMark, MaxAge, Phase, Read, Verdict};

use crate::witness::{Witness, encoding, source, strictness};

/// Writes member by member, in the order in which things are seen.
pub(crate) struct Json<'a> {
    out: &'a mut dyn fmt::Write,
    witness: &'a Witness,
    slots: u32,
    header: bool,
}

impl<'a> Json<'a> {
    pub(crate) fn new(out: &'a mut dyn fmt::Write, witness: &'a Witness) -> Self {
        Self {
            out,
            witness,
            slots: 0,
            header: false,
        }
    }

    /// `"name":`, after whatever separates it from what was before.
    fn name(&mut self, before: &str, name: &str) -> fmt::Result {
        self.out.write_str(before)?;
        self.out.write_str("\"")?;
        self.out.write_str(name)?;
        self.out.write_str("\":")
    }

    fn string(&mut self, before: &str, name: &str, value: &dyn Display) -> fmt::Result {
        self.name(before, name)?;
        self.out.write_str("\"")?;
        write!(Escaped(self.out), "{value}")?;
        self.out.write_str("\"")
    }

    fn number(&mut self, name: &str, value: u64) -> fmt::Result {
        self.name(",", name)?;
        write!(self.out, "{value}")
    }

    pub(crate) fn settings(&mut self, settings: &Settings<'_>) -> fmt::Result {
        let dir = Bytes(settings.dir.value.to_bytes());
        let witness = self.witness;
        self.string("{", "dir", &dir)?;
        self.string(",", "dir_from", &source(settings.dir.source))?;
        self.number("max_age_s", settings.max_age.value.as_secs().into())?;
        self.string(",", "max_age_from", &source(settings.max_age.source))?;
        self.string(",", "format", &encoding(settings.format.value))?;
        self.string(",", "format_from", &source(settings.format.source))?;
        self.string(",", "topology", &strictness(settings.strict.value))?;
        self.string(",", "topology_from", &source(settings.strict.source))?;
        self.string(",", "topology_state", &witness.topology.state)?;
        self.string(",", "topology_detail", &witness.topology.detail)
    }

    pub(crate) fn seen(&mut self, seen: &Seen<'_>) -> fmt::Result {
        match seen {
            Seen::Header {
                unsafe_published,
                expected,
                generation,
            } => {
                self.header = true;
                self.name(",", "topology_unsafe_published")?;
                self.out.write_str(if *unsafe_published { "true" } else { "false" })?;
                match expected {
                    Read::Absent => self.out.write_str(",\"expected\":null")?,
                    Read::Failed(fault) => self.string(",", "expected", fault)?,
                    Read::Found(found) => self.number("expected", found.record.processes.into())?,
                }
                match generation {
                    Read::Absent => self.out.write_str(",\"generation\":null")?,
                    Read::Failed(fault) => self.string(",", "generation", fault)?,
                    Read::Found(found) => {
                        let compared = self.witness.relation(Some(&found.record));
                        self.string(",", "generation", &compared)?;
                    }
                }
                self.out.write_str(",\"slots\":[")
            }
            Seen::Slot {
                slot,
                observation,
                problem,
            } => {
                if self.slots > 0 {
                    self.out.write_str(",")?;
                }
                self.slots += 1;
                write!(self.out, "{{\"slot\":{}", slot.get())?;
                match problem {
                    None => self.out.write_str(",\"problem\":null")?,
                    Some(problem) => self.string(",", "problem", problem)?,
                }
                if let Read::Found(mark) = &observation.mark {
                    self.number("age_ms", age_ns(observation, MaxAge::DEFAULT) / 1_000_000)?;
                    self.mark(mark)?;
                }
                self.out.write_str("}")
            }
        }
    }

    fn mark(&mut self, mark: &AnyMark) -> fmt::Result {
        let witness = self.witness;
        self.string(",", "generation", &witness.relation(mark.generation()))?;
        self.string(",", "format", &encoding(mark.encoding()))?;
        match mark {
            AnyMark::Text(mark) => self.number("pid", mark.pid.into()),
            AnyMark::Binary(mark) => {
                self.number("pid", mark.pid.into())?;
                self.number("sequence", mark.sequence)?;
                self.number("wall_ms", mark.wall_ms)?;
                self.number("tick_ms", mark.tick_ms.into())?;
                let phase = match mark.phase {
                    Phase::Running => "running",
                    Phase::Recovering => "recovering",
                    Phase::Draining { left_ms } => {
                        self.number("grace_left_ms", left_ms)?;
                        "draining"
                    }
                };
                self.string(",", "phase", &phase)?;
                self.number("consumers_subscribed", mark.consumers_subscribed.into())?;
                self.number("consumers_expected", mark.consumers_expected.into())?;
                self.number("jobs_in_flight", mark.jobs_in_flight.into())?;
                self.number("oldest_job_ms", mark.oldest_job_ms)
            }
        }
    }

    pub(crate) fn verdict(&mut self, verdict: &Verdict, dir: &[u8]) -> fmt::Result {
        let end = if self.header { "]," } else { "," };
        self.name(end, "healthy")?;
        self.out.write_str(if verdict.is_healthy() { "true" } else { "false" })?;
        self.string(",", "verdict", &verdict.line(dir))?;
        self.out.write_str("}\n")
    }
}

/// The inside of a JSON string.
struct Escaped<'a>(&'a mut dyn fmt::Write);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(|c| c == '"' || c == '\\' || c < ' ') {
            let plain = part.trim_end_matches(|c| c == '"' || c == '\\' || c < ' ');
            self.0.write_str(plain)?;
            for c in part.chars().skip(plain.chars().count()) {
                match c {
                    '"' => self.0.write_str("\\\"")?,
                    '\\' => self.0.write_str("\\\\")?,
                    _ => write!(self.0, "\\u{:04x}", u32::from(c))?,
                }
            }
        }
        Ok(())
    }
}

/// A path, whose bytes need not be text.
struct Bytes<'a>(&'a [u8]);

impl Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
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
        assert_eq!(escaped("\n\t\u{1}x\u{7f}"), "\\u000a\\u0009\\u0001x\u{7f}");
        assert_eq!(escaped(""), "");
        assert_eq!(escaped("\"\""), "\\\"\\\"");
    }

    #[test]
    fn a_path_that_is_not_text_is_shown() {
        let mut out = String::new();
        write!(out, "{}", Bytes(b"/a\xffb")).unwrap();
        assert_eq!(out, "/a\u{fffd}b");
    }
}
