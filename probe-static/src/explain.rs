//! `--explain`: the verdict and what it rests on, as a table for people.

use core::fmt;

use tickmark::observe::{Seen, age_ns};
use tickmark::settings::Settings;
use tickmark_protocol::{AnyMark, MaxAge, Phase, Read, SlotObservation, Verdict};

use crate::witness::{Witness, encoding, source, strictness};

/// Writes line by line, in the order in which things are seen.
pub(crate) struct Explain<'a> {
    out: &'a mut dyn fmt::Write,
    witness: &'a Witness,
    slots: u32,
}

impl<'a> Explain<'a> {
    pub(crate) fn new(out: &'a mut dyn fmt::Write, witness: &'a Witness) -> Self {
        Self {
            out,
            witness,
            slots: 0,
        }
    }

    pub(crate) fn settings(&mut self, settings: &Settings<'_>) -> fmt::Result {
        self.out.write_str("directory   ")?;
        for chunk in settings.dir.value.to_bytes().utf8_chunks() {
            self.out.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                self.out.write_str("?")?;
            }
        }
        let max_age = settings.max_age;
        let strict = settings.strict;
        let format = settings.format;
        let topology = &self.witness.topology;
        write!(
            self.out,
            " ({})\nmax age     {}s ({})\nformat      {} ({})\ntopology    {} ({}): {}",
            source(settings.dir.source),
            max_age.value.as_secs(),
            source(max_age.source),
            encoding(format.value),
            source(format.source),
            strictness(strict.value),
            source(strict.source),
            topology.state,
        )?;
        if self.witness.has_detail() {
            write!(self.out, " ({})", topology.detail)?;
        }
        self.out.write_str("\n")
    }

    pub(crate) fn seen(&mut self, seen: &Seen<'_>) -> fmt::Result {
        match seen {
            Seen::Header {
                unsafe_published,
                expected,
                generation,
            } => {
                if *unsafe_published {
                    self.out.write_str("published   topology-unsafe\n")?;
                }
                self.out.write_str("expected    ")?;
                match expected {
                    Read::Absent => self.out.write_str("absent")?,
                    Read::Failed(fault) => write!(self.out, "{fault}")?,
                    Read::Found(found) => write!(self.out, "{}", found.record.processes)?,
                }
                self.out.write_str("\ngeneration  ")?;
                match generation {
                    Read::Absent => self.out.write_str("absent")?,
                    Read::Failed(fault) => write!(self.out, "{fault}")?,
                    Read::Found(found) => {
                        let compared = self.witness.relation(Some(&found.record));
                        write!(self.out, "{compared}")?;
                    }
                }
                self.out.write_str("\n")
            }
            Seen::Slot {
                slot,
                observation,
                problem,
            } => {
                if self.slots == 0 {
                    self.out
                        .write_str("\nslot  age ms    pid       consumers  jobs  phase, generation\n")?;
                }
                self.slots += 1;
                write!(self.out, "{:<6}", slot.get())?;
                self.mark(observation)?;
                if let Some(problem) = problem {
                    write!(self.out, "  {problem}")?;
                }
                self.out.write_str("\n")
            }
        }
    }

    fn mark(&mut self, observation: &SlotObservation) -> fmt::Result {
        let Read::Found(mark) = &observation.mark else {
            return Ok(());
        };
        let age = age_ns(observation, MaxAge::DEFAULT) / 1_000_000;
        write!(self.out, "{age:<10}")?;
        match mark {
            AnyMark::Binary(mark) => {
                let (subscribed, expected) = (mark.consumers_subscribed, mark.consumers_expected);
                write!(
                    self.out,
                    "{:<10}{subscribed} of {expected:<6} {:<5} ",
                    mark.pid, mark.jobs_in_flight
                )?;
                if mark.jobs_in_flight > 0 {
                    write!(self.out, "oldest {} ms, ", mark.oldest_job_ms)?;
                }
                match mark.phase {
                    Phase::Running => self.out.write_str("running")?,
                    Phase::Recovering => self.out.write_str("recovering")?,
                    Phase::Draining { left_ms } => {
                        write!(self.out, "draining, {left_ms} ms left")?;
                    }
                }
            }
            AnyMark::Text(mark) => write!(self.out, "{:<10}-          -     text", mark.pid)?,
        }
        write!(self.out, ", {}", self.witness.relation(mark.generation()))
    }

    pub(crate) fn verdict(&mut self, verdict: &Verdict, dir: &[u8]) -> fmt::Result {
        let healthy = if verdict.is_healthy() { "healthy" } else { "not healthy" };
        writeln!(self.out, "\n{healthy}: {}", verdict.line(dir))
    }
}
