//! `cargo xtask verify --kernels`: what of scenarios 11 and 12 needs no kubelet, from the container
//! tests, which run it on this kernel and, where `TICKMARK_UML` is set, on Linux 6.1.

use std::fs;
use std::process::Stdio;

use crate::outcome::{Doing as _, Failure};
use crate::{containers, workspace};

/// The cases that print rows, by a part of their names.
const CASES: [&str; 2] = ["evidence:", "restarts:"];
/// The case that plays cases in the guest.
const GUEST: &str = "Linux 6.1";

pub(super) fn record() -> Result<(), Failure> {
    let files = containers::build()?;
    let file = workspace::build_directory("verify-kernels.txt");
    let mut printed = Vec::new();
    for (name, only) in CASES.iter().flat_map(|only| [(*only, *only), (GUEST, *only)]) {
        println!("running the container tests: {name} ({only})");
        let output = workspace::cargo()
            .current_dir(workspace::root())
            .args(["test", "--quiet", "--package", "tickmark-container-tests", "--", name])
            .envs(files.clone())
            .env("TICKMARK_OLD_KERNEL_ONLY", only)
            .stdin(Stdio::null())
            .output()
            .doing("run the container tests")?;
        printed.extend([output.stdout, output.stderr].concat());
        fs::write(&file, &printed).doing(format_args!("write {}", file.display()))?;
        if !output.status.success() {
            return Err(Failure::failed(format!(
                "the container tests: {}; what they said is in {}",
                output.status,
                file.display()
            )));
        }
    }
    workspace::run(super::program().arg("--record-kernels").arg(&file))
}
