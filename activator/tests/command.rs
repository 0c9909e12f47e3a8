//! The binary as its users meet it: a real daemon, real commands, the example services as builds.
//! Every command, every exit status, and what the daemon does when it ends, dies or is not alone.
//! Needs no root; what does says so.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const ACTIVATOR: &str = env!("CARGO_BIN_EXE_tickmark-activator");
const PATIENCE: Duration = Duration::from_secs(30);

/// An example, which cargo builds with the tests.
fn example(name: &str) -> PathBuf {
    let path = Path::new(ACTIVATOR).with_file_name("examples").join(name);
    assert!(
        path.is_file(),
        "{} is built by `cargo test`, unless --test leaves it out: build it with \
        `cargo build -p tickmark-activator --examples`",
        path.display()
    );
    path
}

/// A directory with a configuration, and at most one daemon on it.
struct Site {
    directory: TempDir,
    daemon: Option<Child>,
}

impl Site {
    /// With a daemon that serves commands.
    fn new() -> Site {
        let mut site = Site::configured("");
        site.start();
        site
    }

    /// Two hosts: `web` with a socket, `queue` with two slots; and what `more` says.
    fn configured(more: &str) -> Site {
        let directory = tempfile::Builder::new().prefix("tm").tempdir().unwrap();
        let at = directory.path().display();
        let text = format!(
            r#"[activator]
state = "{at}/state"
cgroup = "none"

[host.web]
socket = "{at}/web.sock"
builds = "{at}/web"
start_deadline = "20s"
settle = "10ms"
drain = "5s"
env = {{ TICKMARK_TICK = "1" }}

[host.queue]
builds = "{at}/queue"
slots = 2
start_deadline = "20s"
settle = "10ms"
drain = "5s"
env = {{ TICKMARK_TICK = "1", QUEUE = "{at}/jobs", JOB_MS = "1" }}
{more}"#
        );
        fs::write(directory.path().join("activator.toml"), text).unwrap();
        Site { directory, daemon: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(ACTIVATOR);
        command
            .current_dir(self.directory.path())
            .env("TICKMARK_ACTIVATOR_CONFIG", self.path("activator.toml"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null());
        command
    }

    fn daemon_command(&self) -> Command {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.command();
        command.arg("run").stdout(Stdio::null()).stderr(log);
        command
    }

    /// Starts the daemon, and waits until it answers.
    fn start(&mut self) {
        assert!(self.daemon.is_none());
        let mut child = self.daemon_command().spawn().unwrap();
        until("the daemon answers", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the daemon ended with {status}:\n{}", self.log());
            }
            self.run(&["status"]).status.success()
        });
        self.daemon = Some(child);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        signal_to(self.daemon.as_ref().unwrap(), signal);
    }

    /// Ends the daemon by a signal, and gives how it ended.
    fn end(&mut self, signal: Signal) -> std::process::ExitStatus {
        self.signal(signal);
        self.daemon.take().unwrap().wait().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    /// Runs a command that must exit so; gives its stdout.
    fn exits(&self, exit: i32, arguments: &[&str]) -> String {
        let out = self.run(arguments);
        let shown = || {
            let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            format!("{arguments:?}\n{}{}\n{}", said(&out.stdout), said(&out.stderr), self.log())
        };
        assert_eq!(out.status.code(), Some(exit), "{}", shown());
        String::from_utf8(out.stdout).unwrap()
    }

    /// The same; gives its stderr.
    fn complains(&self, exit: i32, arguments: &[&str]) -> String {
        let out = self.run(arguments);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(exit), "{arguments:?}\n{said}\n{}", self.log());
        said
    }

    fn deploy(&self, exit: i32, build: &str) -> String {
        let http = example("http");
        self.exits(exit, &["deploy", "web", http.to_str().unwrap(), "--build", build])
    }

    /// A build that ends at once.
    fn bad(&self) -> String {
        self.script("bad", "exit 3")
    }

    /// A build that runs and never is ready.
    fn sleeps(&self, name: &str) -> String {
        self.script(name, "exec sleep 1000")
    }

    fn script(&self, name: &str, line: &str) -> String {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn status(&self, host: &str) -> Value {
        let out = self.run(&["status", host, "--json"]);
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// One request through the canonical path, by HTTP; gives the body.
    fn get(&self) -> String {
        answer(self.asks())
    }

    /// A client that has sent its request.
    fn asks(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.path("web.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /hello HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }
}

/// The body of what a client is answered.
fn answer(mut stream: UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

impl Drop for Site {
    fn drop(&mut self) {
        // The hosts outlive their daemon, but not their test.
        if self.daemon.is_none() && self.path("state").exists() {
            self.daemon = self.daemon_command().spawn().ok();
            let end = Instant::now() + PATIENCE;
            while !self.run(&["status"]).status.success() && Instant::now() < end {
                thread::sleep(Duration::from_millis(20));
            }
        }
        for host in ["web", "queue"] {
            let _stopped = self.run(&["stop", host]);
        }
        if let Some(mut daemon) = self.daemon.take() {
            signal_to(&daemon, Signal::TERM);
            let _ended = daemon.wait();
        }
    }
}

fn signal_to(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {} s", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_build_is_deployed_swapped_rolled_back_restarted_stopped_and_woken() {
    let site = Site::new();
    assert_eq!(site.deploy(0, "v1"), "web: generation 1 of build v1 serves\n");
    assert_eq!(site.get(), "/hello from build v1, generation 1\n");
    assert_eq!(site.deploy(0, "v2"), "web: generation 2 of build v2 serves\n");
    assert_eq!(site.get(), "/hello from build v2, generation 2\n");
    assert_eq!(site.exits(0, &["swap", "web", "v1"]), "web: generation 3 of build v1 serves\n");
    assert_eq!(site.exits(0, &["rollback", "web"]), "web: generation 4 of build v2 serves\n");
    assert_eq!(site.exits(0, &["restart", "web"]), "web: generation 5 of build v2 serves\n");
    assert_eq!(site.get(), "/hello from build v2, generation 5\n");
    // It serves: there is nothing to do.
    assert_eq!(site.exits(0, &["wake", "web"]), "web: generation 5 of build v2 serves\n");
    assert_eq!(site.exits(0, &["stop", "web"]), "web: stopped; nothing runs\n");
    assert!(!site.path("web.sock").exists());
    assert_eq!(site.exits(0, &["wake", "web"]), "web: generation 6 of build v2 serves\n");
    assert_eq!(site.get(), "/hello from build v2, generation 6\n");
}

#[test]
fn a_host_is_held_at_a_build_until_it_is_released() {
    let site = Site::new();
    site.deploy(0, "v1");
    site.deploy(0, "v2");
    assert_eq!(site.exits(0, &["hold", "web", "v1"]), "web: generation 3 of build v1 serves\n");
    let refused = site.exits(1, &["swap", "web", "v2"]);
    assert!(
        refused.starts_with("web: nothing changed, generation 3 of build v1 serves: refused: ")
    );
    assert!(refused.contains("hold web --release"), "{refused}");
    assert_eq!(site.exits(0, &["hold", "web", "--release"]), "web: no longer held at v1\n");
    assert_eq!(site.exits(0, &["swap", "web", "v2"]), "web: generation 4 of build v2 serves\n");
}

#[test]
fn builds_are_listed_and_pruned_but_never_one_that_is_needed() {
    let site = Site::new();
    for build in ["v1", "v2", "v3", "v4"] {
        site.deploy(0, build);
    }
    let listed = site.exits(0, &["builds", "web"]);
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap();
    assert_eq!(row("v4").split_whitespace().collect::<Vec<_>>(), ["v4", "yes", "yes", "-"]);
    assert_eq!(row("v1").split_whitespace().collect::<Vec<_>>(), ["v1", "-", "-", "-"]);
    // v4 runs, v3 served before.
    let removed = site.exits(0, &["builds", "web", "--prune", "0"]);
    assert_eq!(removed.lines().collect::<Vec<_>>().len(), 2, "{removed}");
    assert!(removed.contains("removed v1\n") && removed.contains("removed v2\n"), "{removed}");
    site.exits(0, &["rollback", "web"]);
}

#[test]
fn a_queue_is_served_by_every_slot_and_its_log_can_be_followed() {
    let site = Site::new();
    let queue = example("queue");
    let deploy = ["deploy", "queue", queue.to_str().unwrap()];
    assert_eq!(site.exits(0, &deploy), "queue: generation 1 of build queue serves\n");
    let status = site.status("queue");
    assert_eq!(status["generations"][0]["pids"].as_array().unwrap().len(), 2, "{status}");

    let mut follows =
        site.command().args(["logs", "queue", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    fs::write(site.path("jobs/one.job"), "").unwrap();
    until("the job is done", || {
        fs::read_dir(site.path("jobs/done")).unwrap().flatten().count() == 1
    });
    assert!(lines.any(|line| line.unwrap().contains("did ")), "the log ended");
    follows.kill().unwrap();
    follows.wait().unwrap();
    assert!(site.exits(0, &["logs", "queue"]).contains("consuming "));
    assert_eq!(site.exits(0, &["logs", "queue", "--lines", "1"]).lines().count(), 1);
}

#[test]
fn the_example_answers_whoever_connected_before_it_was_told_to_end() {
    let site = Site::new();
    site.deploy(0, "v1");
    let pid = site.status("web")["generations"][0]["pids"][0].as_i64().unwrap();
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let send = |signal| kill_process(pid, signal).unwrap();
    // It accepts none of them before it hears of its end.
    send(Signal::STOP);
    let clients: Vec<UnixStream> = (0..32).map(|_| site.asks()).collect();
    send(Signal::TERM);
    send(Signal::CONT);
    for client in clients {
        assert_eq!(answer(client), "/hello from build v1, generation 1\n");
    }
}

#[test]
fn status_is_for_people_and_for_programs() {
    let site = Site::new();
    let asleep = site.exits(0, &["status"]);
    assert!(asleep.lines().nth(1).unwrap().starts_with("queue  asleep  -"), "{asleep}");
    // Exit 5: nothing serves.
    site.exits(5, &["status", "web"]);
    site.deploy(0, "v1");
    let one = site.exits(0, &["status", "web"]);
    assert!(one.contains("serves        1\n"), "{one}");
    let json: Value = serde_json::from_str(&site.exits(0, &["status", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert_eq!(json[1]["host"], "web");
    assert_eq!(json[1]["serves"], 1);
}

#[test]
fn exit_1_where_nothing_changed_and_the_incumbent_serves() {
    let site = Site::new();
    site.deploy(0, "v1");
    let bad = site.bad();
    let said = site.exits(1, &["deploy", "web", &bad]);
    let start = "web: nothing changed, generation 1 of build v1 serves: it died: ";
    assert!(said.starts_with(start), "{said}");
    assert_eq!(site.get(), "/hello from build v1, generation 1\n");
    // The steps of what failed are shown, however quick it was.
    let steps = site.complains(1, &["swap", "web", "bad"]);
    assert!(steps.contains("warming"), "{steps}");
    // It is remembered.
    let listed = site.exits(0, &["builds", "web"]);
    assert!(
        listed.lines().any(|line| line.starts_with("bad") && line.contains("status 3")),
        "{listed}"
    );
    // No such build: nothing was tried.
    let said = site.exits(1, &["swap", "web", "v9"]);
    assert!(said.contains("there is no build"), "{said}");
}

#[test]
fn exit_1_where_the_deadline_of_the_command_ends_first() {
    let site = Site::new();
    site.deploy(0, "v1");
    let sleeps = site.sleeps("sleeps");
    let started = Instant::now();
    let deploy = ["deploy", "web", &sleeps, "--deadline", "500ms"];
    let said = site.exits(1, &deploy);
    assert!(said.contains("it was not ready in time"), "{said}");
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert_eq!(site.status("web")["generations"].as_array().unwrap().len(), 1);
}

#[test]
fn an_operation_that_takes_long_shows_its_steps_as_they_pass() {
    let site = Site::new();
    let sleeps = site.sleeps("sleeps");
    let mut deploy =
        site.command().args(["deploy", "web", &sleeps]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(deploy.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("warming")), "it ended without a step");
    assert_eq!(site.status("web")["state"], "warming", "it is under way");
    deploy.kill().unwrap();
    deploy.wait().unwrap();
}

#[test]
fn exit_2_where_the_command_line_or_the_configuration_is_wrong() {
    let site = Site::new();
    for wrong in [
        &["deploy", "web"][..],
        &["fly", "web"],
        &["deploy", "we/b", "x"],
        &["swap", "web", "../v1"],
        &["deploy", "web", "/bin/true", "--deadline", "soon"],
        &["hold", "web"],
        &["hold", "web", "v1", "--release"],
        &["status", "nobody"],
        &["restart", "nobody"],
        &["logs", "nobody"],
        &["--config", "/nowhere.toml", "status"],
        &["check", "/nowhere.toml"],
        // It has no end.
        &["check", "/dev/zero"],
    ] {
        let said = site.complains(2, wrong);
        assert!(!said.is_empty());
    }
    let path = OsStr::from_bytes(b"/srv/\xff");
    let out =
        site.command().args([OsStr::new("deploy"), OsStr::new("web"), path]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("\"/srv/\\xFF\" is not UTF-8"), "{said}");
    let said = site.complains(2, &["status", "nobody"]);
    assert!(said.contains("nobody") && said.contains("web"), "names what there is: {said}");
}

#[test]
fn exit_2_for_each_mistake_in_a_configuration() {
    let site = Site::configured("");
    let file = site.path("activator.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(site.exits(0, &["check", "activator.toml"]).contains("host     web: "));
    for (right, wrong, said) in [
        ("drain = \"5s\"", "darin = \"5s\"", ":10: host.web.darin: unknown field"),
        (
            "drain = \"5s\"",
            "drain = \"5 lightyears\"",
            ":10: host.web.drain: \"5 lightyears\" is not",
        ),
        ("slots = 2", "slots = 0", ":15: host.queue.slots: there must be 1 or more"),
        ("cgroup = \"none\"", "cgroup = \"nope\"", ":3: activator.cgroup: \"nope\" is neither"),
        ("[host.web]", "[host.web", ":5: "),
    ] {
        assert!(text.contains(right));
        fs::write(&file, text.replacen(right, wrong, 1)).unwrap();
        for command in [&["check", "activator.toml"][..], &["run"], &["status"]] {
            let complaint = site.complains(2, command);
            let complaint = complaint.trim_end();
            assert!(complaint.contains(said), "{wrong}, {command:?}: {complaint}");
            assert!(complaint.contains("activator.toml:"), "{complaint}");
            assert!(complaint.contains("; correct it, and ask "), "{complaint}");
        }
    }
    // No mistake, since it may be made at each boot; and worth knowing.
    let nowhere = text.replace("web.sock", "run/web.sock");
    fs::write(&file, nowhere).unwrap();
    let shown = site.exits(0, &["check", "activator.toml"]);
    assert!(shown.contains("run/web.sock, in a directory that is not there; overlaps"), "{shown}");
    // Two hosts on one socket: both rows read conflict.
    let more = format!("[host.other]\nsocket = {:?}\nbuilds = \"/b\"\n", site.path("web.sock"));
    fs::write(&file, format!("{text}\n{more}")).unwrap();
    assert!(site.complains(2, &["check", "activator.toml"]).contains("web.sock"));
    // By another way to it; and the daemon's own.
    std::os::unix::fs::symlink(".", site.path("also")).unwrap();
    for (socket, said) in [
        ("also/web.sock", "is the socket of host web too"),
        ("also/state/activator.sock", "is the socket for commands too"),
    ] {
        let more = format!("[host.other]\nsocket = {:?}\nbuilds = \"/b\"\n", site.path(socket));
        fs::write(&file, format!("{text}\n{more}")).unwrap();
        fs::create_dir_all(site.path("state")).unwrap();
        let complaint = site.complains(2, &["check", "activator.toml"]);
        assert!(complaint.contains(said), "{complaint}");
    }
}

#[test]
fn exit_3_where_the_old_generation_is_not_proven_gone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a process that its activator cannot kill needs root to be made");
        assert_ne!(std::env::var("TICKMARK_NO_SKIPS").as_deref(), Ok("1"), "skipped");
        return;
    }
    // The activator is an ordinary user, and the build a program that becomes root.
    let mut site = Site::configured("");
    let config = fs::read_to_string(site.path("activator.toml")).unwrap();
    let queue = example("queue");
    let args = format!(
        "drain = \"200ms\"\nargs = [\"--reuid=0\", \"--clear-groups\", {:?}]\n",
        queue.to_str().unwrap()
    );
    let (web, rest) = config.split_once("slots = 2\n").unwrap();
    let rest = rest.replacen("drain = \"5s\"\n", &args, 1);
    fs::write(site.path("activator.toml"), format!("{web}{rest}")).unwrap();
    let builds = site.path("queue");
    fs::create_dir(&builds).unwrap();
    for build in ["v1", "v2"] {
        fs::copy("/usr/bin/setpriv", builds.join(build)).unwrap();
        fs::set_permissions(builds.join(build), fs::Permissions::from_mode(0o4755)).unwrap();
    }
    fs::set_permissions(site.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut daemon = Command::new("setpriv");
    daemon
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", ACTIVATOR, "run"])
        .current_dir(site.directory.path())
        .env("TICKMARK_ACTIVATOR_CONFIG", site.path("activator.toml"))
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null())
        .stderr(fs::File::create(site.path("log")).unwrap());
    site.daemon = Some(daemon.spawn().unwrap());
    until("the daemon answers", || site.run(&["status"]).status.success());

    let pid = |number: u64| {
        let status = site.status("queue");
        let generations = status["generations"].as_array().unwrap();
        let found = generations.iter().find(|one| one["number"] == number).unwrap();
        Pid::from_raw(i32::try_from(found["pids"][0].as_i64().unwrap()).unwrap()).unwrap()
    };
    site.exits(0, &["swap", "queue", "v1"]);
    let first = pid(1);
    let said = site.exits(3, &["swap", "queue", "v2"]);
    let start = "queue: generation 2 of build v2 serves, but an older one is not proven gone";
    assert!(said.starts_with(start), "{said}");
    let second = pid(2);
    // There is no room for a third, and what serves serves on.
    let refused = site.exits(1, &["swap", "queue", "v1"]);
    assert!(refused.contains("an earlier generation is not proven gone"), "{refused}");
    // Who can, ends it; then it is proven, and there is room again.
    kill_process(first, Signal::KILL).unwrap();
    until("the old one is proven gone", || {
        site.status("queue")["generations"].as_array().unwrap().len() == 1
    });
    assert_eq!(site.status("queue")["serves"], 2);
    let stopped = site.exits(3, &["stop", "queue"]);
    assert!(stopped.starts_with("queue: stopped, but not proven gone"), "{stopped}");
    kill_process(second, Signal::KILL).unwrap();
    until("it is proven gone", || {
        site.status("queue")["generations"].as_array().unwrap().is_empty()
    });
}

#[test]
fn exit_4_where_the_outcome_is_unknown() {
    let mut site = Site::configured("");
    // No daemon: nobody knows what serves.
    let said = site.complains(4, &["status"]);
    assert!(said.contains("is the daemon running"), "{said}");
    site.start();
    site.deploy(0, "v1");
    // The daemon dies in the middle of it.
    let sleeps = site.sleeps("sleeps");
    let deploy =
        site.command().args(["deploy", "web", &sleeps]).stderr(Stdio::piped()).spawn().unwrap();
    until("it warms", || site.status("web")["state"] == "warming");
    site.end(Signal::KILL);
    let out = deploy.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("ask `status`"), "{said}");
    // The next daemon removes the successor, and the incumbent has served on.
    assert_eq!(site.get(), "/hello from build v1, generation 1\n");
    site.start();
    until("it serves", || site.status("web")["state"] == "serving");
    assert_eq!(site.status("web")["serves"], 1);
    // A daemon that ends properly says so.
    let deploy =
        site.command().args(["swap", "web", "sleeps"]).stderr(Stdio::piped()).spawn().unwrap();
    until("it warms", || site.status("web")["state"] == "warming");
    assert!(site.end(Signal::TERM).success());
    let out = deploy.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("the hosts serve on"), "{said}");
}

#[test]
fn exit_5_where_nothing_serves() {
    let mut site = Site::configured("");
    let file = site.path("activator.toml");
    let astray = format!(
        "[host.astray]\ndirectory = \"/nowhere/at/all\"\nbuilds = {:?}\n",
        site.path("web")
    );
    fs::write(&file, fs::read_to_string(&file).unwrap() + &astray).unwrap();
    site.start();
    let bad = site.bad();
    let said = site.exits(5, &["deploy", "web", &bad]);
    assert!(said.starts_with("web: nothing serves: it died: "), "{said}");
    let said = site.exits(5, &["wake", "queue"]);
    assert!(said.contains("deploy a build"), "{said}");
    let said = site.complains(5, &["deploy", "web", "/nowhere"]);
    assert!(said.contains("/nowhere"), "{said}");
    let said = site.exits(5, &["deploy", "astray", &bad]);
    assert!(said.contains("in its directory, /nowhere/at/all: No such file"), "{said}");
}

#[test]
fn a_rehearsal_changes_nothing() {
    let site = Site::new();
    let http = example("http");
    let deploy = ["deploy", "-n", "web", http.to_str().unwrap(), "--build", "v1"];
    let said = site.exits(0, &deploy);
    assert!(said.contains("would deploy") && said.ends_with("; nothing serves now\n"), "{said}");
    assert!(!site.path("web").join("v1").exists());
    assert_eq!(site.status("web")["state"], "asleep");
    let text = site.path("text");
    fs::write(&text, "no program").unwrap();
    let said = site.complains(2, &["deploy", "-n", "web", text.to_str().unwrap()]);
    assert!(said.contains("chmod +x"), "{said}");
    site.complains(5, &["deploy", "-n", "web", "/nowhere"]);
}

#[test]
fn a_command_that_goes_away_before_its_start_starts_nothing() {
    let site = Site::new();
    site.deploy(0, "v1");
    // A connection that asks and is closed at once: the answer finds nobody.
    let mut stream = UnixStream::connect(site.path("state/activator.sock")).unwrap();
    let request = r#"{"version":1,"request":{"restart":{"host":"web"}}}"#;
    writeln!(stream, "{request}").unwrap();
    drop(stream);
    until("it serves", || site.status("web")["state"] == "serving");
    // Either it was gone before the start, or the start was quicker: one generation, never none.
    assert_eq!(site.status("web")["generations"].as_array().unwrap().len(), 1);
    assert!(site.get().starts_with("/hello from build v1"));
}

#[test]
fn a_command_that_goes_away_while_its_build_warms_stops_it() {
    let site = Site::new();
    site.deploy(0, "v1");
    site.sleeps("web/sleeps");
    let mut swap = site.command().args(["swap", "web", "sleeps"]).spawn().unwrap();
    until("it warms", || site.status("web")["state"] == "warming");
    // As a session that is cut off; whoever started this may have had it ignore SIGINT.
    swap.kill().unwrap();
    swap.wait().unwrap();
    until("it is stopped", || site.status("web")["state"] == "serving");
    assert!(
        site.log().contains("generation 2 is stopped: its request has ended"),
        "{}",
        site.log()
    );
    assert_eq!(site.status("web")["generations"].as_array().unwrap().len(), 1);
    assert_eq!(site.get(), "/hello from build v1, generation 1\n");
}

#[test]
fn two_daemons_on_one_state_directory_are_one() {
    let site = Site::new();
    site.deploy(0, "v1");
    let second = site.command().arg("run").output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("state"), "{said}");
    // The first has its socket still.
    assert_eq!(site.exits(0, &["restart", "web"]), "web: generation 2 of build v1 serves\n");
}

#[test]
fn the_control_socket_is_for_the_owner_and_the_group_and_never_takes_a_place() {
    let mut site = Site::configured("");
    let socket = site.path("state/activator.sock");
    site.start();
    let found = fs::metadata(&socket).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o660);
    // A daemon that died leaves its socket; the next takes the stale one's place.
    site.end(Signal::KILL);
    assert!(socket.exists());
    site.start();
    assert!(site.end(Signal::TERM).success());
    assert!(!socket.exists());
    // Another's listener, and a file, are left alone.
    let other = UnixListener::bind(&socket).unwrap();
    let said = site.complains(1, &["run"]);
    assert!(said.contains("another daemon listens at"), "{said}");
    drop(other);
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    let said = site.complains(1, &["run"]);
    assert!(said.contains("is no socket"), "{said}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    fs::remove_file(&socket).unwrap();
}

#[test]
fn what_is_no_request_is_refused_with_a_reason() {
    let site = Site::new();
    let answer = |request: &[u8]| {
        let mut stream = UnixStream::connect(site.path("state/activator.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A line that is too long is refused before it is whole.
        let _refused = stream.write_all(request);
        let mut text = String::new();
        let _reset = stream.read_to_string(&mut text);
        text
    };
    for (request, said) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "not a request"),
        (b"{\"version\":1,\"request\":{\"fly\":{}}}\n", "unknown variant"),
        (
            b"{\"version\":1,\"request\":{\"stop\":{\"host\":\"web\",\"now\":true}}}\n",
            "unknown field",
        ),
        (b"{\"version\":1,\"request\":{\"stop\":{\"host\":\"../web\"}}}\n", "cannot name a host"),
        (b"{\"version\":9,\"request\":{\"soar\":1}}\n", "speaks version 1, the command version 9"),
        (b"\xff\xfe\n", "not UTF-8"),
    ] {
        let answer = answer(request);
        let reply: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(reply["failure"]["exit"], 2, "{answer}");
        assert!(reply["failure"]["message"].as_str().unwrap().contains(said), "{answer}");
    }
    let mut long = vec![b' '; 1 << 20];
    long.push(b'\n');
    let refused = answer(&long);
    assert!(refused.is_empty() || refused.contains("longer than"), "{refused}");
    // One that says nothing keeps nobody waiting.
    let silent = UnixStream::connect(site.path("state/activator.sock")).unwrap();
    site.exits(0, &["status"]);
    drop(silent);
}

#[test]
fn the_hosts_serve_on_while_their_daemon_restarts() {
    let mut site = Site::new();
    site.deploy(0, "v1");
    let before = site.status("web");
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let ended = site.end(signal);
        assert_eq!(ended.success(), signal != Signal::KILL);
        assert_eq!(site.get(), "/hello from build v1, generation 1\n");
        site.start();
        until("it is found again", || site.status("web")["state"] == "serving");
        assert_eq!(site.status("web")["generations"][0]["pids"], before["generations"][0]["pids"]);
    }
    // And it can be swapped as before.
    assert_eq!(site.deploy(0, "v2"), "web: generation 2 of build v2 serves\n");
}

#[test]
fn a_host_that_left_the_configuration_runs_on_and_is_said() {
    let mut site = Site::new();
    site.deploy(0, "v1");
    site.end(Signal::TERM);
    let file = site.path("activator.toml");
    let whole = fs::read_to_string(&file).unwrap();
    let (before, rest) = whole.split_once("[host.web]").unwrap();
    let (_web, queue) = rest.split_once("[host.queue]").unwrap();
    fs::write(&file, format!("{before}[host.queue]{queue}")).unwrap();
    site.start();
    let said = "it is not in the configuration any more, and what runs of it runs on";
    until("it is said", || site.log().contains(said));
    assert_eq!(site.log().matches(said).count(), 1, "{}", site.log());
    assert_eq!(site.get(), "/hello from build v1, generation 1\n");
    site.end(Signal::TERM);
    fs::write(&file, whole).unwrap();
    site.start();
    site.exits(0, &["stop", "web"]);
}

#[test]
fn sighup_changes_nothing_and_says_what_to_do() {
    let site = Site::new();
    site.deploy(0, "v1");
    site.signal(Signal::HUP);
    until("it is said", || site.log().contains("SIGHUP: the configuration is read at the start"));
    site.exits(0, &["status", "web"]);
}

#[test]
fn the_service_manager_is_told() {
    let mut site = Site::configured("");
    let path = site.path("notify");
    let notify = UnixDatagram::bind(&path).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    site.daemon = Some(site.daemon_command().env("NOTIFY_SOCKET", &path).spawn().unwrap());
    let mut buffer = [0; 64];
    let length = notify.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1");
    site.exits(0, &["status"]);
    // What is started does not inherit it.
    site.deploy(0, "v1");
    let pid = site.status("web")["generations"][0]["pids"][0].to_string();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"));
    site.signal(Signal::TERM);
    let length = notify.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"STOPPING=1");
    assert!(site.daemon.take().unwrap().wait().unwrap().success());
}

#[test]
fn a_socket_for_commands_that_check_accepts_is_bound() {
    for (length, exit) in [(99, 0), (100, 2)] {
        let mut site = Site::configured("");
        let file = site.path("activator.toml");
        let text = fs::read_to_string(&file).unwrap();
        let start = site.path("").as_os_str().len();
        let socket = site.path(&"s".repeat(length - start));
        assert_eq!(socket.as_os_str().len(), length);
        let more = format!("cgroup = \"none\"\nsocket = {socket:?}\n");
        fs::write(&file, text.replacen("cgroup = \"none\"\n", &more, 1)).unwrap();
        if exit == 0 {
            site.exits(0, &["check", "activator.toml"]);
            site.start();
            assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
        } else {
            let said = site.complains(exit, &["check", "activator.toml"]);
            assert!(said.contains("a shorter `socket`"), "{said}");
        }
    }
}

#[test]
fn a_pipe_is_not_staged_and_keeps_no_daemon_from_its_end() {
    let mut site = Site::new();
    let pipe = site.path("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o700);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let said = site.complains(2, &["deploy", "web", pipe.to_str().unwrap()]);
    assert!(said.contains("neither a file, a directory nor a symlink"), "{said}");
    // Nor is one waited for where a manifest belongs.
    fs::create_dir_all(site.path("web/v1")).unwrap();
    fs::rename(&pipe, site.path("web/v1/tickmark.toml")).unwrap();
    let said = site.exits(5, &["swap", "web", "v1"]);
    assert!(said.contains("no regular file"), "{said}");
    assert!(site.end(Signal::TERM).success());
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success_and_a_reader_that_had_enough_is() {
    let site = Site::new();
    site.deploy(0, "v1");
    let out_to = |stdout: Stdio, arguments: &[&str]| {
        let mut command = site.command();
        command.args(arguments).stdout(stdout).stderr(Stdio::piped());
        let out = command.spawn().unwrap().wait_with_output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    let questions = [
        &["status"][..],
        &["status", "--json"],
        &["builds", "web"],
        &["logs", "web"],
        &["check", "activator.toml"],
    ];
    for arguments in questions {
        let (exit, said) = out_to(full(), arguments);
        assert_eq!(exit, Some(4), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to stdout: No space left"), "{said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(out_to(writer.into(), arguments), (Some(0), String::new()), "{arguments:?}");
    }
    // What was done is done, and the status says so.
    let (exit, said) = out_to(full(), &["restart", "web"]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("cannot write to stdout"), "{said}");
    assert_eq!(site.status("web")["serves"], 2);
}

#[test]
fn a_log_that_is_followed_may_be_cut_off_removed_and_be_no_file() {
    let site = Site::new();
    let log = site.path("state/hosts/web/output.log");
    let mut follows =
        site.command().args(["logs", "web", "-f"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    fs::write(&log, "a first line that is long\n").unwrap();
    assert_eq!(next(), "a first line that is long");
    fs::write(&log, "cut off\n").unwrap();
    assert_eq!(next(), "cut off");
    fs::remove_file(&log).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o700);
    rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let said = site.complains(1, &["logs", "web"]);
    assert!(said.contains("it is no regular file"), "{said}");
    let fresh = log.with_extension("new");
    fs::write(&fresh, "made anew\n").unwrap();
    fs::rename(&fresh, &log).unwrap();
    assert_eq!(next(), "made anew");
    signal_to(&follows, Signal::TERM);
    follows.wait().unwrap();
}

#[test]
fn a_host_that_is_stopped_leaves_no_marks_directory() {
    let mut site = Site::new();
    site.deploy(0, "v1");
    let pid = site.status("web")["generations"][0]["pids"][0].to_string();
    let marks = PathBuf::from(variables(&pid).remove("TICKMARK_DIR").unwrap());
    let of_this_activator = marks.parent().unwrap().to_owned();
    assert!(marks.is_dir());
    // Another daemon finds it there.
    site.end(Signal::KILL);
    site.start();
    assert!(marks.is_dir());
    site.deploy(0, "v2");
    until("the first launch is forgotten", || !marks.exists());
    assert!(of_this_activator.is_dir(), "one runs");
    site.exits(0, &["stop", "web"]);
    assert!(!of_this_activator.exists(), "none does");
    site.deploy(0, "v3");
    assert!(of_this_activator.is_dir());
}

/// What a process was started with.
fn variables(pid: &str) -> BTreeMap<String, String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let pairs = environment.split_terminator('\0').map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_launch_inherits_nothing_of_the_service_managers_and_has_both_names_of_its_marks() {
    let mut site = Site::configured("");
    let mut daemon = site.daemon_command();
    daemon.env("NOTIFY_SOCKET", site.path("nobody")).env("HELD", "1");
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"] {
        daemon.env(name, "1");
    }
    site.daemon = Some(daemon.spawn().unwrap());
    until("the daemon answers", || site.run(&["status"]).status.success());
    site.deploy(0, "v1");
    let pid = site.status("web")["generations"][0]["pids"][0].to_string();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let names: Vec<&str> =
        environment.split_terminator('\0').map(|pair| pair.split_once('=').unwrap().0).collect();
    for name in &names {
        assert!(!name.starts_with("LISTEN_") && *name != "NOTIFY_SOCKET", "{names:?}");
    }
    assert!(!names.contains(&"HELD"), "nothing else either: {names:?}");
    let value = |name: &str| {
        let pairs = environment.split_terminator('\0').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(found, _)| *found == name).map(|(_, value)| value).collect::<Vec<_>>()
    };
    assert_eq!(value("KICKS_LIVENESS_DIR").len(), 1);
    assert_eq!(value("KICKS_LIVENESS_DIR"), value("TICKMARK_DIR"));
}
