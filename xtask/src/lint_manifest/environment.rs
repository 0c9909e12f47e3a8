//! What a container's variables come to, as far as the manifest says: what another object holds is
//! unknown here, and stays so.

use k8s_openapi::api::core::v1::Container;
use tickmark::settings::{DEFAULT_DIR, parse_max_age};
use tickmark_protocol::{Slot, SlotCount, decimal};

/// The variables of tickmark and of the gem.
const PREFIXES: [&str; 2] = ["TICKMARK_", "KICKS_LIVENESS_"];

/// Every name that something reads. `TICKMARK_LAUNCH` is not for manifests and has a rule of its own.
pub(super) const KNOWN: [&str; 14] = [
    "TICKMARK_DIR",
    "TICKMARK_MAX_AGE",
    "TICKMARK_TOPOLOGY",
    "TICKMARK_FORMAT",
    "TICKMARK_TICK",
    "TICKMARK_SHUTDOWN_GRACE",
    "TICKMARK_SLOT",
    "TICKMARK_PROCESSES",
    "TICKMARK_SERVE",
    "TICKMARK_LAUNCH",
    "KICKS_LIVENESS_DIR",
    "KICKS_LIVENESS_MAX_AGE",
    "KICKS_LIVENESS_TICK",
    "KICKS_LIVENESS_SHUTDOWN_GRACE",
];

/// What the worker alone reads: who sets one of these is a worker, or means to be.
const WORKERS_OWN: [&str; 6] = [
    "TICKMARK_TICK",
    "TICKMARK_SHUTDOWN_GRACE",
    "TICKMARK_SLOT",
    "TICKMARK_PROCESSES",
    "TICKMARK_SERVE",
    "KICKS_LIVENESS_TICK",
];

/// One variable that the manifest lists.
pub(super) struct Variable {
    pub(super) name: String,
    /// Its place in `env`.
    pub(super) index: usize,
    /// `None` where it comes from elsewhere, or refers to another variable.
    pub(super) value: Option<String>,
}

/// What is listed under `env`, and whether there may be more.
pub(super) struct Environment {
    variables: Vec<Variable>,
    /// The prefixes of `envFrom`: such names may be set there.
    from_elsewhere: Vec<String>,
}

/// A setting as the worker will read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting<T> {
    /// `None`: it comes from elsewhere.
    pub(super) value: Option<T>,
    /// The variable that counts and its place in `env`; none for the default.
    pub(super) variable: Option<(String, usize)>,
    /// The variable's text, where it is none of its kind and the default counts.
    pub(super) invalid: Option<String>,
}

impl<T> Setting<T> {
    /// The variable's name, for a sentence; `otherwise` where the default counts.
    pub(super) fn by<'a>(&'a self, otherwise: &'a str) -> &'a str {
        self.variable.as_ref().map_or(otherwise, |(name, _)| name)
    }

    /// Where it is set, below the container; the container's variables where it is not.
    pub(super) fn path(&self) -> String {
        self.variable
            .as_ref()
            .map_or_else(|| "env".to_owned(), |(_, index)| format!("env[{index}]"))
    }
}

/// All that a container's worker and probe read.
pub(super) struct Settings {
    pub(super) dir: Setting<String>,
    /// Seconds, as are the next two.
    pub(super) max_age: Setting<u64>,
    pub(super) tick: Setting<u64>,
    pub(super) shutdown_grace: Setting<u64>,
    pub(super) processes: Setting<u32>,
    /// Its default is `None` inside.
    pub(super) slot: Setting<Option<u32>>,
    pub(super) text: Setting<bool>,
    pub(super) strict: Setting<bool>,
    /// The address; its default is not to serve.
    pub(super) serve: Setting<Option<String>>,
}

impl Environment {
    pub(super) fn of(container: &Container) -> Self {
        let listed = container.env.iter().flatten().enumerate().map(|(index, variable)| Variable {
            name: variable.name.clone(),
            index,
            value: match &variable.value_from {
                Some(_) => None,
                // `$(OTHER)` is expanded by the kubelet, from what may not be here.
                None => variable
                    .value
                    .clone()
                    .or_else(|| Some(String::new()))
                    .filter(|value| !value.contains("$(")),
            },
        });
        let from_elsewhere = container.env_from.iter().flatten();
        Self {
            variables: listed.collect(),
            from_elsewhere: from_elsewhere
                .map(|source| source.prefix.clone().unwrap_or_default())
                .collect(),
        }
    }

    /// What is listed and somebody of ours might read.
    pub(super) fn ours(&self) -> impl Iterator<Item = &Variable> {
        self.variables
            .iter()
            .filter(|variable| PREFIXES.iter().any(|prefix| variable.name.starts_with(prefix)))
    }

    pub(super) fn has_ours(&self) -> bool {
        self.ours().next().is_some()
    }

    pub(super) fn has_a_workers_own(&self) -> bool {
        self.ours().any(|variable| WORKERS_OWN.contains(&variable.name.as_str()))
    }

    /// Only the gem's names are used: it may well be the gem.
    pub(super) fn is_the_gems(&self) -> bool {
        self.has_ours() && self.ours().all(|variable| variable.name.starts_with("KICKS_"))
    }

    /// Whether an `envFrom` could set it.
    pub(super) fn may_come_from_elsewhere(&self, name: &str) -> bool {
        self.from_elsewhere.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// The last of the name wins, as in the kubelet.
    pub(super) fn listed(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().rfind(|variable| variable.name == name)
    }

    pub(super) fn settings(&self) -> Settings {
        let seconds = |text: &str| {
            let number = decimal(text.trim().as_bytes()).filter(|&seconds| seconds > 0)?;
            number.checked_mul(1_000_000_000).map(|_| number)
        };
        let choice = |yes: &'static str, no: &'static str| {
            move |text: &str| match text.trim() {
                text if text == yes => Some(true),
                text => (text == no).then_some(false),
            }
        };
        let number = |text: &str| u32::try_from(decimal(text.trim().as_bytes())?).ok();
        Settings {
            dir: self.setting(
                &["TICKMARK_DIR", "KICKS_LIVENESS_DIR"],
                DEFAULT_DIR.to_string_lossy().into_owned(),
                |text| Some(text.to_owned()),
            ),
            max_age: self.setting(&["TICKMARK_MAX_AGE", "KICKS_LIVENESS_MAX_AGE"], 45, |text| {
                parse_max_age(text.trim().as_bytes()).and_then(|_| seconds(text))
            }),
            tick: self.setting(&["TICKMARK_TICK", "KICKS_LIVENESS_TICK"], 10, seconds),
            shutdown_grace: self.setting(
                &["TICKMARK_SHUTDOWN_GRACE", "KICKS_LIVENESS_SHUTDOWN_GRACE"],
                60,
                seconds,
            ),
            processes: self.setting(&["TICKMARK_PROCESSES"], 1, |text| {
                number(text).filter(|&count| SlotCount::new(count).is_ok())
            }),
            slot: self.setting(&["TICKMARK_SLOT"], None, |text| {
                number(text).filter(|&slot| Slot::new(slot).is_ok()).map(Some)
            }),
            text: self.setting(&["TICKMARK_FORMAT"], false, choice("text", "binary")),
            strict: self.setting(&["TICKMARK_TOPOLOGY"], false, choice("strict", "auto")),
            serve: self
                .setting(&["TICKMARK_SERVE"], None, |text| Some(Some(text.trim().to_owned()))),
        }
    }

    /// The first of `names` that is set and not blank, as the worker looks them up.
    fn setting<T>(
        &self,
        names: &[&str],
        default: T,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Setting<T> {
        for &name in names {
            let variable = self.listed(name);
            let found = variable.map(|variable| (variable.name.clone(), variable.index));
            match variable.map(|variable| variable.value.as_deref()) {
                Some(Some(value)) if value.trim().is_empty() => {}
                Some(Some(value)) => {
                    let parsed = parse(value);
                    let invalid = parsed.is_none().then(|| value.to_owned());
                    return Setting { value: parsed.or(Some(default)), variable: found, invalid };
                }
                Some(None) => return Setting { value: None, variable: found, invalid: None },
                None if self.may_come_from_elsewhere(name) => {
                    return Setting { value: None, variable: None, invalid: None };
                }
                None => {}
            }
        }
        Setting { value: Some(default), variable: None, invalid: None }
    }
}
