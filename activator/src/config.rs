//! The configuration file: its words, their units and defaults. Unknown words are errors.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::cgroup::Limit;
use crate::error::{Doing as _, Error, Kind};
use crate::link::is_absolute_path;
use crate::name::HostName;
use crate::route::{Backing, Route};

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What the activator itself needs.
    pub activator: ActivatorConfig,
    /// Its hosts.
    #[serde(default)]
    pub host: BTreeMap<HostName, HostConfig>,
}

/// `[activator]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivatorConfig {
    /// Where state, logs and live links are; one activator at a time.
    pub state: PathBuf,
    /// Where commands reach the daemon.
    pub socket: Option<PathBuf>,
    /// `auto`, `none`, or a delegated cgroup v2 directory.
    #[serde(default)]
    pub cgroup: CgroupSetting,
}

/// Where hosts are contained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum CgroupSetting {
    /// Where the activator finds a delegation of its own.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// In this directory.
    Path(PathBuf),
}

impl From<String> for CgroupSetting {
    fn from(text: String) -> CgroupSetting {
        match text.as_str() {
            "auto" => CgroupSetting::Auto,
            "none" => CgroupSetting::None,
            _ => CgroupSetting::Path(text.into()),
        }
    }
}

/// How a build replaces another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwapSetting {
    /// The successor runs beside the incumbent until it is ready.
    #[default]
    Overlap,
    /// The incumbent is gone before the successor starts.
    StopStart,
}

/// `[host.NAME]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// The canonical socket; none for a pure queue worker.
    pub socket: Option<PathBuf>,
    /// The directory of builds.
    pub builds: PathBuf,
    /// How a build replaces another.
    #[serde(default)]
    pub swap: SwapSetting,
    /// Processes of a generation; above 1 only without a socket.
    #[serde(default = "one")]
    pub slots: u32,
    /// How long a start may take until it is ready.
    #[serde(default = "start_deadline")]
    pub start_deadline: Span,
    /// How long the incumbent serves on after the switch.
    #[serde(default = "settle")]
    pub settle: Span,
    /// How long it may drain after SIGTERM.
    #[serde(default = "drain")]
    pub drain: Span,
    /// What one process may use, where its build says nothing else.
    #[serde(default)]
    pub tier: Tier,
    /// When it is restarted.
    #[serde(default)]
    pub restart: RestartConfig,
    /// Arguments of its processes.
    #[serde(default)]
    pub args: Vec<String>,
    /// Their variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Their working directory; the executable's without it.
    pub directory: Option<PathBuf>,
    /// The sidecar.
    pub sidecar: Option<SidecarConfig>,
}

/// `sidecar = { args = […] }`: the same build, run beside it with these arguments.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidecarConfig {
    /// Its arguments.
    pub args: Vec<String>,
}

/// `restart = {…}`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestartConfig {
    /// Red verdicts in a row before a restart.
    pub red: u32,
    /// The time between two verdicts.
    pub check: Span,
    /// The shortest backoff.
    pub min: Span,
    /// The longest.
    pub max: Span,
    /// How long it must have been healthy for the backoff to begin anew.
    pub reset: Span,
}

impl Default for RestartConfig {
    fn default() -> RestartConfig {
        RestartConfig {
            red: 3,
            check: Span(Duration::from_secs(10)),
            min: Span(Duration::from_secs(1)),
            max: Span(Duration::from_secs(300)),
            reset: Span(Duration::from_secs(600)),
        }
    }
}

/// A duration as people write it: `100ms`, `30s`, `5m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Span, String> {
        humantime::parse_duration(&text)
            .map(Span)
            .map_err(|error| format!("{text:?} is not a duration such as \"30s\": {error}"))
    }
}

/// `tier = { memory = "256M", pids = 128, cpu = 0.5 }`; what is not said is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tier {
    /// In bytes.
    pub memory: Option<Size>,
    /// Processes and threads.
    pub pids: Option<NonZeroU32>,
    /// Processors.
    pub cpu: Option<Processors>,
}

impl Tier {
    /// As the cgroup takes it.
    #[must_use]
    pub fn limit(&self) -> Limit {
        Limit {
            memory: self.memory.map(|size| size.0),
            pids: self.pids,
            cpu: self.cpu.map(|cpu| cpu.0),
        }
    }
}

/// Bytes: a number, or one with `K`, `M` or `G` (powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub NonZeroU64);

impl TryFrom<String> for Size {
    type Error = String;
    fn try_from(text: String) -> Result<Size, String> {
        let digits = text.trim_end_matches(['K', 'M', 'G']);
        let unit: u64 = match &text[digits.len()..] {
            "" => 1,
            "K" => 1 << 10,
            "M" => 1 << 20,
            "G" => 1 << 30,
            _ => 0,
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit))
            .and_then(NonZeroU64::new)
            .map(Size)
            .ok_or_else(|| format!("{text:?} is not a size such as \"256M\""))
    }
}

/// Processors, kept in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Processors(pub NonZeroU32);

impl TryFrom<f64> for Processors {
    type Error = String;
    fn try_from(number: f64) -> Result<Processors, String> {
        let thousandths = number * 1000.0;
        if !(10.0..=1e9).contains(&thousandths) {
            return Err(format!("{number} is not a number of processors from 0.01"));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        NonZeroU32::new(thousandths.round() as u32).map(Processors).ok_or_else(String::new)
    }
}

fn one() -> u32 {
    1
}
fn start_deadline() -> Span {
    Span(Duration::from_secs(30))
}
fn settle() -> Span {
    Span(Duration::from_millis(100))
}
fn drain() -> Span {
    Span(Duration::from_secs(60))
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Names the file and what is wrong in it.
    pub fn read(path: &Path) -> Result<Config, Error> {
        let text = std::fs::read_to_string(path).doing(|| format!("read {}", path.display()))?;
        Config::parse(&text)
            .map_err(|error| Error::because(Kind::Usage, format!("{}", path.display()), error))
    }

    /// Checks a text.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn parse(text: &str) -> Result<Config, Error> {
        let config: Config = toml::from_str(text)
            .map_err(|error| Error::because(Kind::Usage, "not a configuration", error))?;
        let absolute = |path: &Path, what: &str| {
            is_absolute_path(path).then_some(()).ok_or_else(|| {
                Error::new(Kind::Usage, format!("{what} = {path:?}: give an absolute path"))
            })
        };
        absolute(&config.activator.state, "activator.state")?;
        for (name, host) in &config.host {
            absolute(&host.builds, &format!("host.{name}.builds"))?;
            if let Some(socket) = &host.socket {
                absolute(socket, &format!("host.{name}.socket"))?;
            }
            if host.slots == 0 || host.slots > 1 && host.socket.is_some() {
                return Err(Error::new(
                    Kind::Usage,
                    format!(
                        "host.{name}.slots = {}: a host with a socket has 1, one without has 1 or more",
                        host.slots
                    ),
                ));
            }
        }
        Ok(config)
    }
}

impl HostConfig {
    /// The host's row.
    #[must_use]
    pub fn route(&self, name: &HostName) -> Route {
        Route {
            host: name.clone(),
            socket: self.socket.clone(),
            backing: Backing::Exec,
            builds: self.builds.clone(),
            tier: self.tier.limit(),
            conflict: None,
            nested: None,
            foreign: false,
            overlap: self.swap == SwapSetting::Overlap,
            slots: self.slots,
            args: self.args.clone(),
            env: self.env.clone(),
            directory: self.directory.clone(),
            sidecar: self.sidecar.as_ref().map(|sidecar| sidecar.args.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_configuration_is_read_and_an_unknown_word_is_an_error() {
        let text = r#"
            [activator]
            state = "/var/lib/tickmark"
            socket = "/run/tickmark/activator.sock"
            cgroup = "auto"
            [host.orders]
            socket = "/run/tickmark/orders.sock"
            builds = "/srv/orders/builds"
            swap = "overlap"
            slots = 1
            start_deadline = "30s"
            settle = "100ms"
            drain = "60s"
            tier = { memory = "256M", pids = 128 }
            restart = { red = 3, min = "1s", max = "5m", reset = "10m" }
            sidecar = { args = ["sidecar"] }
        "#;
        let config = Config::parse(text).unwrap();
        let host = config.host.values().next().unwrap();
        assert_eq!(host.tier.limit().memory, NonZeroU64::new(256 << 20));
        assert_eq!(host.restart.max.0, Duration::from_secs(300));
        for (shown, wrong) in [
            ("drain =", "darin ="),
            ("\"256M\"", "\"256Q\""),
            ("slots = 1", "slots = 2"),
            ("\"/srv/", "\"srv/"),
            ("red =", "rde ="),
        ] {
            let text = text.replace(shown, wrong);
            assert!(Config::parse(&text).unwrap_err().is_usage(), "{wrong}");
        }
    }
}
