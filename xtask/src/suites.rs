//! Runs the test programs of the workspace in two lanes side by side, each one after another, and prints
//! what each said in one piece and always in the same order.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::outcome::{Doing as _, Failure};
use crate::workspace;

/// Packages whose tests wait for brokers and ticks far more than they compute, and have their own
/// parallelism inside. They have a lane of their own, in this order. A third lane was tried: with two
/// processors everything in it waits for a processor instead, and times that matter are missed.
const WAITING: [&str; 2] = ["tickmark-broker-tests", "tickmark-container-tests"];

/// One program to run: the tests of a library, a binary or a file of `tests/`; or rustdoc's.
struct Suite {
    package: String,
    name: String,
    program: PathBuf,
    arguments: &'static [&'static str],
    directory: PathBuf,
}

/// What a suite came to.
struct Ran {
    /// The place in the printed order.
    index: usize,
    name: String,
    succeeded: bool,
    output: Vec<u8>,
    took: Duration,
}

/// Builds every test once and runs those of the packages in whose name one of `wanted` is, or all.
pub(crate) fn run(wanted: &[String], variables: &[(&str, OsString)]) -> Result<(), Failure> {
    let mut suites = build()?;
    suites.push(documents());
    suites.retain(|suite| {
        wanted.is_empty() || wanted.iter().any(|part| suite.package.contains(part.as_str()))
    });
    if suites.is_empty() {
        let wanted = wanted.join(" or ");
        return Err(Failure::usage(format!("no package with tests has {wanted} in its name")));
    }
    let logs = workspace::build_directory("test-output");
    fs::create_dir_all(&logs).doing(format_args!("make {}", logs.display()))?;
    println!(
        "running {} test programs; {} has what they say meanwhile",
        suites.len(),
        logs.display()
    );
    let (report, reports) = mpsc::channel();
    let mut ran = thread::scope(|scope| {
        let mut index = 0;
        for lane in lanes(suites) {
            let (first, report, logs) = (index, report.clone(), &logs);
            index += lane.len();
            scope.spawn(move || {
                for (place, suite) in lane.into_iter().enumerate() {
                    // Nobody listens only where this program is about to end.
                    let _gone = report.send(suite.run(first + place, variables, logs));
                }
            });
        }
        drop(report);
        print_in_order(&reports)
    });
    ran.sort_by_key(|ran| std::cmp::Reverse(ran.took));
    println!("== the slowest");
    for ran in ran.iter().take(6) {
        println!("{:>6.0} s  {}", ran.took.as_secs_f64(), ran.name);
    }
    let failed: Vec<_> =
        ran.iter().filter(|ran| !ran.succeeded).map(|ran| ran.name.as_str()).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::failed(format!("these failed: {}", failed.join(", "))))
    }
}

/// Every test of the workspace, from one build.
fn build() -> Result<Vec<Suite>, Failure> {
    let output = workspace::cargo()
        .current_dir(workspace::root())
        .args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .doing("run cargo test --no-run")?;
    if !output.status.success() {
        return Err(Failure::failed(format!("cargo test --no-run: {}", output.status)));
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message: Value| suite(&message).transpose())
        .collect()
}

/// The test program that a message of cargo is about, if it is about one.
fn suite(message: &Value) -> Result<Option<Suite>, Failure> {
    let is_test = message["profile"]["test"] == true;
    let (Some(program), Some(manifest), true) =
        (message["executable"].as_str(), message["manifest_path"].as_str(), is_test)
    else {
        return Ok(None);
    };
    let directory = Path::new(manifest).parent().unwrap_or(Path::new("."));
    let text = fs::read_to_string(manifest).doing(format_args!("read {manifest}"))?;
    let package = text.lines().find_map(|line| line.strip_prefix("name = \""));
    let package = package.unwrap_or_default().trim_end_matches('"').to_owned();
    let target = message["target"]["name"].as_str().unwrap_or_default();
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    Ok(Some(Suite {
        name: format!("{package}: {kind} {target}"),
        package,
        program: program.into(),
        arguments: &[],
        directory: directory.to_owned(),
    }))
}

/// The examples in the documents, which rustdoc builds and runs in one go.
fn documents() -> Suite {
    Suite {
        package: "doc".to_owned(),
        name: "examples in documents".to_owned(),
        program: workspace::cargo().get_program().into(),
        arguments: &["test", "--quiet", "--workspace", "--doc"],
        directory: workspace::root().to_owned(),
    }
}

/// What is run one after another, in lanes that run side by side.
fn lanes(suites: Vec<Suite>) -> [Vec<Suite>; 2] {
    let place = |suite: &Suite| WAITING.iter().position(|package| *package == suite.package);
    let (mut waiting, others): (Vec<_>, Vec<_>) =
        suites.into_iter().partition(|suite| place(suite).is_some());
    waiting.sort_by_key(place);
    [others, waiting]
}

impl Suite {
    /// As cargo would run it, into a file: a pipe would stay open in what a test leaves behind.
    fn run(self, index: usize, variables: &[(&str, OsString)], logs: &Path) -> Ran {
        let log = logs.join(format!("{index:02}.log"));
        let started = Instant::now();
        let run = || -> Result<bool, Failure> {
            let file = File::create(&log).doing(format_args!("make {}", log.display()))?;
            let errors = file.try_clone().doing(format_args!("write to {}", log.display()))?;
            let mut command = Command::new(&self.program);
            command
                .args(self.arguments)
                .current_dir(&self.directory)
                .env("CARGO_MANIFEST_DIR", &self.directory)
                .envs(variables.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::null())
                .stdout(file)
                .stderr(errors);
            let status = command.status().doing(format_args!("run {}", self.program.display()))?;
            Ok(status.success())
        };
        let (succeeded, failure) = match run() {
            Ok(succeeded) => (succeeded, None),
            Err(failure) => (false, Some(format!("{failure}\n").into_bytes())),
        };
        let output = failure.unwrap_or_else(|| fs::read(&log).unwrap_or_default());
        Ran { index, name: self.name, succeeded, output, took: started.elapsed() }
    }
}

/// Prints each as soon as those before it are.
fn print_in_order(reports: &mpsc::Receiver<Ran>) -> Vec<Ran> {
    let (mut waiting, mut printed) = (Vec::<Ran>::new(), Vec::<Ran>::new());
    for ran in reports {
        waiting.push(ran);
        while let Some(at) = waiting.iter().position(|ran| ran.index == printed.len()) {
            let ran = waiting.swap_remove(at);
            let outcome = if ran.succeeded { "ok" } else { "FAILED" };
            println!("== {}: {outcome} in {:.1} s", ran.name, ran.took.as_secs_f64());
            let mut stdout = std::io::stdout();
            // A terminal that is gone does not make a test fail.
            let _closed = stdout.write_all(&ran.output).and_then(|()| stdout.flush());
            printed.push(ran);
        }
    }
    printed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite_of(package: &str, script: &'static [&'static str]) -> Suite {
        Suite {
            package: package.to_owned(),
            name: package.to_owned(),
            program: "sh".into(),
            arguments: script,
            directory: "/".into(),
        }
    }

    #[test]
    fn those_that_wait_have_a_lane_of_their_own() {
        let packages = ["tickmark", "tickmark-container-tests", "xtask", "tickmark-broker-tests"];
        let lanes = lanes(packages.map(|package| suite_of(package, &[])).into());
        let lanes: Vec<Vec<_>> =
            lanes.iter().map(|lane| lane.iter().map(|s| s.package.as_str()).collect()).collect();
        assert_eq!(
            lanes,
            [vec!["tickmark", "xtask"], vec!["tickmark-broker-tests", "tickmark-container-tests"]]
        );
    }

    #[test]
    fn a_suite_is_run_as_cargo_would() {
        let logs = tempfile::tempdir().unwrap();
        let script = &["-c", "echo $CARGO_MANIFEST_DIR $GIVEN; echo error >&2; pwd; exit 3"];
        let ran = suite_of("one", script).run(4, &[("GIVEN", "a variable".into())], logs.path());
        assert_eq!((ran.index, ran.succeeded), (4, false));
        assert_eq!(String::from_utf8(ran.output).unwrap(), "/ a variable\nerror\n/\n");
        let absent = Suite { program: "/no/such/program".into(), ..suite_of("none", &[]) };
        let ran = absent.run(0, &[], logs.path());
        assert!(
            !ran.succeeded && String::from_utf8_lossy(&ran.output).contains("/no/such/program")
        );
    }

    #[test]
    fn a_child_that_stays_does_not_hold_up_the_report() {
        let logs = tempfile::tempdir().unwrap();
        let started = Instant::now();
        let ran = suite_of("one", &["-c", "sleep 5 & echo done"]).run(0, &[], logs.path());
        assert!(ran.succeeded && started.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn the_order_is_not_that_of_the_ends() {
        let (report, reports) = mpsc::channel();
        for index in [2, 0, 1] {
            let ran = Ran {
                index,
                name: index.to_string(),
                succeeded: true,
                output: Vec::new(),
                took: Duration::ZERO,
            };
            report.send(ran).unwrap();
        }
        drop(report);
        let indices: Vec<_> = print_in_order(&reports).iter().map(|ran| ran.index).collect();
        assert_eq!(indices, [0, 1, 2]);
    }

    #[test]
    fn only_tests_are_taken_from_what_cargo_says() {
        let manifest = workspace::root().join("xtask/Cargo.toml");
        let message = |test: bool, executable: Value| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": manifest,
                "target": { "name": "xtask", "kind": ["bin"] },
                "profile": { "test": test },
                "executable": executable,
            })
        };
        let found = suite(&message(true, "/target/xtask".into())).unwrap().unwrap();
        assert_eq!((found.package.as_str(), found.name.as_str()), ("xtask", "xtask: bin xtask"));
        assert!(suite(&message(false, "/target/xtask".into())).unwrap().is_none());
        assert!(suite(&message(true, Value::Null)).unwrap().is_none());
    }
}
