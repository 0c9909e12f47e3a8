//! The activator's own two units, as they are shipped: only their program and its configuration
//! are this test's. A client asks the service of a host all the while.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::guest::{RUNTIME, install, programs, systemctl, until};

const SITE: &str = "/run/site";
const HOSTS: &str = include_str!("../../systemd/tickmark-hosts.service");
const ACTIVATOR: &str = include_str!("../../systemd/tickmark-activator.service");

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("a_restart_of_the_activator_leaves_its_hosts_serving", || {
        std::panic::catch_unwind(restarted).map_err(|_| {
            fs::read_to_string(Path::new(SITE).join("daemon.log")).unwrap_or_default().into()
        })
    })]
}

fn restarted() {
    set_up();
    systemctl(&["start", "tickmark-activator.service"]);
    deploy("one");
    let host = leader();
    let daemon = main_pid();
    assert_in_the_other_unit(&host);
    let client = Client::start();

    for _ in 0..3 {
        systemctl(&["restart", "tickmark-activator.service"]);
        assert_eq!(leader(), host, "the same process");
        client.is_answered();
    }
    assert_ne!(main_pid(), daemon, "another activator");

    // Killed, and started again by its unit.
    let killed = main_pid();
    systemctl(&["kill", "--signal=KILL", "tickmark-activator.service"]);
    until("another activator", || main_pid() != killed && main_pid() != "0");
    until("it takes commands", || command(&["status"]).0);
    assert_eq!(leader(), host);

    // The manager reads its units again, and leaves a delegated cgroup alone.
    systemctl(&["daemon-reload"]);
    assert_eq!(leader(), host);

    // Stopped, it leaves its hosts; and it swaps what an earlier one started.
    systemctl(&["stop", "tickmark-activator.service"]);
    client.is_answered();
    assert_eq!(leader(), host);
    systemctl(&["start", "tickmark-activator.service"]);
    deploy("two");
    client.is_answered();
    assert_ne!(leader(), host);
    assert_eq!(client.end(), 0, "requests that failed");

    // The other unit takes both.
    systemctl(&["stop", "tickmark-hosts.service"]);
    assert!(!hosts().exists());
    assert_eq!(main_pid(), "0");

    // And from nothing.
    systemctl(&["start", "tickmark-activator.service"]);
    command_succeeds(&["wake", "web"]);
    ask().expect("an answer");
    systemctl(&["stop", "tickmark-hosts.service"]);
}

fn set_up() {
    fs::create_dir_all(SITE).unwrap();
    let configuration = format!(
        r#"[activator]
state = "{SITE}/state"
socket = "{RUNTIME}/tickmark/activator.sock"
cgroup = "auto"

[host.web]
socket = "{SITE}/web.sock"
builds = "{SITE}/web"
start_deadline = "60s"
settle = "10ms"
drain = "10s"
tier = {{ memory = "256M", pids = 32 }}
env = {{ TICKMARK_TICK = "1" }}
"#
    );
    fs::write(configuration_file(), configuration).unwrap();
    let line = "ExecStart=/usr/bin/tickmark-activator run --config /etc/tickmark/activator.toml";
    assert!(ACTIVATOR.contains(line), "the unit's program is where this test replaces it");
    let own = format!(
        "ExecStart={} run --config {}\nStandardError=append:{SITE}/daemon.log",
        programs().join("tickmark-activator").display(),
        configuration_file().display()
    );
    install("tickmark-hosts.service", HOSTS);
    install("tickmark-activator.service", &ACTIVATOR.replace(line, &own));
}

fn configuration_file() -> PathBuf {
    Path::new(SITE).join("activator.toml")
}

/// A command of the user's; whether it succeeded, and what it said.
fn command(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(programs().join("tickmark-activator"))
        .args(arguments)
        .env("TICKMARK_ACTIVATOR_CONFIG", configuration_file())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn command_succeeds(arguments: &[&str]) {
    let (succeeded, said) = command(arguments);
    assert!(succeeded, "{arguments:?}: {said}");
}

fn deploy(build: &str) {
    let http = programs().join("http");
    command_succeeds(&["deploy", "web", http.to_str().unwrap(), "--build", build]);
}

/// The cgroup of the unit that holds the hosts.
fn hosts() -> &'static Path {
    Path::new("/sys/fs/cgroup/manager/app.slice/tickmark-hosts.service")
}

/// The only process of the host.
fn leader() -> String {
    let host = hosts().join("host-web");
    let mut pids = String::new();
    for leaf in fs::read_dir(&host).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        pids += &fs::read_to_string(leaf.path().join("cgroup.procs")).unwrap();
    }
    let pids: Vec<&str> = pids.lines().collect();
    let [pid] = pids[..] else { panic!("one process of one generation: {pids:?}") };
    pid.to_owned()
}

fn assert_in_the_other_unit(pid: &str) {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(cgroup.contains("/tickmark-hosts.service/host-web/generation-1-0"), "{cgroup}");
    let read = |file: &str| fs::read_to_string(hosts().join("host-web").join(file)).unwrap();
    assert_eq!(read("pids.max"), "32\n");
    assert_eq!(read("memory.max"), "268435456\n");
}

fn main_pid() -> String {
    let output = Command::new("systemctl")
        .args(["--user", "show", "--property=MainPID", "--value", "tickmark-activator.service"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One request through the canonical path.
fn ask() -> io::Result<()> {
    let mut stream = UnixStream::connect(Path::new(SITE).join("web.sock"))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if text.starts_with("HTTP/1.1 200 OK") { Ok(()) } else { Err(io::Error::other(text)) }
}

/// Asks again and again.
struct Client {
    asked: Arc<AtomicU32>,
    failed: Arc<AtomicU32>,
    ends: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Client {
    fn start() -> Client {
        let [asked, failed] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let ends = Arc::new(AtomicBool::new(false));
        let (asks, fails, end) = (Arc::clone(&asked), Arc::clone(&failed), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if let Err(error) = ask() {
                    eprintln!("a request: {error}");
                    fails.fetch_add(1, Ordering::Relaxed);
                }
                asks.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        Client { asked, failed, ends, thread }
    }

    /// Waits for two more: the second was begun after this call.
    fn is_answered(&self) {
        let before = self.asked.load(Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.asked.load(Ordering::Relaxed) < before + 2 {
            assert!(Instant::now() < deadline, "no answer");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many failed.
    fn end(self) -> u32 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.failed.load(Ordering::Relaxed)
    }
}
