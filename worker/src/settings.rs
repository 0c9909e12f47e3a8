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
        let lookup: Lookup<'_, 'a> = &lookup;
        let dir = first(&["TICKMARK_DIR", "KICKS_LIVENESS_DIR"], lookup);
        let max_age = first(&["TICKMARK_MAX_AGE", "KICKS_LIVENESS_MAX_AGE"], lookup);
        let (seconds, max_age) = match parse_max_age(max_age.text) {
            Some(seconds) => (seconds, max_age.source),
            None => (MaxAge::DEFAULT, Source::Default),
        };
        let strict = choice(&first(&["TICKMARK_TOPOLOGY"], lookup), "strict", "auto");
        let text = choice(&first(&["TICKMARK_FORMAT"], lookup), "text", "binary");
        Settings {
            dir: match dir.source {
                Source::Default => Sourced { value: DEFAULT_DIR, source: Source::Default },
                source => Sourced { value: dir.whole, source },
            },
            max_age: Sourced { value: seconds, source: max_age },
            strict,
            format: Sourced {
                value: if text.value { Encoding::Text } else { Encoding::Binary },
                source: text.source,
            },
            launch: LaunchToken::new(first(&["TICKMARK_LAUNCH"], lookup).text),
        }
    }
}

type Lookup<'f, 'a> = &'f dyn Fn(&str) -> Option<&'a CStr>;

/// What a variable holds, whole and without the white space around it, and which one it is.
struct Given<'a> {
    whole: &'a CStr,
    text: &'a [u8],
    source: Source,
}

/// The first of `names` that is set; empty where none is. Blank is unset: the gem's name then counts,
/// and after it the default.
#[inline(never)]
fn first<'a>(names: &[&'static str], lookup: Lookup<'_, 'a>) -> Given<'a> {
    for &name in names {
        if let Some(whole) = lookup(name) {
            let text = whole.to_bytes().trim_ascii();
            if !text.is_empty() {
                return Given { whole, text, source: Source::Environment(name) };
            }
        }
    }
    Given { whole: c"", text: b"", source: Source::Default }
}

#[inline(never)]
fn choice(given: &Given<'_>, yes: &str, no: &str) -> Sourced<bool> {
    let value = given.text == yes.as_bytes();
    let valid = value || given.text == no.as_bytes();
    Sourced { value, source: if valid { given.source } else { Source::Default } }
}

/// Whole seconds above zero, as the environment and `--max-age` take them.
#[must_use]
pub fn parse_max_age(text: &[u8]) -> Option<MaxAge> {
    MaxAge::from_secs(u32::try_from(decimal(text)?).ok()?).ok()
}
