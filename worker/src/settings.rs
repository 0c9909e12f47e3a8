//! The settings that the worker and the probe must see alike, from the environment alone:
//! the probe is another process. What only the worker needs is in its builder.

use core::ffi::CStr;

use tickmark_protocol::{Encoding, LaunchToken, MaxAge, decimal};

/// Where a setting came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source(&'static str);

impl Source {
    /// Nothing valid was given.
    pub const DEFAULT: Source = Source("default");
    /// A flag on the command line.
    pub const FLAG: Source = Source("flag");

    /// The environment variable of this name.
    #[must_use]
    pub const fn environment(name: &'static str) -> Source {
        Source(name)
    }

    /// `default`, `flag` or the variable's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
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
        Settings::read(&lookup)
    }

    #[inline(never)]
    fn read(lookup: Lookup<'_, 'a>) -> Settings<'a> {
        #[cfg(feature = "test-hide-evidence")]
        crate::procfs::hide(lookup("TICKMARK_TEST_HIDE").unwrap_or_default().to_bytes());
        let default = Source::DEFAULT;
        let mut settings = Settings {
            dir: Sourced { value: DEFAULT_DIR, source: default },
            max_age: Sourced { value: MaxAge::DEFAULT, source: default },
            strict: Sourced { value: false, source: default },
            format: Sourced { value: Encoding::Binary, source: default },
            launch: None,
        };
        if let Some(given) = first("TICKMARK_DIR", "KICKS_LIVENESS_DIR", lookup) {
            settings.dir = Sourced { value: given.whole, source: given.source };
        }
        if let Some(given) = first("TICKMARK_MAX_AGE", "KICKS_LIVENESS_MAX_AGE", lookup)
            && let Some(value) = parse_max_age(given.text)
        {
            settings.max_age = Sourced { value, source: given.source };
        }
        if let Some(given) = first("TICKMARK_TOPOLOGY", "", lookup)
            && let Some(value) = choice(given.text, b"auto", b"strict")
        {
            settings.strict = Sourced { value, source: given.source };
        }
        if let Some(given) = first("TICKMARK_FORMAT", "", lookup)
            && let Some(text) = choice(given.text, b"binary", b"text")
        {
            let value = if text { Encoding::Text } else { Encoding::Binary };
            settings.format = Sourced { value, source: given.source };
        }
        if let Some(given) = first("TICKMARK_LAUNCH", "", lookup) {
            settings.launch = LaunchToken::new(given.text);
        }
        settings
    }
}

type Lookup<'f, 'a> = &'f dyn Fn(&str) -> Option<&'a CStr>;

/// What a variable holds, whole and without the white space around it, and which one it is.
struct Given<'a> {
    whole: &'a CStr,
    text: &'a [u8],
    source: Source,
}

/// What `name` holds, or else the gem's name of the same setting, which is empty where it has none.
/// Blank is unset.
#[inline(never)]
fn first<'a>(name: &'static str, gem: &'static str, lookup: Lookup<'_, 'a>) -> Option<Given<'a>> {
    for name in [name, gem] {
        if name.is_empty() {
            break;
        }
        if let Some(whole) = lookup(name) {
            let text = whole.to_bytes().trim_ascii();
            if !text.is_empty() {
                return Some(Given { whole, text, source: Source::environment(name) });
            }
        }
    }
    None
}

/// Whether `text` is the second of two words; `None` where it is neither.
#[inline(never)]
fn choice(text: &[u8], no: &[u8], yes: &[u8]) -> Option<bool> {
    if text == yes { Some(true) } else { (text == no).then_some(false) }
}

/// Whole seconds above zero, as the environment and `--max-age` take them.
#[must_use]
pub fn parse_max_age(text: &[u8]) -> Option<MaxAge> {
    MaxAge::from_secs(u32::try_from(decimal(text)?).ok()?).ok()
}
