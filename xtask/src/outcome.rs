//! How a command fails: with a sentence for the person who typed it, and 1 or 2 for a script.

use std::fmt;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// The command was understood and did not succeed: exit 1.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 1 }
    }

    /// The command was not understood: exit 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }

    pub(crate) const fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Self {
        Self::usage(error.to_string())
    }
}

/// Names the operation and what it was done to in an error that says neither.
pub(crate) trait Doing<T> {
    /// `what` reads like "write dist/SHA256SUMS".
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::failed(format!("{what}: {error}")))
    }
}
