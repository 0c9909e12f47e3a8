//! The command line: which flags there are, what they take, and what is said about a wrong one.
//! Values stay the C strings that the kernel passed; nothing is copied.

use core::ffi::CStr;
use core::num::NonZeroU32;

use tickmark_protocol::{Shown, Sink, Words, decimal};

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One line: the verdict.
    Verdict,
    /// A table for people.
    Explain,
    /// The same for programs.
    Json,
    /// The version.
    Version,
    /// What the flags mean.
    Help,
}

/// A command line that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments<'a> {
    /// `--dir`, where it was given.
    pub dir: Option<&'a CStr>,
    /// `--max-age` in seconds, where it was given.
    pub max_age: Option<NonZeroU32>,
    /// `--timeout` in seconds.
    pub timeout: NonZeroU32,
    /// What to print.
    pub mode: Mode,
}

/// Seconds until a probe that hangs ends by SIGALRM.
const TIMEOUT: NonZeroU32 = NonZeroU32::new(3).unwrap();

const DIR_VALUE: &str = "a directory, which is not empty";
const SECONDS_VALUE: &str = "a whole number of seconds from 1 to 4294967295";

/// A command line that makes none: the argument at fault, and what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageError<'a> {
    argument: &'a [u8],
    problem: Problem<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem<'a> {
    Unknown,
    Missing(&'static str),
    Bad(&'a [u8], &'static str),
    TakesNone,
    TwoModes,
}

impl Words for UsageError<'_> {
    fn say(&self, sink: &mut dyn Sink) {
        let (argument, none) = (Shown(self.argument), Shown(b""));
        let (value, problem, expected) = match self.problem {
            Problem::Unknown => {
                sink.put(b"unknown argument ");
                (none, ": expected one of the flags below", "")
            }
            Problem::Missing(expected) => (none, " lacks its value: expected ", expected),
            Problem::Bad(value, expected) => (Shown(value), ": expected ", expected),
            Problem::TakesNone => (none, " takes no value", ""),
            Problem::TwoModes => (none, ": expected only one of --explain and --json", ""),
        };
        argument.say(sink);
        if !value.0.is_empty() || matches!(self.problem, Problem::Bad(..)) {
            sink.put(b" ");
        }
        value.say(sink);
        problem.say(sink);
        expected.say(sink);
    }
}

/// Reads the arguments that follow the program's own name.
///
/// `--help` and `--version` win at once, so that they answer whatever stands after them.
///
/// # Errors
///
/// An unknown flag, a flag without its value or with one it does not take, a value out of range.
pub fn parse<'a>(
    mut arguments: impl Iterator<Item = &'a CStr>,
) -> Result<Arguments<'a>, UsageError<'a>> {
    let mut parsed = Arguments { dir: None, max_age: None, timeout: TIMEOUT, mode: Mode::Verdict };
    while let Some(argument) = arguments.next() {
        let (flag, attached) = split(argument);
        let error = |problem| UsageError { argument: flag, problem };
        let mut value = |expected| {
            attached.or_else(|| arguments.next()).ok_or(error(Problem::Missing(expected)))
        };
        let mode = match flag {
            b"--dir" => {
                let dir = value(DIR_VALUE)?;
                if dir.is_empty() {
                    return Err(error(Problem::Bad(b"''", DIR_VALUE)));
                }
                parsed.dir = Some(dir);
                continue;
            }
            b"--max-age" | b"--timeout" => {
                let text = value(SECONDS_VALUE)?.to_bytes();
                let seconds = seconds(text).ok_or(error(Problem::Bad(text, SECONDS_VALUE)))?;
                if flag == b"--timeout" {
                    parsed.timeout = seconds;
                } else {
                    parsed.max_age = Some(seconds);
                }
                continue;
            }
            b"--explain" => Mode::Explain,
            b"--json" => Mode::Json,
            b"--version" | b"-V" => Mode::Version,
            b"--help" | b"-h" => Mode::Help,
            _ => return Err(error(Problem::Unknown)),
        };
        if attached.is_some() {
            return Err(error(Problem::TakesNone));
        }
        if parsed.mode != Mode::Verdict && parsed.mode != mode {
            return Err(error(Problem::TwoModes));
        }
        parsed.mode = mode;
        if matches!(mode, Mode::Version | Mode::Help) {
            break;
        }
    }
    Ok(parsed)
}

/// `--flag=value` as its two halves.
fn split(argument: &CStr) -> (&[u8], Option<&CStr>) {
    let bytes = argument.to_bytes_with_nul();
    match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) if bytes.starts_with(b"--") => {
            (&bytes[..at], CStr::from_bytes_with_nul(&bytes[at + 1..]).ok())
        }
        _ => (argument.to_bytes(), None),
    }
}

/// Digits and nothing else; what does not fit is an error, not another number.
fn seconds(text: &[u8]) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(decimal(text)?).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    struct Collected(std::vec::Vec<u8>);

    impl Sink for Collected {
        fn put(&mut self, text: &[u8]) {
            self.0.extend_from_slice(text);
        }
    }

    fn said(words: &dyn Words) -> String {
        let mut sink = Collected(std::vec::Vec::new());
        words.say(&mut sink);
        String::from_utf8(sink.0).unwrap()
    }

    fn read<'a>(arguments: &[&'a CStr]) -> Result<Arguments<'a>, String> {
        parse(arguments.iter().copied()).map_err(|error| said(&error))
    }

    #[test]
    fn no_arguments_are_the_defaults() {
        let parsed = read(&[]).unwrap();
        assert_eq!(parsed.dir, None);
        assert_eq!(parsed.max_age, None);
        assert_eq!(parsed.timeout.get(), 3);
        assert_eq!(parsed.mode, Mode::Verdict);
    }

    #[test]
    fn a_value_is_attached_or_the_next_argument() {
        for arguments in [
            &[c"--dir", c"/marks", c"--max-age", c"7", c"--timeout", c"9"][..],
            &[c"--dir=/marks", c"--max-age=7", c"--timeout=9"],
        ] {
            let parsed = read(arguments).unwrap();
            assert_eq!(parsed.dir, Some(c"/marks"));
            assert_eq!(parsed.max_age, NonZeroU32::new(7));
            assert_eq!(parsed.timeout.get(), 9);
        }
        assert_eq!(read(&[c"--dir=a=b"]).unwrap().dir, Some(c"a=b"));
    }

    #[test]
    fn the_mode_is_what_was_asked_for() {
        for (flag, mode) in [
            (c"--explain", Mode::Explain),
            (c"--json", Mode::Json),
            (c"--version", Mode::Version),
            (c"-V", Mode::Version),
            (c"--help", Mode::Help),
            (c"-h", Mode::Help),
        ] {
            assert_eq!(read(&[flag]).unwrap().mode, mode);
        }
        assert_eq!(read(&[c"--help", c"--nonsense"]).unwrap().mode, Mode::Help);
    }

    #[test]
    fn a_wrong_argument_is_named_with_what_is_expected() {
        let cases: &[(&[&CStr], &str)] = &[
            (&[c"--dri"], "unknown argument --dri: expected one of the flags below"),
            (&[c"--dri=x"], "unknown argument --dri: expected one of the flags below"),
            (&[c"marks"], "unknown argument marks: expected one of the flags below"),
            (&[c""], "unknown argument : expected one of the flags below"),
            (&[c"--dir"], "--dir lacks its value: expected a directory, which is not empty"),
            (&[c"--dir="], "--dir '': expected a directory, which is not empty"),
            (&[c"--explain=yes"], "--explain takes no value"),
            (&[c"--explain", c"--json"], "--json: expected only one of --explain and --json"),
        ];
        for (arguments, message) in cases {
            assert_eq!(read(arguments).unwrap_err(), *message);
        }
        assert_eq!(
            read(&[c"--\xff"]).unwrap_err(),
            "unknown argument --?: expected one of the flags below"
        );
    }

    #[test]
    fn seconds_are_digits_from_one_up() {
        for bad in [
            c"0",
            c"-1",
            c"+1",
            c"1.5",
            c"45s",
            c" 45",
            c"",
            c"4294967296",
            c"99999999999999999999",
        ] {
            for flag in [c"--max-age", c"--timeout"] {
                let message = read(&[flag, bad]).unwrap_err();
                assert!(message.starts_with(flag.to_str().unwrap()), "{message}");
                assert!(message.contains("whole number of seconds from 1"), "{message}");
            }
        }
        assert_eq!(read(&[c"--max-age=4294967295"]).unwrap().max_age, NonZeroU32::new(u32::MAX));
    }
}
