//! Demo workers with marks of their own that serve on a loopback address of their own, and who asks
//! them: over HTTP, and the probe.

use std::env;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// What is waited for comes within this, or never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Why nothing can be tested here.
pub(crate) fn missing() -> Option<String> {
    ["TICKMARK_PROBE", "TICKMARK_DEMO_WORKER"]
        .into_iter()
        .find(|variable| !build(variable).is_file())
        .map(|variable| format!("{variable} names no build: cargo xtask test makes them"))
}

fn build(variable: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(env::var_os(variable).unwrap_or_default())
}

/// An address that no other case has.
pub(crate) fn fresh_address() -> SocketAddr {
    static MADE: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, high, low, MADE.fetch_add(1, Ordering::Relaxed)), 8086).into()
}

/// A container: a marks directory, and what its processes and its probe find in their environment.
pub(crate) struct Container {
    marks: TempDir,
    pub(crate) address: SocketAddr,
    max_age: u32,
}

impl Container {
    /// Its marks are stale after `max_age` seconds.
    pub(crate) fn new(address: SocketAddr, max_age: u32) -> Container {
        let shared_memory = Path::new("/dev/shm");
        let marks = if shared_memory.is_dir() {
            tempfile::tempdir_in(shared_memory)
        } else {
            tempfile::tempdir()
        };
        Container { marks: marks.expect("a directory for marks"), address, max_age }
    }

    pub(crate) fn marks(&self) -> &Path {
        self.marks.path()
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("TICKMARK_DIR", self.marks())
            .env("TICKMARK_MAX_AGE", self.max_age.to_string())
            .env("TICKMARK_TICK", "1")
            .env("TICKMARK_SERVE", self.address.to_string())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Worker {
        let mut process = self
            .command(&build("TICKMARK_DEMO_WORKER"))
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("a demo worker");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(process.stderr.take().expect("its log"));
        let sink = Arc::clone(&lines);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Worker { process, lines }
    }

    /// What the probe prints with these arguments, and whether it exits 0.
    pub(crate) fn probe(&self, arguments: &[&str]) -> (String, bool) {
        let output =
            self.command(&build("TICKMARK_PROBE")).args(arguments).output().expect("the probe");
        (String::from_utf8(output.stdout).expect("UTF-8"), output.status.success())
    }

    /// The status and the body; within `limit` altogether.
    pub(crate) fn try_get(&self, path: &str, limit: Duration) -> io::Result<(u16, String)> {
        let (status, _, body) = get(self.address, path, limit)?;
        Ok((status, body))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path, PATIENCE).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Asks until `/livez` answers so.
    pub(crate) fn wait_for(&self, status: u16) -> String {
        let mut last = None;
        until(&format!("{status} on {}", self.address), || {
            last = self.try_get("/livez", PATIENCE).ok();
            last.as_ref().is_some_and(|(answered, _)| *answered == status)
        });
        last.unwrap_or_default().1
    }
}

/// Status, head and body.
pub(crate) fn get(
    address: SocketAddr,
    path: &str,
    limit: Duration,
) -> io::Result<(u16, String, String)> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let whole = || io::Error::other(format!("not an answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(whole)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(whole)?, head.to_owned(), body.to_owned()))
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A demo worker, killed when this goes; with it die the processes that it started.
pub(crate) struct Worker {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Worker {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Whether SIGSTOP has reached every thread of the main process.
    pub(crate) fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.flatten().all(|thread| {
            // The state follows the command, which may hold anything.
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// The lines that hold `part`, so far.
    pub(crate) fn said(&self, part: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(part)).cloned().collect()
    }

    pub(crate) fn wait_to_say(&self, part: &str, times: usize) {
        until(&format!("{times} times {part:?}"), || self.said(part).len() >= times);
    }

    /// The slot that began to serve last, and the process that it ran in then.
    pub(crate) fn serving(&self) -> (String, u32) {
        let said = self.said("serving /livez");
        let slot = between(said.last().expect("a process that serves"), "slot ", ":");
        let runs = self.said(&format!("slot {slot} runs as pid "));
        let pid = runs.last().expect("its process").rsplit(' ').next().unwrap_or_default();
        (slot.to_owned(), pid.parse().expect("a process id"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _dead = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = text.split_once(before).map_or("", |(_, rest)| rest);
    rest.split_once(after).map_or(rest, |(found, _)| found)
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("leave to send it a signal");
}
