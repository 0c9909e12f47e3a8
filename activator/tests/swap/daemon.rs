//! An activator in a process of its own, so that it can be killed and measured: it takes requests
//! on its standard input and answers each with one line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use tickmark_activator::config::Config;
use tickmark_activator::{Activator, Answer, Error, Options};

use crate::heap;
use crate::site::{Site, build, host, runtime, within};

/// The child's side.
pub(crate) fn run() -> ExitCode {
    let config = std::env::args().nth(2).expect("a configuration");
    runtime().block_on(async {
        let config = Config::read(Path::new(&config)).unwrap();
        let activator = Activator::open(config).await.unwrap();
        say("open");
        let (lines, mut requests) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                let _closed = lines.send(line);
            }
        });
        while let Some(line) = requests.recv().await {
            say(&answer(&activator, &line).await);
        }
        activator.close().await;
    });
    ExitCode::SUCCESS
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
}

async fn answer(activator: &Activator, line: &str) -> String {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let asked: Result<Answer, Error> = match verb {
        "swap" => activator.swap(&host(), build(rest), within(20)).await,
        "stop" => activator.stop(&host()).await,
        "wake" => activator.wake(&host(), Options::default()).await,
        "status" => {
            let status = activator.status(&host()).await.unwrap();
            return serde_json::to_string(&status).unwrap();
        }
        "heap" => return heap::in_use().to_string(),
        _ => return format!("unknown {verb}"),
    };
    match asked {
        Ok(answer) => {
            let error = answer.error.map(|error| error.to_string()).unwrap_or_default();
            format!("{} {error}", answer.outcome.exit())
        }
        Err(error) => format!("error {error}"),
    }
}

/// What an activator takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) resident_kib: u64,
    /// Bytes in use, to the byte.
    pub(crate) heap: i64,
    pub(crate) files: usize,
}

/// The parent's side. Dropped, it is killed with SIGKILL.
pub(crate) struct Daemon {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Daemon {
    pub(crate) fn start(site: &Site) -> Daemon {
        Daemon::spawn(site, &mut Daemon::command())
    }

    /// One that writes what it logs to `log`.
    pub(crate) fn logging(site: &Site, log: &Path) -> Daemon {
        let log = std::fs::File::create(log).unwrap();
        Daemon::spawn(site, Daemon::command().env("TICKMARK_TEST_LOG", "1").stderr(log))
    }

    fn command() -> Command {
        Command::new(std::env::current_exe().unwrap())
    }

    fn spawn(site: &Site, command: &mut Command) -> Daemon {
        let config = site.path().join("config.toml");
        std::fs::write(&config, site.config_text()).unwrap();
        let mut child = command
            .arg("daemon")
            .arg(&config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut daemon = Daemon { child, requests, answers };
        assert_eq!(daemon.read(), "open", "the activator did not open");
        daemon
    }

    pub(crate) fn send(&mut self, request: &str) {
        writeln!(self.requests, "{request}").unwrap();
    }

    pub(crate) fn read(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.read()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn size(&mut self) -> Size {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident_kib = line.trim().trim_end_matches(" kB").parse().unwrap();
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count();
        Size { resident_kib, heap: self.ask("heap").parse().unwrap(), files }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Something that repeats by its seed.
pub(crate) struct Random(u64);

impl Random {
    /// From `TICKMARK_SEED`, else the clock; printed, so that a failure can be repeated.
    pub(crate) fn new(what: &str) -> Random {
        let seed = std::env::var("TICKMARK_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().as_nanos() as u64 | 1
        });
        eprintln!("{what}: TICKMARK_SEED={seed}");
        Random(seed)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub(crate) fn micros_below(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(limit.as_micros() as u64))
    }
}
