//! Container tests: the static probe judges the marks of a demo worker in real containers.
//!
//! Needs: root, `runc`, and static builds of both binaries, named by `TICKMARK_PROBE` and
//! `TICKMARK_DEMO_WORKER` (with the feature `test-hide-evidence`: the same names with `_HIDE`).
//! Skipped, with the reason in one line, without them; with `TICKMARK_NO_SKIPS` they fail then.
//! `TICKMARK_UML` adds a real Linux 6.1.

mod cases;
mod container;
mod marks;
mod probing;
mod site;
mod spec;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::site::{Binaries, Site};

/// One case: its name, whether it needs the builds that can hide evidence, and its code,
/// which panics where something does not hold.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) hides: bool,
    pub(crate) run: Code,
}

type Code = Box<dyn FnOnce(&Arc<Site>) + Send>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait for ticks far more than they work.
    arguments.test_threads = arguments.test_threads.or(Some(4 + cases::old_kernel::GUESTS));
    let binaries = Binaries::from_environment();
    let missing = site::missing_means().or_else(|| binaries.missing());
    if missing.is_none() && !arguments.list && !site::in_own_mount_namespace() {
        return site::run_again_in_own_mount_namespace();
    }

    let runnable = match missing {
        Some(reason) => Err(reason),
        None if arguments.list => Err("only listed".to_owned()),
        None => Site::open(&binaries).map(Arc::new).map_err(|failure| failure.to_string()),
    };
    let without_hiding = binaries.missing_hiding();
    // The guests come first: they take longest, and most of it beside the others.
    let guests = cases::old_kernel::trials(&binaries);
    let here = cases::all()
        .into_iter()
        .enumerate()
        .filter(|(number, _)| cases::old_kernel::is_ours(*number))
        .map(|(_, case)| {
            let site = runnable.clone();
            let unhidden = without_hiding.clone().filter(|_| case.hides);
            Trial::ignorable_test(case.name, move || match (site, unhidden) {
                (Err(reason), _) | (_, Some(reason)) => skip(reason),
                (Ok(site), None) => {
                    (case.run)(&site);
                    Ok(Completion::Completed)
                }
            })
        });
    let trials: Vec<Trial> = guests.into_iter().chain(here).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What a test that cannot run here answers.
fn skip(reason: String) -> Result<Completion, Failed> {
    if std::env::var_os("TICKMARK_NO_SKIPS").is_some() {
        return Err(format!("skipped: {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}
