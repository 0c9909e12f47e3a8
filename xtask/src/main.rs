//! `cargo xtask`: the chores of this repository. Here is only the dispatch; each command is a module
//! of its own. Exit status: 0 done, 1 failed, 2 wrong usage.
#![allow(clippy::print_stdout, reason = "a command line program")]

mod bench;
mod ci;
mod containers;
mod demo;
mod elf;
mod image;
mod lint_manifest;
mod outcome;
mod probe;
mod suites;
mod test;
mod verify;
mod workspace;

use std::process::ExitCode;

use outcome::Failure;

const HELP: &str = "\
cargo xtask COMMAND [FLAG]...

  demo           watch a worker and the probe through a story, with nothing set up beforehand
  test           run every test that can run here, and say why the others cannot
  probe          build the static probe for each architecture and check the files
  image          write the probe's multi-architecture image, without a container engine
  bench          measure the probe beside other programs, and the worker's tick
  containers     run the tests that make real containers: needs root and runc
  lint-manifest  say what will go wrong with a worker's Kubernetes manifest
  verify         run the scenarios of VERIFYING.md on a Kubernetes that was named
  ci             everything else that must hold

cargo xtask COMMAND --help tells more about one.
";

fn main() -> ExitCode {
    let mut arguments = lexopt::Parser::from_env();
    let result = match arguments.next() {
        Ok(Some(lexopt::Arg::Value(command))) => match command.to_str() {
            Some("probe") => probe::command(arguments),
            Some("image") => image::command(arguments),
            Some("bench") => bench::command(arguments),
            Some("containers") => containers::command(arguments),
            Some("test") => test::command(arguments),
            Some("lint-manifest") => lint_manifest::command(arguments),
            Some("verify") => verify::command(arguments),
            Some("ci") => ci::command(arguments),
            Some("demo") => demo::command(arguments),
            Some("help") => {
                print!("{HELP}");
                Ok(())
            }
            _ => {
                Err(Failure::usage(format!("there is no command {}\n\n{HELP}", command.display())))
            }
        },
        Ok(Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h'))) => {
            print!("{HELP}");
            Ok(())
        }
        Ok(Some(flag)) => Err(Failure::usage(format!("{}\n\n{HELP}", flag.unexpected()))),
        Ok(None) => Err(Failure::usage(HELP.to_owned())),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.status())
        }
    }
}
