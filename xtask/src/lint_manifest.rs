//! `cargo xtask lint-manifest`: what will go wrong with a worker's manifest, said before it does.

mod asking;
mod environment;
mod finding;
mod report;
mod rules;
mod source;
#[cfg(test)]
mod tests;
mod tree;
mod volume;
mod workload;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal as _, Read as _, Write as _};

use finding::{Finding, Level};
use report::Report;
use rules::{Cgroup, Node};
use workload::Skipped;

use crate::outcome::{Doing as _, Failure};

const HELP: &str = "\
cargo xtask lint-manifest [FLAG]... FILE...

Reads manifests, of YAML or JSON, and says for each worker that leaves marks what will go wrong, where,
and what to do about it. FILE may hold several documents; - is standard input. Pod, Deployment,
StatefulSet, DaemonSet, ReplicaSet, Job, CronJob and lists of them are looked at, anything else is named
and skipped. A value from a ConfigMap, a Secret or the pod's own fields is unknown and never guessed.

  --kernel X.Y   the oldest Linux of the nodes: decides about shareProcessNamespace and hostPID
  --cgroup V     v1 or v2, what the nodes have: decides before Linux 6.8
  --strict       warnings fail too
  --json         one object for programs

Exit status: 0 no error, 1 errors (or, with --strict, warnings), 2 wrong usage or input that cannot be
read. Notes, about what a manifest alone cannot tell, never fail.
";

/// What was asked for.
#[derive(Debug, Default)]
struct Options {
    files: Vec<OsString>,
    node: Node,
    strict: bool,
    json: bool,
}

pub(crate) fn command(arguments: lexopt::Parser) -> Result<(), Failure> {
    let Some(options) = options(arguments)? else {
        print!("{HELP}");
        return Ok(());
    };
    let mut report = Report::default();
    let mut unreadable = Vec::new();
    for file in &options.files {
        let name =
            if file == "-" { "stdin".to_owned() } else { file.to_string_lossy().into_owned() };
        let read = text(file).and_then(|text| lint(&name, &text, options.node, &mut report));
        if let Err(why) = read {
            unreadable.push(format!("{name}: {why}"));
        }
    }
    let output = if options.json {
        format!("{}\n", report.json())
    } else {
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        report.text(colour)
    };
    // What was found in the files that could be read is said all the same.
    if unreadable.is_empty() || options.json || report.checked > 0 {
        io::stdout().write_all(output.as_bytes()).doing("write the findings")?;
    }
    if !unreadable.is_empty() {
        return Err(Failure::usage(unreadable.join("\nxtask: ")));
    }
    let failing = [(Level::Error, true), (Level::Warning, options.strict)];
    let failing = failing.into_iter().filter(|(_, fails)| *fails);
    match failing.map(|(level, _)| report.count(level)).sum() {
        0 => Ok(()),
        1 => Err(Failure::failed("1 finding")),
        count => Err(Failure::failed(format!("{count} findings"))),
    }
}

/// `None`: help was asked for.
fn options(mut arguments: lexopt::Parser) -> Result<Option<Options>, Failure> {
    use lexopt::prelude::*;
    let mut options = Options::default();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("kernel") => {
                let version = arguments.value()?.string()?;
                options.node.kernel = Some(kernel(&version).ok_or_else(|| {
                    Failure::usage(format!("--kernel {version}: expected a version such as 6.1"))
                })?);
            }
            Long("cgroup") => {
                let version = arguments.value()?.string()?;
                options.node.cgroup = Some(match version.as_str() {
                    "v1" => Cgroup::V1,
                    "v2" => Cgroup::V2,
                    _ => {
                        return Err(Failure::usage(format!(
                            "--cgroup {version}: expected v1 or v2"
                        )));
                    }
                });
            }
            Long("strict") => options.strict = true,
            Long("json") => options.json = true,
            Long("help") | Short('h') => return Ok(None),
            Value(file) => options.files.push(file),
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    if options.files.is_empty() {
        return Err(Failure::usage(format!(
            "lint-manifest needs a FILE, or - for stdin\n\n{HELP}"
        )));
    }
    Ok(Some(options))
}

/// The first two numbers of `uname -r` are enough: 6.1, 6.1.0-13-amd64.
fn kernel(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn text(file: &OsStr) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = if file == "-" {
        io::stdin().read_to_end(&mut bytes).map(drop)
    } else {
        fs::read(file).map(|read| bytes = read)
    };
    read.map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        format!(
            "is not UTF-8 after {} bytes: give a manifest of text",
            error.utf8_error().valid_up_to()
        )
    })
}

/// Adds to the report what is found in one text.
///
/// # Errors
/// What cannot be read, and its place.
fn lint(file: &str, text: &str, node: Node, report: &mut Report) -> Result<(), String> {
    let documents = source::documents(text).map_err(|broken| broken.to_string())?;
    for document in &documents {
        let read =
            workload::read(file, document).map_err(|(line, why)| format!("line {line}: {why}"))?;
        let before = report.findings.len();
        report.findings.extend(read.findings);
        report.skipped.extend(read.skipped);
        for workload in &read.workloads {
            match rules::check(workload, node) {
                Some(findings) => {
                    report.checked += 1;
                    report.findings.extend(findings);
                }
                None => report.unrelated.push(Skipped {
                    file: file.to_owned(),
                    document: document.number,
                    what: format!("{}/{}", workload.kind, workload.name),
                    why: "nothing of tickmark's is in it".to_owned(),
                }),
            }
        }
        if let Some(found) = report.findings.get_mut(before..) {
            found.sort_by(|a, b| {
                let key = |finding: &Finding| {
                    (finding.place.line, finding.place.path.clone(), finding.rule)
                };
                key(a).cmp(&key(b))
            });
        }
    }
    Ok(())
}
