//! `cargo xtask verify --kernels`: what of scenarios 11 and 12 needs no kubelet, from the container
//! tests, which run it on this kernel and, where `TICKMARK_UML` is set, on Linux 6.1.

use std::fs;
use std::process::Stdio;

use crate::outcome::{Doing as _, Failure};
use crate::{containers, workspace};

pub(super) fn record() -> Result<(), Failure> {
    let files = containers::build()?;
    println!("running the container tests");
    let output = workspace::cargo()
        .current_dir(workspace::root())
        .args(["test", "--quiet", "--package", "tickmark-container-tests", "--"])
        .args(["--nocapture", "evidence:", "restarts:", "Linux 6.1"])
        .envs(files)
        .env("TICKMARK_OLD_KERNEL_ONLY", "evidence:,restarts:")
        .stdin(Stdio::null())
        .output()
        .doing("run the container tests")?;
    let printed = [output.stdout, output.stderr].concat();
    let file = workspace::build_directory("verify-kernels.txt");
    fs::write(&file, &printed).doing(format_args!("write {}", file.display()))?;
    if !output.status.success() {
        return Err(Failure::failed(format!(
            "the container tests: {}; what they said is in {}",
            output.status,
            file.display()
        )));
    }
    workspace::run(super::program().arg("--record-kernels").arg(&file))
}
