//! What a rule has to say: where, what will happen, and what to do.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// It does not work, or restarts healthy workers, as the manifest stands.
    Error,
    /// It goes wrong under a condition that will come.
    Warning,
    /// The manifest alone cannot tell.
    Note,
}

impl Level {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// The field that is at fault, or the nearest one that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    pub(super) file: String,
    /// From 1.
    pub(super) document: usize,
    /// From 1.
    pub(super) line: u64,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) container: Option<String>,
    pub(super) path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) rule: &'static str,
    #[serde(flatten)]
    pub(super) place: Place,
    pub(super) what: String,
    pub(super) fix: String,
}
