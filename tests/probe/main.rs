//! The static probe as a black box: its line, its exit status and an empty standard error.
//!
//! Needs: a build of the probe, named by `TICKMARK_PROBE`; single cases also root, strace or a
//! container that can be told from its predecessor. Skipped, with the reason in one line, without
//! them; with `TICKMARK_NO_SKIPS` they fail then.

mod answer;
mod cases;
mod inherited;
mod marks;
mod site;
mod trace;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::site::Site;

/// What a case cannot do without.
#[derive(Clone, Copy)]
pub(crate) enum Need {
    Nothing,
    Root,
    /// This process knows which container it is in.
    Generation,
    /// The gem's pair, the only evidence that text carries.
    Pair,
    Strace,
    /// A file system that never answers.
    Fuse,
}

/// One case: its name, what it needs, and its code, which panics where something does not hold.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    name: &'static str,
    need: Need,
    run: fn(&Site),
}

pub(crate) const fn case(name: &'static str, need: Need, run: fn(&Site)) -> Case {
    Case { name, need, run }
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let site = if arguments.list { Err("only listed".to_owned()) } else { Site::open() };
    let site = site.map(Arc::new);
    let trials = cases::all()
        .into_iter()
        .map(|Case { name, need, run }| {
            let site = site.clone();
            Trial::ignorable_test(name, move || {
                let missing = |site: Arc<Site>| site.missing(need).map_or(Ok(site), Err);
                match site.and_then(missing) {
                    Ok(site) => {
                        run(&site);
                        Ok(Completion::Completed)
                    }
                    Err(reason) => skip(reason),
                }
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What a case that cannot run here answers.
fn skip(reason: String) -> Result<Completion, Failed> {
    if std::env::var_os("TICKMARK_NO_SKIPS").is_some() {
        return Err(format!("skipped: {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}
