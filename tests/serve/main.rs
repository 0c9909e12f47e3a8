//! The verdict over HTTP on real processes: word for word the probe's, taken over after a kill, silent
//! among siblings and loud beside a stranger, and read by a real Prometheus with each query of the
//! dashboard and the rules.
//!
//! `TICKMARK_PROBE` and `TICKMARK_DEMO_WORKER` name the builds, as `cargo xtask test` does; Prometheus is
//! Debian's `prometheus`. What is missing is skipped, with the reason in one line; with
//! `TICKMARK_NO_SKIPS` it fails.

mod cases;
mod prometheus;
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait far more than they work.
    arguments.test_threads = arguments.test_threads.or(Some(cases::ALL.len()));
    let trials = cases::ALL
        .iter()
        .map(|&(name, needs_prometheus, case)| {
            Trial::ignorable_test(name, move || {
                let missing = worker::missing()
                    .or_else(|| prometheus::missing().filter(|_| needs_prometheus));
                match missing {
                    None => {
                        case();
                        Ok(Completion::Completed)
                    }
                    Some(reason) if std::env::var_os("TICKMARK_NO_SKIPS").is_some() => {
                        Err(format!("skipped: {reason}").into())
                    }
                    Some(reason) => Ok(Completion::ignored_with(reason)),
                }
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
