//! What the documents print: commands to run, and Containerfiles to build. Everything that looks like a
//! command is taken; what to do with it is decided elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::site::repository;

/// A command and where it is printed.
#[derive(Debug)]
pub(crate) struct Printed {
    /// `docs/KUBERNETES.md:145`.
    pub(crate) place: String,
    pub(crate) command: Command,
}

#[derive(Debug)]
pub(crate) enum Command {
    /// A line for a shell, without its comment.
    Line(String),
    /// The `command` of a manifest, or of the text around one.
    List(Vec<String>),
}

/// Every Markdown file of the repository.
fn documents() -> Vec<PathBuf> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                // What was built, and the fuzzers', which are for the repository and no image.
                let built = ["target", "dist", "fuzz"];
                let hidden = name.to_string_lossy().starts_with('.');
                if !hidden && !built.iter().any(|built| name == **built) {
                    walk(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(repository(), &mut found);
    found.sort();
    found
}

/// Sections whose commands another test runs as they stand there.
const RUN_BY: [(&str, &str, &str); 1] =
    [("README.md", "## Without Kubernetes", "activator/tests/readme.rs")];

/// A fenced block, or a run of text between two.
struct Part<'t> {
    line: usize,
    /// The section it is in.
    heading: &'t str,
    /// The fence's language; `None` of text.
    language: Option<&'t str>,
    text: String,
}

fn parts(document: &str) -> Vec<Part<'_>> {
    let mut heading = "";
    let mut parts = vec![Part { line: 1, heading, language: None, text: String::new() }];
    for (index, line) in document.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        let inside = parts.last().is_some_and(|part| part.language.is_some());
        if let Some(language) = fence {
            let language = (!inside).then(|| language.split([',', ' ']).next().unwrap_or(""));
            parts.push(Part { line: index + 2, heading, language, text: String::new() });
        } else if !inside && line.starts_with("## ") {
            heading = line;
            parts.push(Part { line: index + 2, heading, language: None, text: String::new() });
        } else if let Some(part) = parts.last_mut() {
            part.text += line;
            part.text.push('\n');
        }
    }
    parts
}

/// Every command that a document prints.
pub(crate) fn commands() -> Vec<Printed> {
    each_part(|part, at, found| match part.language {
        None => inline(part, at, found),
        Some("yaml" | "yml") => manifest(part, at, found),
        Some("sh" | "bash" | "shell" | "console") => {
            for (index, line) in part.text.lines().enumerate() {
                lines(&at(part.line + index), line, found);
            }
        }
        // Of a session, what was typed.
        Some("" | "text") => {
            for (index, line) in part.text.lines().enumerate() {
                if let Some(typed) = line.trim_start().strip_prefix("$ ") {
                    lines(&at(part.line + index), typed, found);
                }
            }
        }
        Some(_) => {}
    })
}

/// Every Containerfile, or part of one.
pub(crate) fn containerfiles() -> Vec<(String, String)> {
    each_part(|part, at, found| {
        if let Some("dockerfile" | "containerfile" | "Dockerfile") = part.language {
            found.push((at(part.line), part.text.clone()));
        }
    })
}

fn each_part<T>(take: impl Fn(&Part<'_>, &dyn Fn(usize) -> String, &mut Vec<T>)) -> Vec<T> {
    let mut found = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).expect("a document");
        let shown = path.strip_prefix(repository()).unwrap_or(&path).display();
        for part in parts(&text) {
            if !is_run_elsewhere(&shown.to_string(), part.heading) {
                take(&part, &|line| format!("{shown}:{line}"), &mut found);
            }
        }
    }
    found
}

/// A test that names the section is one that runs it.
fn is_run_elsewhere(document: &str, heading: &str) -> bool {
    let by = RUN_BY.iter().find(|(where_, what, _)| *where_ == document && *what == heading);
    by.is_some_and(|(_, _, test)| {
        let test = repository().join(test);
        let text = fs::read_to_string(&test).unwrap_or_else(|e| panic!("{}: {e}", test.display()));
        assert!(text.contains(heading), "{} does not run {heading:?}", test.display());
        true
    })
}

/// One line of a shell: several commands where a `;`, `&&` or `|` is between.
fn lines(place: &str, line: &str, found: &mut Vec<Printed>) {
    let code = line.trim().strip_prefix("$ ").unwrap_or(line.trim());
    let code = if code.starts_with('#') { "" } else { code.split(" #").next().unwrap_or(code) };
    for command in code.split(" | ").flat_map(|code| code.split("; ")).flat_map(|c| c.split(" && "))
    {
        let command = command.trim();
        if !command.is_empty() {
            found.push(Printed {
                place: place.to_owned(),
                command: Command::Line(command.to_owned()),
            });
        }
    }
}

/// Programs that a span of code which begins with one of these is a call of.
const PROGRAMS: [&str; 12] = [
    "kubectl ",
    "cargo ",
    "docker ",
    "podman ",
    "ctr ",
    "skopeo ",
    "buildah ",
    "helm ",
    "runc ",
    "/tickmark-probe",
    "tickmark-probe ",
    "/worker ",
];

fn inline(part: &Part<'_>, at: &dyn Fn(usize) -> String, found: &mut Vec<Printed>) {
    let mut line = part.line;
    for (index, span) in part.text.split('`').enumerate() {
        let place = at(line);
        line += span.matches('\n').count();
        if index % 2 == 0 {
            continue;
        }
        let code = span.split_whitespace().collect::<Vec<_>>().join(" ");
        let list = code.strip_prefix("command: ").unwrap_or(&code);
        if list.starts_with("[\"")
            && let Ok(words) = serde_json::from_str(list)
        {
            found.push(Printed { place, command: Command::List(words) });
        } else if PROGRAMS.iter().any(|program| code.starts_with(program)) {
            lines(&place, &code, found);
        }
    }
}

fn manifest(part: &Part<'_>, at: &dyn Fn(usize) -> String, found: &mut Vec<Printed>) {
    let place = at(part.line);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&part.text)
        .unwrap_or_else(|error| panic!("{place}: not YAML: {error}"));
    fn walk(value: &Value, place: &str, found: &mut Vec<Printed>) {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    if key == "command" && value.is_array() {
                        let words = serde_json::from_value(value.clone())
                            .unwrap_or_else(|error| panic!("{place}: command: {error}"));
                        found.push(Printed {
                            place: place.to_owned(),
                            command: Command::List(words),
                        });
                    } else {
                        walk(value, place, found);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, place, found)),
            _ => {}
        }
    }
    documents.iter().for_each(|document| walk(document, &place, found));
}
