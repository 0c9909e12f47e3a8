//! `cargo xtask ci`: everything that must hold, in the order in which it fails soonest.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::demo::build_lapin_worker;
use crate::outcome::{Doing as _, Failure};
use crate::probe::{self, Builder, Target};
use crate::workspace;

const HELP: &str = "\
cargo xtask ci

Everything that must hold: formatting, lints, documents, each crate's features, builds without an
operating system, the probe for both architectures (aarch64 runs under qemu-aarch64-static), its
image, its budget, a short run of each fuzz target, the packages, the demo. The tests themselves
are `cargo xtask test`. Needs what .ci/run installs, and says what is missing.
";

/// Seconds for each fuzz target: enough to go through the corpus and find a fresh mistake.
const FUZZ_SECONDS: u32 = 5;

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    if let Some(argument) = arguments.next()? {
        return match argument {
            Long("help") | Short('h') => {
                print!("{HELP}");
                Ok(())
            }
            other => Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        };
    }
    type Step = (&'static str, fn() -> Result<(), Failure>);
    let steps: [Step; 12] = [
        ("formatting", formatting),
        ("lints", lints),
        ("features and bare targets", features),
        ("documents", documents),
        ("alerts", alerts),
        ("lapin worker", lapin_worker),
        ("probe", || probe::build_all(&Target::ALL, Builder::Cargo)),
        ("probe on aarch64", aarch64),
        ("image", || xtask(&["image"])),
        ("packages", packages),
        ("fuzzing", fuzzing),
        ("demo", || xtask(&["demo"])),
    ];
    for (name, step) in steps {
        println!("== {name}");
        let started = Instant::now();
        step().map_err(|failure| Failure::failed(format!("{name}: {failure}")))?;
        println!("== {name}: done in {} s", started.elapsed().as_secs());
    }
    println!("== budget");
    xtask(&["bench", "--no-worker", "--rounds", "60"])
}

fn cargo(arguments: &[&str]) -> Result<(), Failure> {
    workspace::run(workspace::cargo().current_dir(workspace::root()).args(arguments))
}

fn xtask(arguments: &[&str]) -> Result<(), Failure> {
    let this = std::env::current_exe().doing("find this program")?;
    workspace::run(Command::new(this).current_dir(workspace::root()).args(arguments))
}

fn formatting() -> Result<(), Failure> {
    cargo(&["fmt", "--all", "--check"])
}

fn lints() -> Result<(), Failure> {
    cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // Another build: what the features hide from the first.
    for package in ["tickmark", "tickmark-probe", "tickmark-demo-worker"] {
        cargo(&[
            "clippy",
            "--quiet",
            "--package",
            package,
            "--all-targets",
            "--features",
            "test-hide-evidence",
            "--",
            "-D",
            "warnings",
        ])?;
    }
    cargo(&[
        "clippy",
        "--quiet",
        "--package",
        "tickmark",
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ])
}

/// Each layer builds without the one above it.
fn features() -> Result<(), Failure> {
    cargo(&[
        "build",
        "--quiet",
        "--package",
        "tickmark-protocol",
        "--target",
        "thumbv7em-none-eabi",
    ])?;
    // The adapters are built by their users on a whole system: for this one.
    for feature in ["tokio", "lapin", "serve"] {
        cargo(&["check", "--quiet", "--package", "tickmark", "--features", feature])?;
    }
    // Its tests have it with everything.
    cargo(&["check", "--quiet", "--package", "tickmark-activator", "--no-default-features"])?;
    for target in Target::ALL {
        for features in [&["--no-default-features"][..], &[]] {
            let mut arguments =
                vec!["check", "--quiet", "--package", "tickmark", "--target", target.triple()];
            arguments.extend(features);
            cargo(&arguments)?;
        }
    }
    Ok(())
}

fn documents() -> Result<(), Failure> {
    workspace::run(
        workspace::cargo()
            .current_dir(workspace::root())
            .args(["doc", "--quiet", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// The rules, and the scrape that feeds the companion alert's.
fn alerts() -> Result<(), Failure> {
    const PROMTOOL: &str = "promtool";
    if workspace::on_path(PROMTOOL).is_none() {
        return Err(Failure::failed(format!("{PROMTOOL} is not installed (Debian: prometheus)")));
    }
    for arguments in [
        &["check", "rules", "tickmark.rules.yml"][..],
        &["check", "rules", "worker.rules.yml"],
        &["check", "config", "--syntax-only", "scrape.yml"],
        &["test", "rules", "tickmark.test.yml"],
        &["test", "rules", "worker.test.yml"],
    ] {
        let directory = workspace::root().join("docs").join("alerts");
        workspace::run(Command::new(PROMTOOL).current_dir(directory).args(arguments))?;
    }
    Ok(())
}

/// It goes into an image with nothing else in it: without an interpreter, so static.
fn lapin_worker() -> Result<(), Failure> {
    let target = Target::host()
        .ok_or_else(|| Failure::failed("the worker's image needs x86_64 or aarch64"))?;
    let file = build_lapin_worker(target)?;
    let bytes = fs::read(&file).doing(format_args!("read {}", file.display()))?;
    if bytes.windows(8).any(|bytes| bytes == b"/ld-musl") {
        return Err(Failure::failed(format!("{} is not static", file.display())));
    }
    workspace::run(Command::new(file).arg("--help").stdout(std::process::Stdio::null()))
}

/// What a registry would refuse. Not built again from the packages: it was just now.
fn packages() -> Result<(), Failure> {
    // The workers of images/ are never published, and what they share is on no registry.
    cargo(&[
        "package",
        "--quiet",
        "--workspace",
        "--exclude",
        "tickmark-demo-worker",
        "--exclude",
        "tickmark-lapin-worker",
        "--no-verify",
        "--allow-dirty",
    ])?;
    for package in ["tickmark-protocol", "tickmark", "tickmark-probe"] {
        let output = workspace::cargo()
            .current_dir(workspace::root())
            .args(["package", "--list", "--allow-dirty", "--package", package])
            .output()
            .doing("run cargo package")?;
        let files = String::from_utf8_lossy(&output.stdout).into_owned();
        for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
            if !files.lines().any(|line| line == file) {
                return Err(Failure::failed(format!("the package {package} has no {file}")));
            }
        }
    }
    Ok(())
}

/// One directory that is healthy and one that is not, judged by the aarch64 probe.
fn aarch64() -> Result<(), Failure> {
    const QEMU: &str = "qemu-aarch64-static";
    if workspace::on_path(QEMU).is_none() {
        return Err(Failure::failed(format!("{QEMU} is not installed (Debian: qemu-user-static)")));
    }
    let marks = crate::bench::MarksDirectory::fresh(2)?;
    let judged = |arguments: &[&str]| -> Result<Output, Failure> {
        Command::new(QEMU)
            .arg(Target::Aarch64.file())
            .args(marks.arguments())
            .args(arguments)
            .output()
            .doing(format_args!("run {QEMU}"))
    };
    expect(&judged(&[])?, 0, "2 process(es) healthy\n")?;
    expect(&judged(&["--explain"])?, 0, "\nverdict                   2 process(es) healthy")?;
    fs::remove_file(Path::new(marks.path()).join("worker-1")).doing("remove a mark")?;
    expect(&judged(&[])?, 1, "worker-1 missing\n")
}

fn expect(output: &Output, status: i32, line: &str) -> Result<(), Failure> {
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(status) && said.contains(line) {
        println!("  exit {status}: {}", line.trim_end());
        return Ok(());
    }
    Err(Failure::failed(format!(
        "expected exit {status} and {line:?}, got {} and {said:?}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    )))
}

fn fuzzing() -> Result<(), Failure> {
    let fuzz = || {
        let mut command = Command::new("cargo");
        command.current_dir(workspace::root()).args(["+nightly", "fuzz"]);
        // Those of the toolchain that runs this would win over `+nightly`.
        for variable in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC"] {
            command.env_remove(variable);
        }
        command
    };
    let listed = fuzz().arg("list").output().doing("run cargo +nightly fuzz list")?;
    if !listed.status.success() {
        return Err(Failure::failed(format!(
            "cargo +nightly fuzz list: {}\nIt needs a nightly toolchain with rust-src, and `cargo install cargo-fuzz`",
            String::from_utf8_lossy(&listed.stderr)
        )));
    }
    let targets = String::from_utf8_lossy(&listed.stdout).into_owned();
    if targets.trim().is_empty() {
        return Err(Failure::failed("there is no fuzz target"));
    }
    // Built once and together: each run would build its own.
    let built = fuzz().arg("build").output().doing("run cargo +nightly fuzz build")?;
    if !built.status.success() {
        return Err(Failure::failed(String::from_utf8_lossy(&built.stderr)));
    }
    let run = |target: &str| -> Result<(), Failure> {
        // The corpus of the repository is read, and what this run finds goes elsewhere.
        let found = workspace::build_directory("fuzz-corpus").join(target);
        fs::create_dir_all(&found).doing(format_args!("make {}", found.display()))?;
        let output = fuzz()
            .args(["run", target])
            .arg(&found)
            .arg(format!("fuzz/corpus/{target}"))
            .args(["--", &format!("-max_total_time={FUZZ_SECONDS}")])
            .output()
            .doing(format_args!("run the fuzz target {target}"))?;
        if !output.status.success() {
            return Err(Failure::failed(format!(
                "fuzz target {target}:\n{}",
                String::from_utf8_lossy(&output.stderr)
            )));
        }
        println!("  {target}: {FUZZ_SECONDS} s without a finding");
        Ok(())
    };
    // Each keeps one processor busy.
    let queue = Mutex::new(targets.split_whitespace());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let lane = || std::iter::from_fn(next).try_for_each(run);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..processors).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| match lane.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
