//! Broker tests: a worker on lapin, its marks and its log, while a real RabbitMQ is killed, loses
//! queues and refuses logins.
//!
//! Needs Debian's `rabbitmq-server`, which is started here on ports of its own on the loopback
//! device. Skipped, with the reason in one line, without it; with `TICKMARK_NO_SKIPS` they fail
//! then. `TICKMARK_LAPIN_WORKER` names a build of the worker; else it is built here.

mod broker;
mod cases;
mod image;
mod metrics;
mod network;
mod oracle;
mod slots;
mod soak;
mod swap;
mod worker;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::broker::Broker;

fn main() -> ExitCode {
    tickmark_activator::stub::intercept();
    let mut arguments = Arguments::from_args();
    // They wait: for ticks, for graces, for a broker that starts.
    arguments.test_threads = arguments.test_threads.or(Some(cases::ALL.len()));
    let no_broker = broker::missing();
    if no_broker.is_none() && !arguments.list {
        worker::build();
    }
    let trials = cases::ALL
        .iter()
        .map(|case| {
            let no_broker = no_broker.clone();
            Trial::ignorable_test(case.name, move || match no_broker.or_else(case.missing) {
                None => {
                    (case.run)();
                    Ok(Completion::Completed)
                }
                Some(reason) if std::env::var_os("TICKMARK_NO_SKIPS").is_some() => {
                    Err(format!("skipped: {reason}").into())
                }
                Some(reason) => Ok(Completion::ignored_with(reason)),
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    Broker::end_shared();
    conclusion.exit_code()
}
