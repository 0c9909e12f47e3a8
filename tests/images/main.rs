//! Image tests: the probe's image, those that take the probe from it, and every command that the
//! documents print, in the image that it is for.
//!
//! Needs: root, `runc`, `buildah`, `skopeo`, `containerd` and a static `busybox`, and what
//! `cargo xtask test` builds and names in variables. Skipped, with the reason in one line, without them;
//! with `TICKMARK_NO_SKIPS` they fail then. Nothing is pulled: somebody else's image is made here.

mod archive;
mod cases;
mod commands;
mod container;
mod documents;
mod engine;
mod image;
mod site;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::site::Site;

/// A case panics where something does not hold.
pub(crate) type Case = (&'static str, fn(&Arc<Site>));

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runnable =
        if arguments.list { Err("only listed".to_owned()) } else { Site::open().map(Arc::new) };
    let trials = cases::ALL
        .iter()
        .map(|&(name, run)| {
            let runnable = runnable.clone();
            Trial::ignorable_test(name, move || match runnable {
                Ok(site) => {
                    run(&site);
                    Ok(Completion::Completed)
                }
                Err(reason) => skip(reason),
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What a test that cannot run here answers.
fn skip(reason: String) -> Result<Completion, Failed> {
    if std::env::var_os("TICKMARK_NO_SKIPS").is_some() {
        return Err(format!("skipped: {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}
