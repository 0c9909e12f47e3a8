//! The scenarios of VERIFYING.md on a real Kubernetes. `cargo xtask verify` makes the images and
//! starts this; here is the order of a run, from the cluster to the table.
#![allow(clippy::print_stdout, reason = "a command line program")]

mod answer;
mod backend;
mod broker;
mod clock;
mod images;
mod kubectl;
mod manifest;
mod options;
mod progress;
mod record;
mod run;
mod scenarios;
mod stage;
mod table;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use answer::{Doing as _, Stop};
use options::{Options, Request, USAGE};

fn main() -> ExitCode {
    let options = match options::parse(lexopt::Parser::from_env()) {
        Ok(Request::Help) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Request::List) => {
            let mut all: Vec<_> = scenarios::ALL.iter().collect();
            all.sort_by_key(|scenario| scenario.number);
            for scenario in all {
                println!("{:2}  {}", scenario.number, scenario.name);
            }
            return ExitCode::SUCCESS;
        }
        Ok(Request::Render) => return finish(record::render().map(|()| true)),
        Ok(Request::Kernels(printed)) => {
            let recorded = std::fs::read_to_string(&printed)
                .doing(format_args!("read {}", printed.display()))
                .and_then(|printed| record::write_kernels(&printed));
            return finish(recorded.map(|()| true));
        }
        Ok(Request::Check) => return ExitCode::SUCCESS,
        Ok(Request::Run(options)) => options,
        Err(mistake) => {
            eprintln!("verify: {mistake}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    finish(verify(&options))
}

fn finish(done: Result<bool, Stop>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(stop) => {
            eprintln!("verify: {stop}");
            ExitCode::FAILURE
        }
    }
}

fn verify(options: &Options) -> Result<bool, Stop> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).doing("handle signals")?;
    }
    let outcome = run::run(options, &interrupted)?;
    if options.json {
        println!("{}", table::json(&outcome));
    } else {
        print!("{}", table::text(&outcome));
    }
    if options.record {
        record::write(&outcome)?;
    }
    Ok(outcome.holds())
}
