//! The programs the probe is measured beside, and how they are built. What is not installed is left
//! out, with a line that says so.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::marks::MarksDirectory;
use crate::outcome::Failure;
use crate::probe::{self, Target};
use crate::workspace;

/// The name of the one the ratios refer to.
pub(super) const EMPTY: &str = "empty static main";

/// A program and its arguments.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) file: PathBuf,
    arguments: Vec<OsString>,
    /// Whether to run it less often.
    pub(super) slow: bool,
}

impl Program {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.args(&self.arguments);
        command
    }
}

/// The probe's lines come first.
pub(super) fn all(
    host: Target,
    directory: &Path,
    marks: &[(u32, MarksDirectory)],
) -> Result<Vec<Program>, Failure> {
    let mut programs = Vec::new();
    for (slots, marks) in marks {
        programs.push(Program {
            name: format!("tickmark-probe, {slots} slots"),
            file: host.file(),
            arguments: marks.arguments(),
            slow: false,
        });
    }
    programs.push(Program {
        name: EMPTY.to_owned(),
        file: empty(host, directory)?,
        arguments: Vec::new(),
        slow: false,
    });
    let truth = Path::new("/bin/true");
    if truth.is_file() {
        programs.push(Program {
            name: truth.display().to_string(),
            file: truth.to_owned(),
            arguments: Vec::new(),
            slow: false,
        });
    }
    let one = marks.first().map(|(_, marks)| marks);
    if let (Some(file), Some(marks)) = (go(directory)?, one) {
        programs.push(Program {
            name: "static Go, reads one file".to_owned(),
            file,
            arguments: vec![marks.path().join("worker-0").into()],
            slow: false,
        });
    }
    match (workspace::on_path("ruby"), one) {
        (Some(ruby), Some(marks)) => {
            let script: OsString = source("probe.rb").into();
            for (name, flag) in [("ruby --disable-gems", Some("--disable-gems")), ("ruby", None)] {
                let mut arguments: Vec<OsString> = flag.into_iter().map(OsString::from).collect();
                arguments.extend([script.clone(), marks.path().into(), "1".into()]);
                programs.push(Program {
                    name: format!("{name}, the probe's reading"),
                    file: ruby.clone(),
                    arguments,
                    slow: true,
                });
            }
        }
        _ => println!("left out: ruby is not on PATH"),
    }
    Ok(programs)
}

fn source(name: &str) -> PathBuf {
    workspace::root().join("xtask/bench").join(name)
}

/// Built with the probe's flags: what is left between the two is what the probe does.
pub(crate) fn empty(host: Target, directory: &Path) -> Result<PathBuf, Failure> {
    let file = directory.join("empty");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    workspace::run(
        Command::new(rustc)
            .current_dir(workspace::root())
            .args(["--edition=2024", "--target", host.triple(), "-Clinker=rust-lld"])
            .args(["-Copt-level=z", "-Clto=fat", "-Ccodegen-units=1"])
            .args(["-Cpanic=abort", "-Cstrip=symbols"])
            .args(probe::static_flags())
            .args(probe::link_arguments().map(|argument| format!("-Clink-arg={argument}")))
            .arg("-o")
            .arg(&file)
            .arg(source("empty.rs")),
    )?;
    Ok(file)
}

fn go(directory: &Path) -> Result<Option<PathBuf>, Failure> {
    let Some(go) = workspace::on_path("go") else {
        println!("left out: go is not on PATH");
        return Ok(None);
    };
    println!("building the Go program");
    let file = directory.join("go-reader");
    workspace::run(
        Command::new(go)
            .env("CGO_ENABLED", "0")
            .env("GO111MODULE", "off")
            .args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
            .arg(&file)
            .arg(source("reader.go")),
    )?;
    Ok(Some(file))
}
