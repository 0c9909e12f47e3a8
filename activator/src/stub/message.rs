//! What passes between an activator and its stub. Both are the same build, so that there is no
//! version in it.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;

use super::Launch;

/// The zeroth argument by which a stub knows that it is one. `ps` shows it.
pub(super) const STUB: &str = "tickmark-activator: waiting for its go";

/// The one byte of the go. Who reads it, the stub or the activator that takes it back, decides
/// whether the exec follows.
pub(super) const GO: u8 = b'g';

/// How far a stub came; with an errno it is what failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    /// Reading its launch.
    Read = 1,
    /// Its descriptors, session and signals.
    Detach,
    /// The launch's directory.
    Directory,
    /// With errno zero: all is ready for the exec.
    Ready,
    /// The exec.
    Exec,
}

impl Step {
    const ALL: [Step; 5] = [Step::Read, Step::Detach, Step::Directory, Step::Ready, Step::Exec];
}

/// A step and its errno, zero for none.
pub(super) const ANSWER: usize = 5;

pub(super) fn encode_answer(step: Step, errno: i32) -> [u8; ANSWER] {
    let [a, b, c, d] = errno.to_ne_bytes();
    [step as u8, a, b, c, d]
}

pub(super) fn decode_answer([step, a, b, c, d]: [u8; ANSWER]) -> Option<(Step, i32)> {
    let step = Step::ALL.into_iter().find(|known| *known as u8 == step)?;
    Some((step, i32::from_ne_bytes([a, b, c, d])))
}

/// The launch as the stub reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) directory: CString,
    pub(super) program: CString,
    pub(super) arguments: Vec<CString>,
    pub(super) environment: Vec<CString>,
}

/// Eight bytes of length, then each string with its NUL: the directory, the program, a count, as
/// many arguments, the environment. `None` where a string has a NUL inside.
pub(super) fn encode_order(launch: &Launch) -> Option<Vec<u8>> {
    let mut text = vec![0; 8];
    let mut whole = true;
    let mut put = |pieces: &[&OsStr]| {
        for piece in pieces {
            whole &= !piece.as_bytes().contains(&0);
            text.extend_from_slice(piece.as_bytes());
        }
        text.push(0);
    };
    put(&[launch.directory.as_os_str()]);
    put(&[launch.program.as_os_str()]);
    put(&[OsStr::new(&launch.arguments.len().to_string())]);
    launch.arguments.iter().for_each(|argument| put(&[argument]));
    for (name, value) in &launch.environment {
        put(&[name, OsStr::new("="), value]);
    }
    let length = (text.len() - 8) as u64;
    text[..8].copy_from_slice(&length.to_ne_bytes());
    whole.then_some(text)
}

/// Without the length.
pub(super) fn decode_order(text: &[u8]) -> Option<Order> {
    let mut strings = text
        .split_inclusive(|byte| *byte == 0)
        .map(|piece| CString::from_vec_with_nul(piece.to_vec()).ok());
    let mut next = || strings.next().flatten();
    let directory = next()?;
    let program = next()?;
    let count: usize = next()?.to_str().ok()?.parse().ok()?;
    let arguments = (0..count).map(|_| next()).collect::<Option<_>>()?;
    let environment = strings.collect::<Option<_>>()?;
    Some(Order { directory, program, arguments, environment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn launch() -> Launch {
        Launch {
            program: "/bin/x".into(),
            arguments: vec!["".into(), "a b".into()],
            environment: vec![("A".into(), "".into()), ("B".into(), "1=2".into())],
            directory: "/".into(),
            output: File::open("/dev/null").unwrap().into(),
        }
    }

    #[test]
    fn a_launch_arrives_as_it_was_given() {
        let text = encode_order(&launch()).unwrap();
        assert_eq!(text[..8], ((text.len() - 8) as u64).to_ne_bytes());
        let c = |text: &str| CString::new(text).unwrap();
        let order = decode_order(&text[8..]).unwrap();
        assert_eq!(
            order,
            Order {
                directory: c("/"),
                program: c("/bin/x"),
                arguments: vec![c(""), c("a b")],
                environment: vec![c("A="), c("B=1=2")],
            }
        );
        assert!(decode_order(&text[8..12]).is_none());
    }

    #[test]
    fn a_nul_inside_a_string_is_refused() {
        let mut launch = launch();
        launch.arguments.push("a\0b".into());
        assert!(encode_order(&launch).is_none());
    }

    #[test]
    fn an_answer_reads_back() {
        for step in Step::ALL {
            assert_eq!(decode_answer(encode_answer(step, 13)), Some((step, 13)));
        }
        assert_eq!(decode_answer([0; ANSWER]), None);
    }
}
