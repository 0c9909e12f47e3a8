//! The command line: which flags there are, what they take, and what is said about a wrong one.
//! Values stay the C strings that the kernel passed; nothing is copied.

use core::ffi::CStr;
use core::num::NonZeroU32;

use tickmark::report::Form;
use tickmark_protocol::procfs::until_byte;
use tickmark_protocol::{Shown, Sink, Words, decimal, say_with};

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
    /// The sentence, in which a `%` stands for the argument, the next for its value, the next for
    /// what is expected.
    problem: &'static str,
    argument: &'a [u8],
    value: &'a [u8],
    expected: &'static str,
}

impl Words for UsageError<'_> {
    fn say(&self, sink: &mut dyn Sink) {
        let parts: [&dyn Words; 3] =
            [&Shown(self.argument), &Shown(self.value), &Shown(self.expected.as_bytes())];
        say_with(self.problem, &parts, sink);
    }
}

/// The names of the flags, a line each.
const FLAGS: &str = "--dir\n--max-age\n--timeout\n--explain\n--json\n--version\n-V\n--help\n-h\n";

/// Places in [`FLAGS`]. What follow are modes.
const DIR: usize = 0;
const MAX_AGE: usize = 1;
const LAST_WITH_VALUE: usize = 2;

/// What is printed without a flag, and with each that takes no value.
const MODES: [Mode; 7] = [
    Mode::Answer(Form::Line),
    Mode::Answer(Form::Table),
    Mode::Answer(Form::Json),
    Mode::Version,
    Mode::Version,
    Mode::Help,
    Mode::Help,
];

/// Reads the arguments that follow the program's own name.
///
/// `--help` and `--version` win at once, so that they answer whatever stands after them.
///
/// # Errors
///
/// An unknown flag, a flag without its value or with one it does not take, a value out of range.
pub fn parse<'a>(
    arguments: &mut dyn Iterator<Item = &'a CStr>,
) -> Result<Arguments<'a>, UsageError<'a>> {
    let mut parsed =
        Arguments { dir: None, max_age: None, timeout: TIMEOUT, mode: Mode::Answer(Form::Line) };
    let mut chosen = LAST_WITH_VALUE;
    while let Some(whole) = arguments.next() {
        let (argument, attached) = split(whole);
        let mut error = UsageError {
            problem: "unknown argument %: expected one of the flags below",
            argument,
            value: b"",
            expected: "",
        };
        let Some(flag) = place(FLAGS, argument) else {
            return Err(error);
        };
        if flag > LAST_WITH_VALUE {
            if attached.is_some() {
                error.problem = "% takes no value";
                return Err(error);
            }
            if chosen != LAST_WITH_VALUE && chosen != flag {
                error.problem = "%: expected only one of --explain and --json";
                return Err(error);
            }
            chosen = flag;
            let mode = MODES.get(chosen - LAST_WITH_VALUE).copied();
            parsed.mode = mode.unwrap_or(parsed.mode);
            if matches!(parsed.mode, Mode::Version | Mode::Help) {
                break;
            }
            continue;
        }
        error.expected = if flag == DIR { DIR_VALUE } else { SECONDS_VALUE };
        let Some(value) = attached.or_else(|| arguments.next()) else {
            error.problem = "%% lacks its value: expected %";
            return Err(error);
        };
        error.problem = "% %: expected %";
        error.value = value.to_bytes();
        if flag == DIR {
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
        if flag == MAX_AGE {
            parsed.max_age = Some(seconds);
        } else {
            parsed.timeout = seconds;
        }
    }
    Ok(parsed)
}

/// Where `name` stands among `names`.
fn place(names: &str, name: &[u8]) -> Option<usize> {
    let mut rest = names.as_bytes();
    let mut at = 0;
    while !rest.is_empty() {
        let (known, after) = until_byte(rest, b'\n');
        if known == name {
            return Some(at);
        }
        rest = after;
        at += 1;
    }
    None
}

/// `--flag=value` as its two halves.
fn split(argument: &CStr) -> (&[u8], Option<&CStr>) {
    let bytes = argument.to_bytes();
    if bytes.starts_with(b"--") {
        let (flag, _) = until_byte(bytes, b'=');
        if flag.len() < bytes.len() {
            return (flag, tail(argument, flag.len() + 1));
        }
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
        parse(&mut arguments.iter().copied()).map_err(|error| said(&error))
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
