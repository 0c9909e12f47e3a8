//! A queue worker whose queue is in its own process: it needs no broker, so a demo or a
//! container test can make it healthy, ill, stuck or dead at will.

mod options;
mod pause;
mod slot;
mod supervisor;

use std::process::ExitCode;

use options::{Invocation, USAGE};

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
                _ => supervisor::run(&options),
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
