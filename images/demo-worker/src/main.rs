//! A queue worker whose queue is in its own process: it needs no broker, so a demo or a
//! container test can make it healthy, ill, stuck or dead at will.

mod options;
mod pause;
mod slot;

use std::process::ExitCode;

use options::{Invocation, USAGE};
use rustix::process::Signal;
use tickmark_supervision::supervisor::{self, Whom};

/// What makes a worker ill is for slot 0, and what lets the consumers start for all.
const PASSED_ON: &[(Signal, Whom)] = &[(Signal::USR1, Whom::First), (Signal::USR2, Whom::All)];

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let outcome = match options::parse(std::env::args().skip(1)) {
        Ok(Invocation::Help) => {
            #[expect(clippy::print_stdout, reason = "help was asked for")]
            {
                print!("{USAGE}");
            }
            Ok(())
        }
        Ok(Invocation::Pause) => pause::run(),
        Ok(Invocation::Work(options)) => {
            supervisor::die_with_supervisor().and_then(|()| match options.slots {
                1 => slot::run(&options),
                slots => supervisor::run(slots, PASSED_ON, |command| {
                    command.args(options.slot_arguments());
                }),
            })
        }
        Err(mistake) => {
            eprintln!("tickmark-demo-worker: {mistake}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!("demo worker failed: {failure}");
            ExitCode::FAILURE
        }
    }
}
