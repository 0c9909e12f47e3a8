//! `cargo xtask test`: every test that can run here, and one line for each that cannot, with
//! the reason.

use std::ffi::OsString;

use crate::demo::build_lapin_worker;
use crate::outcome::{Doing as _, Failure};
use crate::probe::Target;
use crate::{containers, image, suites};

const HELP: &str = "\
cargo xtask test [FLAG]... [PART]...

Builds the static probe and both workers and runs every test that needs no cluster. The broker tests
need Debian's rabbitmq-server, two of them iptables, and the one of the worker's image buildah and
runc. Tests that need root run as root; the container tests also need Debian's runc; those of the
images also buildah, skopeo, containerd and busybox-static; the test
beside a Ruby worker needs ruby; those on an old kernel, and those of the activator
that need a whole cgroup v2 or systemd and dbus-daemon, need TICKMARK_UML to name a script that runs a
program under Linux 6.1. What cannot run here is skipped with one line that says why.

The test programs run beside one another where they mostly wait. With a PART, only those of packages
with it in their name: broker, container, image, probe, xtask; doc is the documents' examples.

  --no-skips   a test that is skipped fails instead: what CI asks for
";

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let (mut wanted, mut no_skips) = (Vec::new(), false);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("no-skips") => no_skips = true,
            Value(part) => wanted.push(part.string()?),
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    run(&wanted, no_skips)
}

/// Builds what the tests run, and runs them.
fn run(wanted: &[String], no_skips: bool) -> Result<(), Failure> {
    let target =
        Target::host().ok_or_else(|| Failure::failed("the workers need x86_64 or aarch64"))?;
    let mut variables: Vec<(&str, OsString)> =
        containers::build()?.into_iter().map(|(name, file)| (name, file.into())).collect();
    variables.push(("TICKMARK_LAPIN_WORKER", build_lapin_worker(target)?.into()));
    variables.push(("TICKMARK_IMAGE", image::build()?.into()));
    let this = std::env::current_exe().doing("find this program")?;
    variables.push(("TICKMARK_XTASK", this.into()));
    if no_skips {
        variables.push(("TICKMARK_NO_SKIPS", "1".into()));
    }
    suites::run(wanted, &variables)
}
