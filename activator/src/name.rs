//! Names that become path components: a host, a build, a generation's number, a leaf cgroup.
//! Each is checked once, here, so that no other module asks whether a name is safe.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::error::{Error, Kind};

/// The longest host or build name in bytes: with a suffix it still is one path component.
const MAX_NAME: usize = 64;

macro_rules! text_name {
    ($name:ident, $what:literal, $allowed:expr) => {
        impl $name {
            #[doc = concat!("Checks that `text` may name a ", $what, ".")]
            ///
            /// # Errors
            /// Names the text and what is allowed.
            pub fn new(text: impl Into<String>) -> Result<$name, Error> {
                let text = text.into();
                check(&text, $what, $allowed)?;
                Ok($name(text))
            }

            /// The name as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<$name, Error> {
                $name::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<$name, Error> {
                $name::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
    };
}

/// A host's name: letters, digits, `-` and `_`, first a letter or a digit, at most 64 bytes. No
/// dot: a cgroup directory of this name must never collide with an interface file such as
/// `memory.max`.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

text_name!(HostName, "host", "letters, digits, '-' and '_'");

/// A build's name, by default the file name of what was staged: as a host's, and dots.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct BuildName(String);

text_name!(BuildName, "build", "letters, digits, '-', '_' and '.'");

fn check(text: &str, what: &str, allowed: &str) -> Result<(), Error> {
    let dots = allowed.ends_with("'.'");
    let fits =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || dots && byte == b'.';
    let good = (1..=MAX_NAME).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(fits);
    if good {
        return Ok(());
    }
    Err(Error::new(
        Kind::Usage,
        format!(
            "{text:?} cannot name a {what}: use 1 to {MAX_NAME} {allowed}, and begin with a letter or a digit"
        ),
    ))
}

/// The number of a process generation: counted per host from 1, never given twice.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct GenerationNumber(NonZeroU64);

impl GenerationNumber {
    /// The first generation of a host.
    pub const FIRST: GenerationNumber = GenerationNumber(NonZeroU64::MIN);
    /// The largest number, by which the longest socket path is sized.
    pub const LARGEST: GenerationNumber = GenerationNumber(NonZeroU64::MAX);

    /// `None` for zero.
    #[must_use]
    pub const fn new(number: u64) -> Option<GenerationNumber> {
        match NonZeroU64::new(number) {
            Some(number) => Some(GenerationNumber(number)),
            None => None,
        }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number after this one.
    ///
    /// # Panics
    /// After 2^64 − 1 generations.
    #[must_use]
    pub fn next(self) -> GenerationNumber {
        GenerationNumber(self.0.checked_add(1).expect("a host starts fewer than 2^64 generations"))
    }
}

impl fmt::Display for GenerationNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for GenerationNumber {
    type Err = Error;
    fn from_str(text: &str) -> Result<GenerationNumber, Error> {
        // Digits alone, and only the form that `Display` gives: `+7` and `007` name nothing.
        text.parse()
            .ok()
            .and_then(GenerationNumber::new)
            .filter(|number| number.to_string() == text)
            .ok_or_else(|| {
                Error::new(Kind::Usage, format!("{text:?} is not the number of a generation"))
            })
    }
}

/// A leaf cgroup of a host: what runs in it can be told from its name alone, so that an activator
/// that starts again finds what ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafName {
    /// `generation-17-0`: one slot of a generation; a host with a socket has slot 0 alone.
    Generation(GenerationNumber, u32),
    /// `sidecar`.
    Sidecar,
}

impl fmt::Display for LeafName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeafName::Generation(number, slot) => write!(f, "generation-{number}-{slot}"),
            LeafName::Sidecar => f.write_str("sidecar"),
        }
    }
}

impl FromStr for LeafName {
    type Err = Error;
    fn from_str(text: &str) -> Result<LeafName, Error> {
        let named = match text.strip_prefix("generation-").and_then(|rest| rest.split_once('-')) {
            Some((number, slot)) => match (number.parse(), slot.parse()) {
                (Ok(number), Ok(slot)) => Some(LeafName::Generation(number, slot)),
                _ => None,
            },
            None => (text == "sidecar").then_some(LeafName::Sidecar),
        };
        named
            .filter(|name| name.to_string() == text)
            .ok_or_else(|| Error::new(Kind::Usage, format!("{text:?} is not a leaf of ours")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_safe_path_component() {
        for good in ["orders", "a", "orders-eu_2", "9lives"] {
            assert_eq!(HostName::new(good).unwrap().as_str(), good);
        }
        for bad in
            ["", ".", "..", "a/b", "-x", "_x", "a b", "a\0", "memory.max", "é", &"x".repeat(65)]
        {
            assert!(HostName::new(bad).is_err(), "{bad:?}");
        }
        assert!(BuildName::new("1.4.2-rc.1").is_ok());
        for bad in ["..", ".hidden", "a/b", ""] {
            assert!(BuildName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_leaf_reads_back_as_what_it_was_named_for() {
        let number = GenerationNumber::new(17).unwrap();
        for name in [
            LeafName::Generation(number, 0),
            LeafName::Generation(GenerationNumber::LARGEST, 4095),
            LeafName::Sidecar,
        ] {
            assert_eq!(name.to_string().parse::<LeafName>().unwrap(), name);
        }
        for other in
            ["generation-0-0", "generation-01-0", "generation-1", "generation-+1-0", "init", ""]
        {
            assert!(other.parse::<LeafName>().is_err(), "{other:?}");
        }
    }
}
