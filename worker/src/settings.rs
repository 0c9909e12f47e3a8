//! The settings that the worker and the probe must see alike, from the environment alone:
//! the probe is another process. What only the worker needs is in its builder.

use core::ffi::CStr;

use tickmark_protocol::{Encoding, LaunchToken, MaxAge, decimal};

/// Where a setting came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nothing valid was given.
    Default,
    /// The environment variable of this name.
    Environment(&'static str),
    /// A flag on the command line.
    Flag,
}

/// A value and where it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Its source.
    pub source: Source,
}

/// The shared settings. A blank or invalid value in the environment means the default.
#[derive(Debug, Clone)]
pub struct Settings<'a> {
    /// The marks directory: `TICKMARK_DIR`.
    pub dir: Sourced<&'a CStr>,
    /// The age above which a mark is stale: `TICKMARK_MAX_AGE`.
    pub max_age: Sourced<MaxAge>,
    /// Whether PID 1 elsewhere is refused even where nothing rests on it:
    /// `TICKMARK_TOPOLOGY=strict`.
    pub strict: Sourced<bool>,
    /// What the worker writes: `TICKMARK_FORMAT`.
    pub format: Sourced<Encoding>,
    /// The activator's token: `TICKMARK_LAUNCH`.
    pub launch: Option<LaunchToken>,
}

/// Where marks live when nothing else is said.
pub const DEFAULT_DIR: &CStr = c"/opt/app/tmp/health";

impl<'a> Settings<'a> {
    /// Asks `lookup` for each variable by name.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<&'a CStr>) -> Settings<'a> {
        #[cfg(feature = "test-hide-evidence")]
        crate::procfs::hide(lookup("TICKMARK_TEST_HIDE").unwrap_or_default().to_bytes());
        // Blank is unset: the gem's name then counts, and after it the default.
        let value = |name: &'static str| {
            lookup(name)
                .filter(|text| !text.to_bytes().trim_ascii().is_empty())
                .map(|value| Sourced { value, source: Source::Environment(name) })
        };
        let bytes = |name| value(name).map(|found| found.value.to_bytes().trim_ascii());
        Settings {
            dir: value("TICKMARK_DIR")
                .or_else(|| value("KICKS_LIVENESS_DIR"))
                .unwrap_or(Sourced { value: DEFAULT_DIR, source: Source::Default }),
            max_age: value("TICKMARK_MAX_AGE")
                .or_else(|| value("KICKS_LIVENESS_MAX_AGE"))
                .and_then(|found| {
                    let value = parse_max_age(found.value.to_bytes().trim_ascii())?;
                    Some(Sourced { value, source: found.source })
                })
                .unwrap_or(Sourced { value: MaxAge::DEFAULT, source: Source::Default }),
            strict: choice(bytes("TICKMARK_TOPOLOGY"), "TICKMARK_TOPOLOGY", b"strict", b"auto")
                .map_or(Sourced { value: false, source: Source::Default }, |(value, source)| {
                    Sourced { value, source }
                }),
            format: choice(bytes("TICKMARK_FORMAT"), "TICKMARK_FORMAT", b"text", b"binary").map_or(
                Sourced { value: Encoding::Binary, source: Source::Default },
                |(text, source)| Sourced {
                    value: if text { Encoding::Text } else { Encoding::Binary },
                    source,
                },
            ),
            launch: bytes("TICKMARK_LAUNCH").and_then(LaunchToken::new),
        }
    }
}

fn choice(
    value: Option<&[u8]>,
    name: &'static str,
    yes: &[u8],
    no: &[u8],
) -> Option<(bool, Source)> {
    let value = value?;
    (value == yes || value == no).then_some((value == yes, Source::Environment(name)))
}

/// Whole seconds above zero, as the environment and `--max-age` take them.
#[must_use]
pub fn parse_max_age(text: &[u8]) -> Option<MaxAge> {
    MaxAge::from_secs(u32::try_from(decimal(text)?).ok()?).ok()
}
