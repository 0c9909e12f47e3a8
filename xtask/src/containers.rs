//! `cargo xtask containers`: builds what the container tests run, each static, once as it is
//! released and once with evidence that can be hidden, and runs them.

use std::path::PathBuf;

use crate::demo::build_worker;
use crate::outcome::Failure;
use crate::probe::{self, Builder, Target};
use crate::workspace;

const HELP: &str = "\
cargo xtask containers [ARGUMENT]...

Builds the static probe and the demo worker and runs the container tests, which need root and
runc; what cannot run here is skipped with the reason. TICKMARK_UML names a script that runs a
program under Linux 6.1; with it the suite runs there too. TICKMARK_RESTARTS [50] sets how often
a container is deleted and made again.

Arguments go to the tests: a part of a name, --list, --test-threads N. --build only builds, and
prints the variables that the tests read.
";

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    let arguments: Vec<_> = arguments.raw_args()?.collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let files = build()?;
    if arguments.iter().any(|argument| argument == "--build") {
        for (variable, file) in files {
            println!("{variable}={}", file.display());
        }
        return Ok(());
    }
    let mut tests = workspace::cargo();
    tests
        .current_dir(workspace::root())
        .args(["test", "--quiet", "--package", "tickmark-container-tests", "--"])
        .args(arguments)
        .envs(files);
    workspace::run(&mut tests)
}

/// The files under test, by the variable that names each to the tests.
pub(crate) fn build() -> Result<[(&'static str, PathBuf); 4], Failure> {
    let target =
        Target::host().ok_or_else(|| Failure::failed("containers need x86_64 or aarch64"))?;
    for defect in probe::build_for_use(&[target], Builder::Cargo)? {
        println!("  not fit for a release: {defect}");
    }
    Ok([
        ("TICKMARK_PROBE", target.file()),
        ("TICKMARK_PROBE_HIDE", build_hiding_probe(target)?),
        ("TICKMARK_DEMO_WORKER", build_worker(target, &[])?),
        ("TICKMARK_DEMO_WORKER_HIDE", build_worker(target, &["test-hide-evidence"])?),
    ])
}

/// Like the released probe but for the switch; it never goes to `dist/`.
fn build_hiding_probe(target: Target) -> Result<PathBuf, Failure> {
    println!("building the probe that can hide evidence");
    let directory = workspace::build_directory("probe-hide");
    let triple = target.triple().replace('-', "_").to_uppercase();
    let mut command = workspace::cargo();
    command
        .current_dir(workspace::root())
        .args(["build", "--quiet", "--package", "tickmark-probe", "--bin", "tickmark-probe"])
        .args(["--features", "static,tickmark/test-hide-evidence"])
        .args(["--profile", "probe", "--target", target.triple(), "--target-dir"])
        .arg(&directory)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env(format!("CARGO_TARGET_{triple}_LINKER"), "rust-lld")
        .env(format!("CARGO_TARGET_{triple}_RUSTFLAGS"), probe::compiler_flags(target, None));
    workspace::run(&mut command)?;
    Ok(directory.join(target.triple()).join("probe").join("tickmark-probe"))
}
