//! One run of the probe, from its arguments to its exit status. The reading, the deciding and the
//! saying are the `tickmark` crate's.

use core::ffi::CStr;

use rustix::io::Errno;
use tickmark::clock::Clocks;
use tickmark::report::answer;
use tickmark::settings::{Settings, Source, Sourced};
use tickmark_protocol::{MaxAge, Sink as _, Words, say_with};

use crate::arguments::{self, Arguments, Mode};
use crate::closing::Closing;
use crate::output::Output;
use crate::strings::tail;
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
    /// The time.
    pub clocks: Clocks,
    /// write(2) to standard output.
    pub stdout: fn(&[u8]) -> Result<usize, Errno>,
    /// write(2) to standard error.
    pub stderr: fn(&[u8]) -> Result<usize, Errno>,
}

/// Runs the probe and returns its exit status: 0 healthy, 1 not healthy, 2 wrong usage.
pub fn run<'a, A, E>(started: Started<A, E>) -> u8
where
    A: Iterator<Item = &'a CStr>,
    E: Iterator<Item = &'a CStr> + Clone,
{
    let parsed = arguments::parse(&mut { started.arguments });
    let mut stdout = Output::new(if parsed.is_ok() { started.stdout } else { started.stderr });
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            let parts: [&dyn Words; 2] = [&error, &usage::HELP];
            say_with("tickmark-probe: %\n\n%", &parts, &mut stdout);
            return 2;
        }
    };
    let healthy = match arguments.mode {
        Mode::Help => {
            stdout.put(usage::HELP.as_bytes());
            true
        }
        Mode::Version => {
            stdout.put(usage::VERSION.as_bytes());
            true
        }
        Mode::Answer(form) => {
            (started.arm)(arguments.timeout.get());
            let settings = settings(&arguments, |name| variable(started.environment.clone(), name));
            let mut closing = Closing::default();
            let dispose = &mut |fd| match fd {
                Some(fd) => closing.take(fd),
                None => closing.close_all(),
            };
            answer(form, &settings, started.clocks, dispose, &mut stdout).is_healthy()
        }
    };
    u8::from(!healthy)
}

/// What the worker sees too, and over it what the command line says.
fn settings<'a>(
    arguments: &Arguments<'a>,
    lookup: impl Fn(&str) -> Option<&'a CStr>,
) -> Settings<'a> {
    let mut settings = Settings::from_lookup(lookup);
    if let Some(value) = arguments.dir {
        settings.dir = Sourced { value, source: Source::FLAG };
    }
    if let Some(seconds) = arguments.max_age
        && let Ok(value) = MaxAge::from_secs(seconds.get())
    {
        settings.max_age = Sourced { value, source: Source::FLAG };
    }
    settings
}

/// The value of the first `name=value`, as getenv(3) finds it.
fn variable<'a>(environment: impl Iterator<Item = &'a CStr>, name: &str) -> Option<&'a CStr> {
    for entry in environment {
        if let Some([b'=', ..]) = entry.to_bytes().strip_prefix(name.as_bytes()) {
            return tail(entry, name.len() + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = [c"TICKMARK_DIRX=/no", c"TICKMARK_DIR=/a=b", c"TICKMARK_DIR=/second"];
        let found = |name| variable(environment.into_iter(), name);
        assert_eq!(found("TICKMARK_DIR"), Some(c"/a=b"));
        assert_eq!(found("TICKMARK"), None);
        assert_eq!(found("TICKMARK_MAX_AGE"), None);
    }

    #[test]
    fn a_flag_wins_over_the_environment() {
        let environment = [c"TICKMARK_DIR=/env", c"TICKMARK_MAX_AGE=7"];
        let lookup = |name: &str| variable(environment.into_iter(), name);
        let given = |flags: &[&'static CStr]| {
            settings(&arguments::parse(&mut flags.iter().copied()).unwrap(), lookup)
        };
        let from_environment = given(&[]);
        assert_eq!(from_environment.dir.value, c"/env");
        assert_eq!(from_environment.max_age.value.as_secs(), 7);
        let from_flags = given(&[c"--dir=/flag", c"--max-age=9"]);
        assert_eq!(from_flags.dir.value, c"/flag");
        assert_eq!(from_flags.dir.source, Source::FLAG);
        assert_eq!(from_flags.max_age.value.as_secs(), 9);
        assert_eq!(from_flags.max_age.source, Source::FLAG);
    }
}
