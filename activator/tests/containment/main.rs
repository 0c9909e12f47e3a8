//! Stubs, kills and proofs on a real cgroup v2.
//!
//! What needs no cgroup runs as any user. The rest needs root, a cgroup v2, and `unshare`
//! (util-linux) for mounts of its own. Where the cgroup v2 has no memory and pids controllers,
//! what needs those runs under Linux 6.1 alone: `TICKMARK_UML` names a script that runs a program
//! there, and the whole suite runs in it once more. Skipped, with the reason in one line, where
//! something is missing; with `TICKMARK_NO_SKIPS` that fails.

mod backend;
mod cgroups;
mod failing_close;
mod guest;
mod limits;
mod marks;
#[allow(dead_code, reason = "another of its backends is for the other tests")]
#[path = "../swap/outside.rs"]
mod outside;
#[path = "../swap/service.rs"]
mod service;
mod site;
mod stubs;
mod swaps;
mod trace;
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::site::Site;

/// One test: the rule it holds, what it needs, and its code, which panics where the rule does not
/// hold.
pub(crate) struct Case {
    rule: &'static str,
    needs: Needs,
    code: Code,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Needs {
    Nothing,
    Cgroup,
    Controllers,
}

pub(crate) enum Code {
    Plain(fn()),
    InSite(fn(&Site)),
}

/// A test by its own name, which is the rule.
macro_rules! cases {
    ($needs:ident: $($rule:ident)*) => {
        [$(crate::Case {
            rule: stringify!($rule),
            needs: crate::Needs::$needs,
            code: crate::cases!(@$needs $rule),
        }),*]
    };
    (@Nothing $rule:ident) => { crate::Code::Plain($rule) };
    (@$needs:ident $rule:ident) => { crate::Code::InSite($rule) };
}
pub(crate) use cases;

fn main() -> ExitCode {
    tickmark_activator::stub::intercept();
    if worker::is_one() {
        return worker::run();
    }
    if std::env::args().nth(1).as_deref() == Some("service") {
        return service::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(4));
    let missing = site::missing_means();
    if missing.is_none() && !arguments.list && !site::in_own_mount_namespace() {
        return site::run_again_in_own_mount_namespace();
    }
    let mut cases = stubs::cases();
    cases.extend(cgroups::cases());
    cases.extend(limits::cases());
    cases.extend(marks::cases());
    cases.extend(backend::cases());
    cases.extend(swaps::cases());
    let trials = cases
        .into_iter()
        .map(|case| {
            let missing = missing.clone();
            Trial::ignorable_test(case.rule, move || run(case, missing))
        })
        .chain([guest::trial()])
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(case: Case, missing: Option<String>) -> Result<Completion, Failed> {
    match case.code {
        Code::Plain(code) => code(),
        Code::InSite(code) => {
            if let Some(reason) = missing {
                return skip(reason);
            }
            let site = Site::open();
            if case.needs == Needs::Controllers && !site.has_controllers() {
                return if guest::is_set() {
                    Ok(Completion::ignored_with("runs in the guest: no controllers here"))
                } else {
                    skip("needs the memory and pids controllers of cgroup v2".to_owned())
                };
            }
            code(&site);
        }
    }
    Ok(Completion::Completed)
}

/// What a test that cannot run here answers.
fn skip(reason: String) -> Result<Completion, Failed> {
    if std::env::var_os("TICKMARK_NO_SKIPS").is_some() {
        return Err(format!("skipped: {reason}").into());
    }
    Ok(Completion::ignored_with(reason))
}
