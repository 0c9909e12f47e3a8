//! VERIFYING.md's recorded values. What was measured is kept as JSON under `recorded/`, one file for
//! each clock and kind of probe, and the document's blocks are made from all of them: between
//! `<!-- recorded: NAME -->` and `<!-- end -->`, and nowhere else.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::answer::{Doing as _, Stop};
use crate::run::Outcome;
use crate::table;

const BEGIN: &str = "<!-- recorded: ";
const END: &str = "<!-- end -->";

/// The files, and what their columns are called.
const COLUMNS: [(&str, &str); 4] = [
    ("short.json", "short"),
    ("full.json", "full"),
    ("short-http-get.json", "short, httpGet"),
    ("full-http-get.json", "full, httpGet"),
];
const KERNELS: &str = "kernels.json";

/// Of a scenario that another run played than the one whose file it is in.
const ANOTHER: &str = "another_run";
/// How many the run played whose file it is.
const PLAYED: &str = "played";

/// Records what a run measured. Scenarios that it did not play keep what they have.
pub(crate) fn write(outcome: &Outcome) -> Result<(), Stop> {
    let suffix = match outcome.probe {
        "exec" => String::new(),
        other => format!("-{other}"),
    };
    let file = directory().join(format!("{}{suffix}.json", outcome.pace.name()));
    let mut new = table::json(outcome);
    if let Ok(old) = fs::read_to_string(&file) {
        let old: Value =
            serde_json::from_str(&old).doing(format_args!("read {}", file.display()))?;
        new = merged(old, new);
    }
    fs::create_dir_all(directory()).doing("make tests/k8s/recorded")?;
    let text = serde_json::to_string_pretty(&new).doing("write JSON")?;
    fs::write(&file, text + "\n").doing(format_args!("write {}", file.display()))?;
    render()
}

/// Makes the document's blocks anew from what is recorded.
pub(crate) fn render() -> Result<(), Stop> {
    let document = document();
    let reading = format!("read {}", document.display());
    let text = fs::read_to_string(&document).doing(reading)?;
    let new = filled(&text, &recorded()?)?;
    fs::write(&document, new).doing(format_args!("write {}", document.display()))
}

/// Both, each scenario as it was played last. What is said of the run as a whole is the one's that
/// played more of them; what the other played is marked, so that no run is said to have passed more
/// than it did.
fn merged(old: Value, new: Value) -> Value {
    let played = |run: &Value| {
        let all = || scenarios(run).count();
        run[PLAYED].as_u64().and_then(|played| played.try_into().ok()).unwrap_or_else(all)
    };
    let newer = played(&new) >= played(&old);
    let marked = |one: &Value| {
        let mut one = one.clone();
        one[ANOTHER] = json!(true);
        one
    };
    let kept = scenarios(&old).filter(|one| {
        let same = |other: &Value| other["scenario"] == one["scenario"];
        !scenarios(&new).any(same)
    });
    let mut all: Vec<Value> = if newer {
        scenarios(&new).cloned().chain(kept.map(marked)).collect()
    } else {
        scenarios(&new).map(marked).chain(kept.cloned()).collect()
    };
    all.sort_by_key(|scenario| scenario["scenario"].as_u64());
    let mut run = if newer { new } else { old };
    run[PLAYED] = played(&run).into();
    run["scenarios"] = all.into();
    run
}

fn scenarios(run: &Value) -> impl Iterator<Item = &Value> {
    run["scenarios"].as_array().into_iter().flatten()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> PathBuf {
    root().join("VERIFYING.md")
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded")
}

/// By file name; what is not there is left out.
fn recorded() -> Result<Vec<(String, Value)>, Stop> {
    let mut found = Vec::new();
    for name in COLUMNS.map(|(name, _)| name).into_iter().chain([KERNELS]) {
        let path = directory().join(name);
        if let Ok(text) = fs::read_to_string(&path) {
            let value =
                serde_json::from_str(&text).doing(format_args!("read {}", path.display()))?;
            found.push((name.to_owned(), value));
        }
    }
    Ok(found)
}

/// The document with its blocks filled.
fn filled(document: &str, recorded: &[(String, Value)]) -> Result<String, Stop> {
    let mut text = String::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        text += line;
        text += "\n";
        let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        text += &block(name, recorded)?;
        let end = lines.by_ref().find(|line| *line == END);
        text += end.ok_or_else(|| Stop::Failed(format!("VERIFYING.md: {name} has no {END}")))?;
        text += "\n";
    }
    Ok(text)
}

fn block(name: &str, recorded: &[(String, Value)]) -> Result<String, Stop> {
    match name {
        "runs" => Ok(runs(recorded)),
        "kernels" => Ok(kernels(recorded)),
        number => {
            let number: u64 = number.parse().map_err(|_| {
                Stop::Failed(format!("VERIFYING.md: there is nothing recorded as {number}"))
            })?;
            Ok(scenario(number, recorded))
        }
    }
}

/// The columns that there are: title, and what was recorded.
fn columns(recorded: &[(String, Value)]) -> Vec<(&'static str, &Value)> {
    COLUMNS
        .iter()
        .filter_map(|(file, title)| {
            recorded.iter().find(|(name, _)| name == file).map(|(_, value)| (*title, value))
        })
        .collect()
}

fn runs(recorded: &[(String, Value)]) -> String {
    let mut text = "\n| clock | Kubernetes | Linux | runtime | passed | all of it took | recorded in another run |\n|---|---|---|---|---|---|---|\n".to_owned();
    for (title, run) in columns(recorded) {
        let (apart, played): (Vec<&Value>, Vec<_>) =
            scenarios(run).partition(|one| one[ANOTHER] == true);
        let passed = played.iter().filter(|one| one["answer"] == "pass").count();
        let apart = match apart.len() {
            0 => "none".to_owned(),
            _ => apart.iter().map(|one| cell(&one["scenario"])).collect::<Vec<_>>().join(", "),
        };
        text += &row(&[
            title.to_owned(),
            cell(&run["kubernetes"]),
            cell(&run["kernel"]),
            cell(&run["runtime"]),
            format!("{passed} of {}", played.len()),
            format!("{} s", run["seconds"]),
            apart,
        ]);
    }
    text + "\n"
}

fn scenario(number: u64, recorded: &[(String, Value)]) -> String {
    let played: Vec<(&str, &Value)> = columns(recorded)
        .into_iter()
        .filter_map(|(title, run)| {
            let scenarios = run["scenarios"].as_array()?;
            scenarios.iter().find(|one| one["scenario"] == number).map(|one| (title, one))
        })
        .collect();
    if played.is_empty() {
        return "\nNot recorded yet.\n\n".to_owned();
    }
    let mut head = vec![String::new()];
    for (title, _) in &played {
        head.extend([format!("expected, {title}"), format!("recorded, {title}")]);
    }
    let mut text = format!("\n{}{}", row(&head), "|---".repeat(head.len()) + "|\n");
    let mut names: Vec<&Value> = Vec::new();
    for (_, one) in &played {
        for line in one["lines"].as_array().into_iter().flatten() {
            if !names.contains(&&line["what"]) {
                names.push(&line["what"]);
            }
        }
    }
    for name in names {
        let mut cells = vec![cell(name)];
        for (_, one) in &played {
            let lines = one["lines"].as_array();
            let line = lines.into_iter().flatten().find(|line| line["what"] == *name);
            let line = line.unwrap_or(&Value::Null);
            cells.extend([cell(&line["expected"]), cell(&line["observed"])]);
        }
        text += &row(&cells);
    }
    let mut cells = vec!["**answer**".to_owned()];
    for (_, one) in &played {
        let why = one["why"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        cells.extend([String::new(), format!("**{}**{why}", cell(&one["answer"]))]);
    }
    text + &row(&cells) + "\n"
}

fn kernels(recorded: &[(String, Value)]) -> String {
    let Some((_, rows)) = recorded.iter().find(|(name, _)| name == KERNELS) else {
        return "\nNot recorded yet.\n\n".to_owned();
    };
    let heads = ["kernel", "PIDs", "credentials", "mode", "found", "the probe", "evidence"];
    let mut text = format!("\n{}{}", row(&heads.map(str::to_owned)), "|---".repeat(7) + "|\n");
    for one in rows["rows"].as_array().into_iter().flatten() {
        let keys = ["kernel", "pids", "credentials", "mode", "state", "line", "evidence"];
        text += &row(&keys.map(|key| cell(&one[key])));
    }
    text += "\n";
    for series in rows["restarts"].as_array().into_iter().flatten() {
        text += &format!("* {}\n", cell(series));
    }
    text + "\n"
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn cell(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if value.is_null() { String::new() } else { text.replace('|', "\\|").replace('\n', " ") }
}

/// What the container tests print, made into a record: `cargo xtask verify --kernels`.
pub(crate) fn kernel_rows(printed: &str) -> Value {
    let mut rows: Vec<Value> = printed
        .lines()
        .filter_map(|line| serde_json::from_str(line.split_once("evidence-row: ")?.1).ok())
        .collect();
    rows.sort_by_key(|row| ["kernel", "pids", "credentials", "mode"].map(|key| cell(&row[key])));
    rows.dedup();
    let mut restarts: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("restarts told apart"))
        .map(str::trim)
        .collect();
    restarts.sort_unstable();
    json!({ "rows": rows, "restarts": restarts })
}

/// Records what the container tests printed.
pub(crate) fn write_kernels(printed: &str) -> Result<(), Stop> {
    let rows = kernel_rows(printed);
    if rows["rows"].as_array().is_none_or(Vec::is_empty) {
        return Err(Stop::failed("the container tests printed no row"));
    }
    let file = directory().join(KERNELS);
    let text = serde_json::to_string_pretty(&rows).doing("write JSON")?;
    fs::write(&file, text + "\n").doing(format_args!("write {}", file.display()))?;
    render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(observed: &str) -> Value {
        json!({
            "kubernetes": "v1", "kernel": "6.18", "runtime": "r", "seconds": 9,
            "scenarios": [{
                "scenario": 2, "name": "a stale mark", "answer": "pass", "why": null, "seconds": 3,
                "lines": [{ "what": "killed", "expected": "8 to 11 s", "observed": observed }],
            }],
        })
    }

    #[test]
    fn only_what_is_between_the_markers_is_rewritten() {
        let document = "# A\n<!-- recorded: 2 -->\nold\n<!-- end -->\nB: 9 s\n";
        let recorded = [("short.json".to_owned(), run("9 s"))];
        let new = filled(document, &recorded).unwrap();
        assert!(new.starts_with("# A\n<!-- recorded: 2 -->\n"));
        assert!(new.ends_with("<!-- end -->\nB: 9 s\n"));
        assert!(new.contains("| killed | 8 to 11 s | 9 s |") && !new.contains("old"));
        assert_eq!(filled(&new, &recorded).unwrap(), new, "a second time changes nothing");
    }

    #[test]
    fn a_marker_without_an_end_is_an_error() {
        assert!(filled("<!-- recorded: 2 -->\nold\n", &[]).is_err());
        assert!(filled("<!-- recorded: other -->\n<!-- end -->\n", &[]).is_err());
    }

    #[test]
    fn scenarios_that_were_not_played_keep_what_they_have_and_say_so() {
        let whole = |observed| {
            let mut run = run(observed);
            let mut other = run["scenarios"][0].clone();
            other["scenario"] = json!(7);
            run["scenarios"].as_array_mut().unwrap().push(other);
            run
        };
        let part = |observed, number: u64| {
            let mut run = run(observed);
            run["scenarios"][0]["scenario"] = json!(number);
            run["seconds"] = json!(1);
            run
        };
        let row = |run: &Value| {
            let text = runs(&[("short.json".to_owned(), run.clone())]);
            text.lines().last().unwrap().to_owned() + text.lines().nth(3).unwrap()
        };
        // A part is put into the whole, whose row stays its own.
        let after = merged(whole("8 s"), part("10 s", 2));
        assert_eq!(after["scenarios"][0]["lines"][0]["observed"], "10 s");
        assert_eq!(after["scenarios"][1]["lines"][0]["observed"], "8 s");
        assert!(row(&after).ends_with("| 1 of 1 | 9 s | 2 |"), "{}", row(&after));
        let after = merged(after, part("11 s", 18));
        assert!(row(&after).ends_with("| 1 of 1 | 9 s | 2, 18 |"), "{}", row(&after));
        // A whole one takes the row, and what it did not play is another's.
        let after = merged(after, whole("12 s"));
        assert!(row(&after).ends_with("| 2 of 2 | 9 s | 18 |"), "{}", row(&after));
        assert_eq!(after["scenarios"][0]["lines"][0]["observed"], "12 s");
    }

    #[test]
    fn rows_of_both_kernels_are_found_in_what_the_tests_print() {
        let row = |kernel: &str| json!({ "kernel": kernel, "pids": "host", "credentials": "c", "mode": "auto" });
        let printed = format!(
            "noise\nevidence-row: {}\nLinux 6.1: evidence-row: {}\n10 restarts told apart\n",
            row("6.18"),
            row("6.1")
        );
        let found = kernel_rows(&printed);
        assert_eq!(found["rows"], json!([row("6.1"), row("6.18")]));
        assert_eq!(found["restarts"], json!(["10 restarts told apart"]));
    }

    #[test]
    fn the_document_shows_what_is_recorded() {
        let text = fs::read_to_string(document()).unwrap();
        let new = filled(&text, &recorded().unwrap()).unwrap();
        assert_eq!(text, new, "run `cargo xtask verify --render`");
        for number in 1..=18 {
            assert!(text.contains(&format!("{BEGIN}{number} -->")), "no block for {number}");
            assert!(text.contains(&format!("\n## {number}. ")), "no section for {number}");
        }
    }
}
