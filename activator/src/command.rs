//! The command line: asks the daemon, shows the steps of what takes time on stderr and the answer
//! on stdout, and exits with the status that says how it ended.

use std::env;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use tickmark_activator::config::{Config, Span};
use tickmark_activator::swap::{Outcome, Why};
use tickmark_activator::{BuildName, HostName};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::check;
use crate::control::{Envelope, REQUEST, Reply, Request, SILENCE, VERSION, WRITE, read_line};
use crate::daemon;

/// Nothing changed, and the incumbent serves.
pub(crate) const CHANGED_NOTHING: u8 = 1;
/// A mistake in the command line or the configuration.
pub(crate) const USAGE: u8 = 2;
/// Nobody knows how it ended.
pub(crate) const UNKNOWN: u8 = 4;
/// Nothing serves.
pub(crate) const NOTHING_SERVES: u8 = 5;

/// Where the configuration is, if nothing else is said.
const CONFIG: &str = "/etc/tickmark/activator.toml";

/// An operation that takes less shows no steps, unless it fails.
const QUICK: Duration = Duration::from_millis(300);

/// How long the end of the daemon waits for what blocks.
const LINGER: Duration = Duration::from_secs(5);

const AFTER_HELP: &str = "\
Exit status: 0 done, 1 nothing changed and the incumbent serves, 2 usage, 3 switched but the old \
generation is not proven gone, 4 outcome unknown, 5 nothing serves.";

/// Swaps process generations of queue workers and services without a gap.
#[derive(Debug, Parser)]
#[command(name = "tickmark-activator", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    /// The configuration file; the daemon's socket is in it
    #[arg(long, global = true, value_name = "F", env = "TICKMARK_ACTIVATOR_CONFIG", default_value = CONFIG)]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon: it starts, judges and restarts the hosts, and serves the other commands
    Run,
    /// Read a configuration, and say what it means here
    Check {
        /// The configuration file
        #[arg(value_name = "F")]
        file: PathBuf,
    },
    /// Stage a build and swap to it
    Deploy {
        host: HostName,
        /// An executable, or a directory with one
        path: PathBuf,
        /// The build's name; the file name without it
        #[arg(long)]
        build: Option<BuildName>,
        #[command(flatten)]
        patience: Patience,
        /// Say what would be done, and change nothing
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Swap to a staged build
    Swap {
        host: HostName,
        build: BuildName,
        #[command(flatten)]
        patience: Patience,
    },
    /// Swap to the build that served before
    Rollback { host: HostName },
    /// Swap to a new generation of the build that serves
    Restart { host: HostName },
    /// Drain and end what runs; nothing is to serve
    Stop { host: HostName },
    /// Start what sleeps
    Wake { host: HostName },
    /// Swap to a build and pin the host to it
    Hold {
        host: HostName,
        #[arg(required_unless_present = "release")]
        build: Option<BuildName>,
        /// Pin it no longer; what serves serves on
        #[arg(long, conflicts_with = "build")]
        release: bool,
    },
    /// List the staged builds
    Builds {
        host: HostName,
        /// Remove all but the last N by name; none that any host runs, is about to, was served by,
        /// is held at or would start
        #[arg(long, value_name = "N")]
        prune: Option<usize>,
    },
    /// Say what serves
    Status {
        host: Option<HostName>,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Show what a host's processes wrote
    Logs {
        host: HostName,
        /// Go on with what they write
        #[arg(short, long)]
        follow: bool,
        /// How many of the last lines
        #[arg(long, value_name = "N", default_value_t = 100)]
        lines: u64,
    },
}

#[derive(Debug, Args)]
struct Patience {
    /// How long the new generation may take until it is ready, as "30s"; the host's start_deadline
    /// without it
    #[arg(long, value_name = "D", value_parser = duration)]
    deadline: Option<Duration>,
}

impl Patience {
    fn ms(&self) -> Option<u64> {
        self.deadline.map(|deadline| u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX))
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    Span::try_from(text.to_owned()).map(|span| span.0)
}

/// Does what the command line says.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Check { file } => check::check(&file),
        command => config(&cli.config).and_then(|(config, socket)| {
            let asks = !matches!(command, Command::Run);
            let runtime = if asks {
                tokio::runtime::Builder::new_current_thread().enable_all().build()
            } else {
                tokio::runtime::Builder::new_multi_thread().enable_all().build()
            };
            let runtime = runtime.map_err(|error| {
                (CHANGED_NOTHING, format!("cannot start: {error}; nothing was asked"))
            })?;
            match request(command) {
                None => {
                    log();
                    let done = runtime.block_on(daemon::run(config, &socket)).map(|()| 0);
                    // What still blocks, as a copy from a file system that hangs, is let go.
                    runtime.shutdown_timeout(LINGER);
                    done
                }
                Some(Ok((request, show))) => runtime.block_on(ask(&socket, &request, show)),
                Some(Err(mistake)) => Err((USAGE, mistake)),
            }
        }),
    };
    match done {
        Ok(exit) => ExitCode::from(exit),
        Err((exit, why)) => {
            complain(&why);
            ExitCode::from(exit)
        }
    }
}

fn complain(why: &str) {
    let _closed = writeln!(io::stderr(), "tickmark-activator: {why}");
}

/// The configuration, and where its daemon listens.
fn config(path: &Path) -> Result<(Config, PathBuf), daemon::Failure> {
    let config = Config::read(path).map_err(|error| (USAGE, error.to_string()))?;
    let socket = config.activator.socket();
    Ok((config, socket))
}

/// The daemon's log: to stderr, where a service manager or a file takes it.
fn log() {
    let level = env::var("TICKMARK_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none())
        .with_max_level(level.unwrap_or(tracing::Level::INFO))
        .with_target(false)
        .init();
}

/// How a report is shown.
#[derive(Debug, Clone, Copy)]
enum Show {
    Answer,
    Builds,
    Status { one: bool },
    Json { one: bool },
}

/// What the daemon is asked; `None` is to be the daemon.
fn request(command: Command) -> Option<Result<(Request, Show), String>> {
    let answer = |request| Some(Ok((request, Show::Answer)));
    match command {
        Command::Run | Command::Check { .. } => None,
        Command::Deploy { host, path, build, patience, dry_run } => {
            // The daemon has another working directory. It says itself what is wrong with the path.
            let path = match std::path::absolute(&path) {
                Ok(path) => path,
                Err(error) => return Some(Err(format!("{}: {error}", path.display()))),
            };
            // A request is JSON.
            if path.to_str().is_none() {
                let why = format!("{path:?} is not UTF-8: rename it, or give a link to it");
                return Some(Err(why));
            }
            answer(Request::Deploy { host, path, build, deadline_ms: patience.ms(), dry_run })
        }
        Command::Swap { host, build, patience } => {
            answer(Request::Swap { host, build, deadline_ms: patience.ms() })
        }
        Command::Rollback { host } => answer(Request::Rollback { host }),
        Command::Restart { host } => answer(Request::Restart { host }),
        Command::Stop { host } => answer(Request::Stop { host }),
        Command::Wake { host } => answer(Request::Wake { host }),
        Command::Hold { host, build, release: _ } => answer(Request::Hold { host, build }),
        Command::Builds { host, prune } => {
            Some(Ok((Request::Builds { host, prune }, Show::Builds)))
        }
        Command::Status { host, json } => {
            let one = host.is_some();
            let show = if json { Show::Json { one } } else { Show::Status { one } };
            Some(Ok((Request::Status { host }, show)))
        }
        Command::Logs { host, follow, lines } => answer(Request::Logs { host, follow, lines }),
    }
}

/// Asks the daemon, and shows what it says. Gives the status to exit with.
async fn ask(socket: &Path, request: &Request, show: Show) -> Result<u8, daemon::Failure> {
    let host = host_of(request).map_or_else(String::new, |host| format!("{host}: "));
    let gone = |error: io::Error| {
        (UNKNOWN, format!("{host}the daemon went away before it answered ({error}): ask `status`"))
    };
    let unreachable = |error: io::Error| {
        let next = match error.kind() {
            io::ErrorKind::PermissionDenied => "ask as the daemon's user or as one of its group",
            _ => "is the daemon running (`run`)?",
        };
        (UNKNOWN, format!("cannot reach the daemon at {}: {error}; {next}", socket.display()))
    };
    let stream = match timeout(REQUEST, UnixStream::connect(socket)).await {
        Ok(connected) => connected.map_err(unreachable)?,
        Err(late) => return Err(unreachable(late.into())),
    };
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let request = serde_json::to_value(request).map_err(|error| (USAGE, error.to_string()))?;
    let mut line = json!(Envelope { version: VERSION, request }).to_string();
    line.push('\n');
    timeout(WRITE, writer.write_all(line.as_bytes()))
        .await
        .unwrap_or_else(|late| Err(late.into()))
        .map_err(gone)?;

    let mut steps = Steps::new();
    loop {
        let wait = steps.due().unwrap_or(SILENCE).min(SILENCE);
        let line = match timeout(wait, read_line(&mut reader)).await {
            Ok(line) => line.map_err(gone)?.ok_or_else(|| {
                gone(io::Error::new(io::ErrorKind::UnexpectedEof, "no answer came"))
            })?,
            Err(_) if wait < SILENCE => {
                steps.show();
                continue;
            }
            Err(late) => return Err(gone(late.into())),
        };
        let reply: Reply = serde_json::from_str(&line).map_err(|error| {
            (UNKNOWN, format!("the daemon says what this command does not know ({error}): {line}"))
        })?;
        match reply {
            Reply::Pulse => {}
            Reply::Step { at_ms, state, text } => steps.add(at_ms, &state, &text),
            Reply::Answer { outcome, build, error } => {
                let exit = outcome.exit();
                if exit != 0 {
                    steps.show();
                }
                // How it ended is said by the status in any case.
                let answer = answer(outcome, build.as_ref(), error.as_deref());
                if let Err((_, unsaid)) = print(&format!("{host}{answer}\n")) {
                    complain(&unsaid);
                }
                return Ok(exit);
            }
            Reply::Report(value) => return report(&value, show),
            Reply::Failure { exit, message } => {
                steps.show();
                return Err((exit, format!("{host}{message}")));
            }
            Reply::Log => return copy_log(reader).await.map(|()| 0),
        }
    }
}

fn host_of(request: &Request) -> Option<&HostName> {
    match request {
        Request::Deploy { host, .. }
        | Request::Swap { host, .. }
        | Request::Rollback { host }
        | Request::Restart { host }
        | Request::Stop { host }
        | Request::Wake { host }
        | Request::Hold { host, .. }
        | Request::Builds { host, .. }
        | Request::Logs { host, .. } => Some(host),
        Request::Status { host } => host.as_ref(),
    }
}

/// The steps of an operation: kept back until it has taken long enough to be worth them.
struct Steps {
    kept: Vec<String>,
    shown: bool,
    since: tokio::time::Instant,
    colour: bool,
}

impl Steps {
    fn new() -> Steps {
        let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
        Steps { kept: Vec::new(), shown: false, since: tokio::time::Instant::now(), colour }
    }

    fn add(&mut self, at_ms: u64, state: &str, text: &str) {
        let at = Duration::from_millis(at_ms).as_secs_f64();
        let (dim, plain) = if self.colour { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        // The state alone says nothing more than its name.
        let text = if text == state { "" } else { text };
        self.kept
            .push(format!("{dim}{at:8.3} s  {state:<10}{plain}  {text}").trim_end().to_owned());
        if self.shown || self.due().is_some_and(|due| due.is_zero()) {
            self.show();
        }
    }

    /// How long what is kept may be kept still.
    fn due(&self) -> Option<Duration> {
        (!self.shown && !self.kept.is_empty()).then(|| QUICK.saturating_sub(self.since.elapsed()))
    }

    fn show(&mut self) {
        self.shown = true;
        let mut to = BufWriter::new(io::stderr().lock());
        for line in self.kept.drain(..) {
            let _closed = writeln!(to, "{line}");
        }
    }
}

/// How it ended, in words.
fn answer(outcome: Outcome, build: Option<&BuildName>, error: Option<&str>) -> String {
    let build = build.map_or_else(String::new, |build| format!(" of build {build}"));
    let because = |why: Why| match error {
        Some(error) => format!("{}: {error}", reason(why)),
        None => reason(why).to_owned(),
    };
    match outcome {
        Outcome::Done(serves) => format!("generation {serves}{build} serves"),
        Outcome::Stopped => "stopped; nothing runs".to_owned(),
        Outcome::Unchanged { serves, why } => {
            format!("nothing changed, generation {serves}{build} serves: {}", because(why))
        }
        Outcome::Unproven { serves: Some(serves) } => format!(
            "generation {serves}{build} serves, but an older one is not proven gone{}; it is \
             tried again",
            error.map_or_else(String::new, |error| format!(" ({error})"))
        ),
        Outcome::Unproven { serves: None } => format!(
            "stopped, but not proven gone{}; it is tried again",
            error.map_or_else(String::new, |error| format!(" ({error})"))
        ),
        Outcome::Unknown { serves: None, why: Why::Unsaved } => format!(
            "it was told to end, but the next daemon may start it again: {}",
            because(Why::Unsaved)
        ),
        Outcome::Unknown { serves: Some(serves), why: Why::Unsaved } => {
            format!("generation {serves}{build} serves, but {}", because(Why::Unsaved))
        }
        Outcome::Unknown { serves: Some(serves), why } => format!(
            "generation {serves}{build} serves; something of the new one may be left: {}",
            because(why)
        ),
        Outcome::Unknown { serves: None, why } => {
            format!(
                "nothing is known to serve; something of the new one may be left: {}",
                because(why)
            )
        }
        Outcome::NothingServes { why } => format!("nothing serves: {}", because(why)),
    }
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::Denied => "refused",
        Why::NoRoom => "an earlier generation is not proven gone",
        Why::Raise => "the host's limit could not be raised for both",
        Why::Refused => "refused before it ran",
        Why::Failed => "it could not be started",
        Why::MayHaveRun => "nothing says whether it ran",
        Why::Killed => "it was killed before it was handed over",
        Why::NeverReady => "it was not ready in time",
        Why::Died => "it died",
        Why::Switch => "the canonical path could not be pointed at it",
        Why::Superseded => "a newer request took its place",
        Why::Lease => "the lease on the state directory is lost",
        Why::Unsaved => "that could not be recorded",
    }
}

/// Shows a report; gives the status to exit with.
fn report(value: &Value, show: Show) -> Result<u8, daemon::Failure> {
    let hosts = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let serves = |host: &Value| !host["serves"].is_null();
    print(&match show {
        Show::Answer => format!("{}\n", value.as_str().unwrap_or_default()),
        Show::Builds => builds(value),
        Show::Json { one } => {
            let value = if one { hosts.first().unwrap_or(value) } else { value };
            format!("{value:#}\n")
        }
        Show::Status { one: true } => hosts.iter().map(details).collect(),
        Show::Status { one: false } => overview(hosts),
    })?;
    Ok(match show {
        Show::Status { one: true } | Show::Json { one: true } if !hosts.iter().all(serves) => {
            NOTHING_SERVES
        }
        _ => 0,
    })
}

/// Text of a field; a number as its digits, nothing as `-`.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn builds(value: &Value) -> String {
    if let Some(removed) = value["removed"].as_array() {
        return removed.iter().map(|name| format!("removed {}\n", text(name))).collect();
    }
    let mut rows = vec![["BUILD", "LIVE", "RUNS", "FAILED"].map(str::to_owned)];
    for build in value["builds"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let yes = |field: &str| if build[field] == true { "yes" } else { "-" }.to_owned();
        rows.push([text(&build["name"]), yes("live"), yes("running"), text(&build["failed"])]);
    }
    table(&rows)
}

fn overview(hosts: &[Value]) -> String {
    let mut rows = vec![["HOST", "STATE", "SERVES", "BUILD", "PIDS", "VERDICT"].map(str::to_owned)];
    for host in hosts {
        let none = Value::Null;
        let generations = host["generations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let serving = generations.iter().find(|one| one["number"] == host["serves"]);
        let serving = serving.unwrap_or(&none);
        rows.push([
            text(&host["host"]),
            text(&host["state"]),
            text(&host["serves"]),
            text(&serving["build"]),
            text(&serving["pids"]),
            text(&serving["verdicts"]),
        ]);
    }
    table(&rows)
}

fn details(host: &Value) -> String {
    let mut rows = Vec::new();
    for (name, field) in [
        ("host", "host"),
        ("state", "state"),
        ("socket", "socket"),
        ("layout", "layout"),
        ("serves", "serves"),
        ("held at", "hold"),
        ("fenced", "fence"),
        ("sidecar", "sidecar"),
    ] {
        if !host[field].is_null() || field == "serves" {
            rows.push([name.to_owned(), text(&host[field])]);
        }
    }
    for generation in host["generations"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let of = |field: &str| text(&generation[field]);
        rows.push([
            format!("generation {}", of("number")),
            format!(
                "{}, build {}, pid {}: {}",
                of("role"),
                of("build"),
                of("pids"),
                of("verdicts")
            ),
        ]);
    }
    for (build, why) in host["failed"].as_object().into_iter().flatten() {
        rows.push([format!("failed {build}"), text(why)]);
    }
    table(&rows)
}

/// Columns as wide as what is in them; the last has no end.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).filter_map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

async fn copy_log(
    mut reader: BufReader<tokio::net::unix::OwnedReadHalf>,
) -> Result<(), daemon::Failure> {
    loop {
        let chunk = reader.fill_buf().await.map_err(|error| (UNKNOWN, error.to_string()))?;
        if chunk.is_empty() {
            return Ok(());
        }
        let length = chunk.len();
        match write(chunk) {
            Ok(()) => reader.consume(length),
            // Whoever reads it has had enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(unwritten(&error)),
        }
    }
}

/// To stdout; a reader that went away is no failure of what was done.
///
/// # Errors
/// It could not be written, as to a full disk: whoever asked knows nothing.
pub(crate) fn print(text: &str) -> Result<(), daemon::Failure> {
    match write(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(&error)),
        _ => Ok(()),
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

fn unwritten(error: &io::Error) -> daemon::Failure {
    (UNKNOWN, format!("cannot write to stdout: {error}"))
}
