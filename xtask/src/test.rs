//! `cargo xtask test`: every test that can run here, and one line for each that cannot, with
//! the reason.

use crate::demo::build_lapin_worker;
use crate::outcome::{Doing as _, Failure};
use crate::probe::Target;
use crate::{containers, image, workspace};

const HELP: &str = "\
cargo xtask test [FLAG]...

Builds the static probe and both workers and runs every test that needs no cluster. The broker tests
need Debian's rabbitmq-server, two of them iptables, and the one of the worker's image buildah and
runc. Tests that need root run as root; the container tests also need Debian's runc; those of the
images also buildah, skopeo, containerd and busybox-static; the test
beside a Ruby worker needs ruby; those on an old kernel need TICKMARK_UML to name a script that
runs a program under Linux 6.1. What cannot run here is skipped with one line that says why.

  --no-skips   a test that is skipped fails instead: what CI asks for
";

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let mut no_skips = false;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("no-skips") => no_skips = true,
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    run(no_skips)
}

/// Builds what the tests run, and runs them.
fn run(no_skips: bool) -> Result<(), Failure> {
    let binaries = containers::build()?;
    let target =
        Target::host().ok_or_else(|| Failure::failed("the workers need x86_64 or aarch64"))?;
    let mut tests = workspace::cargo();
    tests
        .current_dir(workspace::root())
        .args(["test", "--workspace"])
        .envs(binaries)
        .env("TICKMARK_LAPIN_WORKER", build_lapin_worker(target)?)
        .env("TICKMARK_IMAGE", image::build()?)
        .env("TICKMARK_XTASK", std::env::current_exe().doing("find this program")?);
    if no_skips {
        tests.env("TICKMARK_NO_SKIPS", "1");
    }
    workspace::run(&mut tests)
}
