//! `tickmark-activator`: the daemon and the command that asks it. The library does the work.

mod check;
mod command;
mod control;
mod daemon;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A start re-executes this very binary: before anything else.
    tickmark_activator::stub::intercept();
    command::main()
}
