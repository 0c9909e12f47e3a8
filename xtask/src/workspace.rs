//! Where things are in this repository, and running programs there with their failure in words.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::{Doing as _, Failure};

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// `dist/`, where what is made for others to take goes.
pub(crate) fn dist() -> PathBuf {
    root().join("dist")
}

/// A directory of its own for builds with other flags, below the one cargo uses.
pub(crate) fn build_directory(name: &str) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |dir| root().join(dir))
        .join(name)
}

/// The cargo that runs this.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `command` to its end and fails if it does.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let shown = shown(command);
    let status = command.status().doing(format_args!("run {shown}"))?;
    if status.success() { Ok(()) } else { Err(Failure::failed(format!("{shown}: {status}"))) }
}

/// The program and its arguments, for a message.
fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The file that `name` would run, if PATH holds one.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}
