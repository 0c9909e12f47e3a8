//! The table, for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::answer::Stop;
use crate::run::Outcome;

pub(crate) fn text(outcome: &Outcome) -> String {
    let mut rows: Vec<[String; 5]> =
        vec![["", "scenario", "expected", "observed", "answer"].map(str::to_owned)];
    for answer in &outcome.answers {
        let name = format!("{} ({:.0} s)", answer.name, answer.took.as_secs_f64());
        let number = answer.number.to_string();
        match &answer.report {
            Ok(report) => {
                rows.push([number, name, String::new(), String::new(), answer.word().to_owned()]);
                for line in &report.lines {
                    let mark = if line.holds { "" } else { "not so" };
                    rows.push([
                        String::new(),
                        format!("  {}", line.what),
                        line.expected.clone(),
                        line.observed.clone(),
                        mark.to_owned(),
                    ]);
                }
            }
            Err(stop) => {
                let why = match stop {
                    Stop::Skipped(reason) => reason.clone(),
                    other => other.to_string(),
                };
                rows.push([number, name, String::new(), why, answer.word().to_owned()]);
            }
        }
    }
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            // A long one stands out instead of widening all others.
            *width = (*width).max(cell.chars().count().min(56));
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _infallible = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    let count = |word| outcome.answers.iter().filter(|answer| answer.word() == word).count();
    let _infallible = writeln!(
        text,
        "\n{} passed, {} skipped, {} failed in {:.0} s ({} clock, {} probe; Kubernetes {}, Linux {}, {})",
        count("pass"),
        count("skipped"),
        count("fail"),
        outcome.took.as_secs_f64(),
        outcome.pace.name(),
        outcome.probe,
        outcome.cluster.kubernetes,
        outcome.cluster.kernel,
        outcome.cluster.runtime,
    );
    // Below the table, which may have scrolled away.
    for answer in &outcome.answers {
        if let Some(late) = &answer.first {
            let (number, name) = (answer.number, answer.name);
            let _infallible = writeln!(
                text,
                "late beside the others, and played once more: {number} {name}: {late}"
            );
        }
        if answer.word() == "fail" {
            let _infallible =
                writeln!(text, "failed: {} {}: {}", answer.number, answer.name, answer.why());
        }
    }
    text
}

pub(crate) fn json(outcome: &Outcome) -> Value {
    let scenarios: Vec<Value> = outcome
        .answers
        .iter()
        .map(|answer| {
            let lines: Vec<Value> = answer
                .report
                .iter()
                .flat_map(|report| &report.lines)
                .map(|line| {
                    json!({
                        "what": line.what,
                        "expected": line.expected,
                        "observed": line.observed,
                        "holds": line.holds,
                    })
                })
                .collect();
            let why = answer.report.as_ref().err().map(ToString::to_string);
            json!({
                "scenario": answer.number,
                "name": answer.name,
                "answer": answer.word(),
                "why": why,
                "late_beside_others": answer.first,
                "seconds": answer.took.as_secs(),
                "lines": lines,
            })
        })
        .collect();
    json!({
        "clock": outcome.pace.name(),
        "probe": outcome.probe,
        "kubernetes": outcome.cluster.kubernetes,
        "kernel": outcome.cluster.kernel,
        "runtime": outcome.cluster.runtime,
        "seconds": outcome.took.as_secs(),
        "scenarios": scenarios,
    })
}
