//! A RabbitMQ worker on lapin, to be judged by tickmark and made ill on request: one process, or
//! one for each slot under a supervisor.

mod options;
mod slot;
mod switch;

use std::process::{Command, ExitCode};

use options::{Invocation, USAGE};
use switch::Switch;
use tickmark_supervision::supervisor::{self, Whom};

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .init();
    let outcome = match options::parse(std::env::args().skip(1)) {
        Ok(Invocation::Help) => {
            #[expect(clippy::print_stdout, reason = "help was asked for")]
            {
                print!("{USAGE}");
            }
            Ok(())
        }
        Ok(Invocation::Switch(switch, pid)) => switch.request(pid).map_err(Into::into),
        Ok(Invocation::Work(options)) => supervisor::die_with_supervisor()
            .map_err(Into::into)
            .and_then(|()| match options.slots {
                1 => slot::run(&options),
                slots => {
                    let switches = Switch::ALL.map(|switch| (switch.signal(), Whom::First));
                    let prepare = |command: &mut Command| {
                        command.envs(options.slot_variables());
                    };
                    supervisor::run(slots, &switches, prepare).map_err(Into::into)
                }
            }),
        Err(mistake) => {
            eprintln!("tickmark-lapin-worker: {mistake}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!("lapin worker failed: {failure}");
            ExitCode::FAILURE
        }
    }
}
