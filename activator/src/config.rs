//! The configuration file: its words, their units and defaults. Unknown words are errors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::cgroup::Limit;
use crate::error::{Error, Kind};
use crate::layout::MAX_SOCKET_PATH;
use crate::link::is_absolute_path;
use crate::name::HostName;
use crate::route::{Backing, Route};

/// The longest path of the socket for commands: it is bound as a sibling that ends in `.` and the
/// daemon's process id (at most 4194304, proc_sys_kernel(5)), and moved into place.
const MAX_COMMAND_SOCKET_PATH: usize = MAX_SOCKET_PATH - ".4194304".len();

/// The longest file that is read, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// The longest duration: a clock that it is added to does not run over.
const LONGEST_SPAN: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

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

impl ActivatorConfig {
    /// Where commands reach the daemon: `activator.sock` in the state directory unless it is said.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.state.join("activator.sock"))
    }
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
    /// How long it must have run since its last restart for the backoff to begin anew.
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
        match humantime::parse_duration(&text) {
            Ok(span) if span > LONGEST_SPAN => Err(format!("{text:?} is longer than 100 years")),
            Ok(span) => Ok(Span(span)),
            Err(error) => Err(format!("{text:?} is not a duration such as \"30s\": {error}")),
        }
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
    /// Names the file, the line, the key, what is wrong with it and what to do.
    pub fn read(path: &Path) -> Result<Config, Error> {
        let file = path.display().to_string();
        let mut text = String::new();
        let read = File::open(path).and_then(|open| {
            // One that has no end, too.
            match open.take(LONGEST_FILE + 1).read_to_string(&mut text)? as u64 {
                0..=LONGEST_FILE => Ok(()),
                _ => Err(io::Error::other(format!("it has more than {LONGEST_FILE} bytes"))),
            }
        });
        match read {
            Ok(()) => Config::of(&text, &file),
            Err(error) => {
                let why = format!("cannot read {file}: {error}; give another with --config");
                Err(Error::new(Kind::Usage, why))
            }
        }
    }

    /// Checks a text.
    ///
    /// # Errors
    /// Names the line, the key, what is wrong with it and what to do.
    pub fn parse(text: &str) -> Result<Config, Error> {
        Config::of(text, "-")
    }

    /// Checks a text, which errors call `file`.
    fn of(text: &str, file: &str) -> Result<Config, Error> {
        let at = |place: Place, cause: &str| {
            let Place { line, key } = place;
            let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
            Error::new(
                Kind::Usage,
                format!(
                    "{file}:{line}: {key}{cause}; correct it, and ask `tickmark-activator check {file}`"
                ),
            )
        };
        let config: Config = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            at(place(text, start), error.message().trim_end())
        })?;
        match config.mistake() {
            Some((table, key, cause)) => Err(at(place_of(text, &table, key), &cause)),
            None => Ok(config),
        }
    }

    /// What the types alone let through: its table, its key, and what is wrong.
    fn mistake(&self) -> Option<(String, &'static str, String)> {
        let absolute = |path: &Path| {
            (!is_absolute_path(path)).then(|| format!("{path:?} is not an absolute path"))
        };
        // What is appended to it must be so to its last component.
        let named = |path: &Path| {
            let name = path.file_name().map(OsStrExt::as_bytes);
            let last = name.is_some_and(|name| path.as_os_str().as_bytes().ends_with(name));
            (!last).then(|| format!("{path:?} does not end in a file's name"))
        };
        let bindable = |path: &Path| {
            let length = path.as_os_str().len();
            let long =
                || format!("{length} bytes, and a socket's path has {MAX_SOCKET_PATH} at most");
            absolute(path).or_else(|| (length > MAX_SOCKET_PATH).then(long)).or_else(|| named(path))
        };
        let commands = self.activator.socket();
        let length = commands.as_os_str().len();
        let long = (length > MAX_COMMAND_SOCKET_PATH).then(|| {
            format!(
                "the socket for commands, {}, would have {length} bytes, and it may have \
                 {MAX_COMMAND_SOCKET_PATH}: give [activator] a shorter `socket`",
                commands.display()
            )
        });
        let (of_state, of_socket) = match self.activator.socket {
            Some(_) => (None, long),
            None => (long, None),
        };
        let activator = [
            ("state", absolute(&self.activator.state).or(of_state)),
            (
                "socket",
                self.activator
                    .socket
                    .as_deref()
                    .and_then(|path| absolute(path).or(of_socket).or_else(|| named(path))),
            ),
            (
                "cgroup",
                match &self.activator.cgroup {
                    CgroupSetting::Path(path) if absolute(path).is_some() => {
                        Some(format!("{path:?} is neither \"auto\", \"none\" nor an absolute path"))
                    }
                    _ => None,
                },
            ),
        ];
        let hosts = self.host.iter().flat_map(|(name, host)| {
            let table = format!("host.{name}");
            let restart = &host.restart;
            let passed = |args: &[String]| {
                let bad = args.iter().find(|argument| argument.contains('\0'));
                bad.map(|argument| format!("{argument:?} has a NUL in it"))
            };
            let variable = |(name, value): (&String, &String)| {
                let bad = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
                bad.then(|| format!("{name:?} has no name, a \"=\" in it, or a NUL in its value"))
            };
            let sidecar = host.sidecar.as_ref().map(|sidecar| &*sidecar.args);
            let found = [
                ("args", passed(&host.args)),
                ("env", host.env.iter().find_map(variable)),
                ("sidecar", sidecar.and_then(passed)),
                ("builds", absolute(&host.builds)),
                ("socket", host.socket.as_deref().and_then(bindable)),
                ("directory", host.directory.as_deref().and_then(absolute)),
                ("slots", (host.slots == 0).then(|| "there must be 1 or more".to_owned())),
                (
                    "slots",
                    (host.slots > 1 && host.socket.is_some())
                        .then(|| "a host with a socket has 1".to_owned()),
                ),
                (
                    "start_deadline",
                    host.start_deadline.0.is_zero().then(|| "nothing starts in no time".to_owned()),
                ),
                ("restart", (restart.red == 0).then(|| "red must be 1 or more".to_owned())),
                (
                    "restart",
                    restart.check.0.is_zero().then(|| "check must be more than nothing".to_owned()),
                ),
                ("restart", (restart.min.0 > restart.max.0).then(|| "min is above max".to_owned())),
            ];
            found.map(|(key, cause)| (table.clone(), key, cause))
        });
        let activator = activator.map(|(key, cause)| ("activator".to_owned(), key, cause));
        activator
            .into_iter()
            .chain(hosts)
            .find_map(|(table, key, cause)| cause.map(|cause| (table, key, cause)))
    }
}

/// A place in a file, as people look for it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// From 1.
    line: usize,
    /// With its table; empty where there is none.
    key: String,
}

/// The table that a line opens, if it does.
fn header(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default().trim();
    line.strip_prefix('[')?.strip_suffix(']').map(str::trim)
}

/// The key that a line sets, if it does.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (!key.is_empty() && key.bytes().all(plain)).then_some(key)
}

/// What is at this offset.
fn place(text: &str, offset: usize) -> Place {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count();
    let mut table = "";
    let mut set = None;
    for line in text.lines().take(line + 1) {
        if let Some(header) = header(line) {
            (table, set) = (header, None);
        } else if let Some(key) = key(line) {
            set = Some(key);
        }
    }
    let parts = [Some(table).filter(|table| !table.is_empty()), set];
    Place { line: line + 1, key: parts.into_iter().flatten().collect::<Vec<_>>().join(".") }
}

/// Where a key of a table is set; where the table is, if it is not.
fn place_of(text: &str, table: &str, wanted: &str) -> Place {
    let mut within = false;
    let mut found = 0;
    for (index, line) in text.lines().enumerate() {
        if let Some(header) = header(line) {
            within = header.replace(['"', ' '], "") == table;
            if within {
                found = index;
            }
        } else if within && key(line) == Some(wanted) {
            found = index;
            break;
        }
    }
    Place { line: found + 1, key: format!("{table}.{wanted}") }
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
        let config = Config::of(text, "F").unwrap();
        let host = config.host.values().next().unwrap();
        assert_eq!(host.tier.limit().memory, NonZeroU64::new(256 << 20));
        assert_eq!(host.restart.max.0, Duration::from_secs(300));
        assert_eq!(config.activator.socket(), Path::new("/run/tickmark/activator.sock"));
        for (shown, wrong, said) in [
            (
                "drain =",
                "darin =",
                "F:13: host.orders.darin: unknown field `darin`, expected one of",
            ),
            ("\"256M\"", "\"256Q\"", "F:14: host.orders.tier: \"256Q\" is not a size"),
            ("\"256M\"", "\"0\"", "F:14: host.orders.tier: \"0\" is not a size"),
            ("slots = 1", "slots = 2", "F:10: host.orders.slots: a host with a socket has 1"),
            ("slots = 1", "slots = 0", "F:10: host.orders.slots: there must be 1 or more"),
            ("slots = 1", "slots = -1", "F:10: host.orders.slots: invalid value"),
            (
                "\"/srv/",
                "\"srv/",
                "F:8: host.orders.builds: \"srv/orders/builds\" is not an absolute",
            ),
            ("red = 3", "rde = 3", "F:15: host.orders.restart: unknown field `rde`"),
            ("red = 3", "red = 0", "F:15: host.orders.restart: red must be 1 or more"),
            ("min = \"1s\"", "min = \"6m\"", "F:15: host.orders.restart: min is above max"),
            (
                "\"30s\"",
                "\"thirty\"",
                "F:11: host.orders.start_deadline: \"thirty\" is not a duration",
            ),
            ("\"30s\"", "\"101y\"", "F:11: host.orders.start_deadline: \"101y\" is longer than"),
            ("[\"sidecar\"]", "[\"a\\u0000\"]", "F:16: host.orders.sidecar: \"a\\0\" has a NUL"),
            ("slots = 1", "args = [\"\\u0000\"]", "F:10: host.orders.args: \"\\0\" has a NUL"),
            ("slots = 1", "env = { \"A=\" = \"\" }", "F:10: host.orders.env: \"A=\" has"),
            ("slots = 1", "env = { \"\" = \"\" }", "F:10: host.orders.env: \"\" has no"),
            ("slots = 1", "env = { A = \"\\u0000\" }", "F:10: host.orders.env: \"A\" has"),
            ("\"30s\"", "30", "F:11: host.orders.start_deadline: invalid type: integer"),
            ("\"overlap\"", "\"overlay\"", "F:9: host.orders.swap: unknown variant `overlay`"),
            ("\"auto\"", "\"automatic\"", "F:5: activator.cgroup: \"automatic\" is neither"),
            (
                "orders.sock",
                "orders.sock/",
                "F:7: host.orders.socket: \"/run/tickmark/orders.sock/\" does",
            ),
            (
                "/run/tickmark/orders.sock",
                "/run/..",
                "F:7: host.orders.socket: \"/run/..\" does not",
            ),
            ("activator.sock", "activator.sock/.", "F:4: activator.socket: "),
            ("[host.orders]", "[host.\"a/b\"]", "F:6: host.\"a/b\": "),
            ("[activator]", "[activation]", "unknown field `activation`"),
            ("slots = 1", "slots 1", "F:10: host.orders.swap: "),
            (
                "socket = \"/run/tickmark/orders",
                "socket = \"/run/tick\nmark/orders",
                "F:8: host.orders.socket: ",
            ),
        ] {
            assert_ne!(text, text.replace(shown, wrong), "{shown}");
            let mistake = Config::of(&text.replace(shown, wrong), "F").unwrap_err();
            assert!(mistake.is_usage(), "{wrong}");
            let mistake = mistake.to_string();
            assert!(mistake.contains(said), "{wrong}: {mistake}");
            assert!(mistake.ends_with("; correct it, and ask `tickmark-activator check F`"));
        }
        // The longest that is left: what it is bound as first must fit, too.
        for (length, said) in
            [(99, None), (100, Some("F:4: activator.socket: the socket for commands, /ooo"))]
        {
            let socket = format!("/{}", "o".repeat(length - 1));
            let found = Config::of(&text.replace("/run/tickmark/activator.sock", &socket), "F");
            match said {
                None => assert_eq!(found.unwrap().activator.socket(), Path::new(&socket)),
                Some(said) => {
                    let mistake = found.unwrap_err().to_string();
                    assert!(mistake.contains(said), "{mistake}");
                    let end =
                        "would have 100 bytes, and it may have 99: give [activator] a shorter";
                    assert!(mistake.contains(end), "{mistake}");
                }
            }
            // The same for the one that nobody named.
            let state = &socket[..length - "/activator.sock".len()];
            let unnamed = text
                .replace("socket = \"/run/tickmark/activator.sock\"\n", "\n")
                .replace("/var/lib/tickmark", state);
            match Config::of(&unnamed, "F") {
                Ok(_) => assert_eq!(said, None),
                Err(mistake) => {
                    let mistake = mistake.to_string();
                    assert!(said.is_some(), "{mistake}");
                    let said = "F:3: activator.state: the socket for commands, /ooo";
                    assert!(mistake.contains(said), "{mistake}");
                }
            }
        }
        let long = text.replace("orders.sock", &"o".repeat(108));
        let mistake = Config::of(&long, "F").unwrap_err().to_string();
        assert!(mistake.contains("F:7: host.orders.socket: "), "{mistake}");
    }
}
