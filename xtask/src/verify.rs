//! `cargo xtask verify`: makes the images that the scenarios need, without a container engine, and
//! becomes the program that plays them (`tests/k8s`), which has the command line.

pub(crate) mod images;
mod kernels;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use crate::outcome::Failure;
use crate::workspace;

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    let arguments: Vec<OsString> = arguments.raw_args()?.collect();
    let given = |flags: &[&str]| {
        arguments.iter().any(|argument| flags.iter().any(|flag| argument.as_os_str() == *flag))
    };
    // A mistake on the command line is told before anything is built.
    let built = workspace::build_directory("verify-images");
    if given(&["--kernels"]) {
        return kernels::record();
    }
    let mut images = vec![OsString::from("--images"), built.clone().into()];
    if given(&["--images", "--help", "-h", "--list", "--render"]) {
        images.clear();
    } else {
        workspace::run(program().args(&images).args(&arguments).arg("--check"))?;
        images::write_all(&built)?;
    }
    // It has the terminal from here on, and an interrupt finds it rather than us.
    let error = program().args(images).args(arguments).exec();
    Err(Failure::failed(format!("run tickmark-verify: {error}")))
}

fn program() -> std::process::Command {
    let mut cargo = workspace::cargo();
    cargo
        .args(["run", "--quiet", "--package", "tickmark-verify", "--manifest-path"])
        .arg(workspace::root().join("Cargo.toml"))
        .arg("--");
    cargo
}
