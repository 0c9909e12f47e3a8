//! Builds the static demo worker, which the demo and the container tests run.

use std::path::PathBuf;

use crate::outcome::Failure;
use crate::probe::Target;
use crate::workspace::{self, build_directory};

/// Whether `TICKMARK_TEST_HIDE` works in a build: in no release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    AsItIs,
    CanBeHidden,
}

impl Evidence {
    /// A build directory for each: the two must not replace each other's files.
    pub(crate) fn directory(self, of: &str) -> PathBuf {
        build_directory(&match self {
            Self::AsItIs => of.to_owned(),
            Self::CanBeHidden => format!("{of}-hide"),
        })
    }
}

/// Builds it and returns the file.
pub(crate) fn build(target: Target, evidence: Evidence) -> Result<PathBuf, Failure> {
    println!("building the demo worker for {}", target.triple());
    let directory = evidence.directory("demo-worker");
    let mut command = workspace::cargo();
    command
        .current_dir(workspace::root())
        .args(["build", "--quiet", "--release", "--package", "tickmark-demo-worker"])
        .args(["--target", target.triple(), "--target-dir"])
        .arg(&directory);
    if evidence == Evidence::CanBeHidden {
        command.args(["--features", "test-hide-evidence"]);
    }
    if target.triple().starts_with("aarch64") {
        // Its own musl start files are enough; a C cross compiler is not there.
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
    }
    workspace::run(&mut command)?;
    Ok(directory.join(target.triple()).join("release").join("tickmark-demo-worker"))
}
