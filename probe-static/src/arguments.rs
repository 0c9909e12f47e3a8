//! The command line: which flags there are, what they take, and what is said about a wrong one.
//! Values stay the C strings that the kernel passed; nothing is copied.

use core::ffi::CStr;
use core::num::NonZeroU32;

use tickmark::report::Form;
use tickmark_protocol::{Shown, Sink, Words, decimal};

use crate::strings::tail;

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What the marks say.
    Answer(Form),
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
    value: &'a [u8],
    problem: Problem,
    expected: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    Unknown,
    Missing,
    Bad,
    TakesNone,
    TwoModes,
}

impl Words for UsageError<'_> {
    fn say(&self, sink: &mut dyn Sink) {
        let (before, between, after) = match self.problem {
            Problem::Unknown => ("unknown argument ", ": expected one of the flags below", ""),
            Problem::Missing => ("", " lacks its value: expected ", ""),
            Problem::Bad => ("", " ", ": expected "),
            Problem::TakesNone => ("", " takes no value", ""),
            Problem::TwoModes => ("", ": expected only one of --explain and --json", ""),
        };
        before.say(sink);
        Shown(self.argument).say(sink);
        between.say(sink);
        Shown(self.value).say(sink);
        after.say(sink);
        self.expected.say(sink);
    }
}

/// What a flag is for.
#[derive(Clone, Copy)]
enum Flag {
    Dir,
    MaxAge,
    Timeout,
    Mode(Mode),
}

const FLAGS: [(&str, Flag); 9] = [
    ("--dir", Flag::Dir),
    ("--max-age", Flag::MaxAge),
    ("--timeout", Flag::Timeout),
    ("--explain", Flag::Mode(Mode::Answer(Form::Table))),
    ("--json", Flag::Mode(Mode::Answer(Form::Json))),
    ("--version", Flag::Mode(Mode::Version)),
    ("-V", Flag::Mode(Mode::Version)),
    ("--help", Flag::Mode(Mode::Help)),
    ("-h", Flag::Mode(Mode::Help)),
];

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
    let mut parsed =
        Arguments { dir: None, max_age: None, timeout: TIMEOUT, mode: Mode::Answer(Form::Line) };
    while let Some(whole) = arguments.next() {
        let (argument, attached) = split(whole);
        let mut error =
            UsageError { argument, value: b"", problem: Problem::Unknown, expected: "" };
        let Some((_, flag)) = FLAGS.iter().find(|(name, _)| name.as_bytes() == argument) else {
            return Err(error);
        };
        if let Flag::Mode(mode) = *flag {
            if attached.is_some() {
                error.problem = Problem::TakesNone;
                return Err(error);
            }
            if parsed.mode != Mode::Answer(Form::Line) && parsed.mode != mode {
                error.problem = Problem::TwoModes;
                return Err(error);
            }
            parsed.mode = mode;
            if matches!(mode, Mode::Version | Mode::Help) {
                break;
            }
            continue;
        }
        error.expected = if let Flag::Dir = flag { DIR_VALUE } else { SECONDS_VALUE };
        let Some(value) = attached.or_else(|| arguments.next()) else {
            error.problem = Problem::Missing;
            return Err(error);
        };
        error.problem = Problem::Bad;
        error.value = value.to_bytes();
        if let Flag::Dir = flag {
            if value.is_empty() {
                error.value = b"''";
                return Err(error);
            }
            parsed.dir = Some(value);
            continue;
        }
        let Some(seconds) = seconds(error.value) else {
            return Err(error);
        };
        if let Flag::Timeout = flag {
            parsed.timeout = seconds;
        } else {
            parsed.max_age = Some(seconds);
        }
    }
    Ok(parsed)
}

/// `--flag=value` as its two halves.
fn split(argument: &CStr) -> (&[u8], Option<&CStr>) {
    let bytes = argument.to_bytes();
    if bytes.starts_with(b"--")
        && let Some(at) = bytes.iter().position(|&byte| byte == b'=')
        && let Some(flag) = bytes.get(..at)
    {
        return (flag, tail(argument, at + 1));
    }
    (bytes, None)
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
        assert_eq!(parsed.mode, Mode::Answer(Form::Line));
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
            (c"--explain", Mode::Answer(Form::Table)),
            (c"--json", Mode::Answer(Form::Json)),
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
