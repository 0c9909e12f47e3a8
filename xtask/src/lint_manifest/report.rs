//! The findings, for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::finding::{Finding, Level};
use super::workload::Skipped;

/// All that a run came to.
#[derive(Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// The pods that leave or read marks.
    pub(super) checked: usize,
    /// `Deployment/web`, of pods that have nothing to do with marks.
    pub(super) unrelated: Vec<Skipped>,
    /// Objects that are no pods.
    pub(super) skipped: Vec<Skipped>,
}

impl Report {
    pub(super) fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    pub(super) fn json(&self) -> Value {
        let passed_over = |skipped: &Skipped| {
            json!({
                "file": skipped.file,
                "document": skipped.document,
                "object": skipped.what,
                "why": skipped.why,
            })
        };
        json!({
            "checked": self.checked,
            "errors": self.count(Level::Error),
            "warnings": self.count(Level::Warning),
            "notes": self.count(Level::Note),
            "findings": self.findings,
            "skipped": self.skipped.iter().chain(&self.unrelated).map(passed_over).collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self, colour: bool) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let _infallible = write_finding(&mut text, finding, colour);
        }
        for skipped in self.skipped.iter().chain(&self.unrelated) {
            let Skipped { file, document, what, why } = skipped;
            let _infallible = writeln!(text, "skipped {file}:{document} {what}: {why}");
        }
        let _infallible = writeln!(text, "{}", self.summary());
        text
    }

    fn summary(&self) -> String {
        if self.checked == 0 {
            return "nothing was checked: no pod here has TICKMARK_ variables or a probe of tickmark's"
                .to_owned();
        }
        let counted = |count: usize, word: &str| {
            format!("{count} {word}{}", if count == 1 { "" } else { "s" })
        };
        format!(
            "{} checked: {}, {}, {}",
            counted(self.checked, "workload"),
            counted(self.count(Level::Error), "error"),
            counted(self.count(Level::Warning), "warning"),
            counted(self.count(Level::Note), "note")
        )
    }
}

fn write_finding(text: &mut String, finding: &Finding, colour: bool) -> std::fmt::Result {
    let place = &finding.place;
    let (before, after) = match (colour, finding.level) {
        (false, _) => ("", ""),
        (true, Level::Error) => ("\x1b[1;31m", "\x1b[0m"),
        (true, Level::Warning) => ("\x1b[1;33m", "\x1b[0m"),
        (true, Level::Note) => ("\x1b[1;36m", "\x1b[0m"),
    };
    write!(
        text,
        "{before}{}[{}]{after} {}:{} line {}: {}/{}",
        finding.level.name(),
        finding.rule,
        place.file,
        place.document,
        place.line,
        place.kind,
        place.name
    )?;
    if let Some(container) = &place.container {
        write!(text, ", container {container}")?;
    }
    writeln!(text, "\n  at   {}\n  what {}\n  fix  {}\n", place.path, finding.what, finding.fix)
}
