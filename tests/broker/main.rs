//! Broker tests: a worker on lapin, its marks and its log, while a real RabbitMQ is killed, loses
//! queues and refuses logins.
//!
//! Needs Debian's `rabbitmq-server`, which is started here on ports of its own on the loopback
//! device. Skipped, with the reason in one line, without it; with `TICKMARK_NO_SKIPS` they fail
//! then. `TICKMARK_LAPIN_WORKER` names a build of the worker; else it is built here.

mod broker;
mod cases;
mod metrics;
mod network;
mod soak;
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait far more than they work, but a broker takes a whole processor to start.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    let missing = broker::missing();
    if missing.is_none() && !arguments.list {
        worker::build();
    }
    let trials = cases::ALL
        .iter()
        .map(|&(name, case)| {
            let missing = missing.clone();
            Trial::ignorable_test(name, move || match missing {
                None => {
                    case();
                    Ok(Completion::Completed)
                }
                Some(reason) if std::env::var_os("TICKMARK_NO_SKIPS").is_some() => {
                    Err(format!("skipped: {reason}").into())
                }
                Some(reason) => Ok(Completion::ignored_with(reason)),
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
