//! A place of a test's own: state, builds and sockets in one directory on a tmpfs, and an activator
//! on them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;
use tickmark_activator::backend::Backend;
use tickmark_activator::config::Config;
use tickmark_activator::state::HostDirectory;
use tickmark_activator::{Activator, Answer, BuildName, Hooks, HostName, Options};

#[path = "../../../worker/tests/skipping/mod.rs"]
mod skipping;

pub(crate) use skipping::skip;

/// A host's lines that give it a sidecar, which leaves a note of what it is.
pub(crate) const SIDECAR: &str =
    "sidecar = { args = [\"sidecar\"] }\nrestart = { min = \"20ms\" }\n";

/// What a busy machine may add to a step.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(crate) fn host() -> HostName {
    HostName::new("orders").unwrap()
}

pub(crate) fn build(name: &str) -> BuildName {
    BuildName::new(name).unwrap()
}

pub(crate) struct Site {
    directory: TempDir,
    pub(crate) cgroup: String,
    /// More lines of the host's table.
    pub(crate) host: String,
    pub(crate) socket: bool,
    /// So long that no generation's control path would fit.
    pub(crate) long_socket: bool,
}

impl Site {
    /// Uncontained.
    pub(crate) fn new() -> Site {
        let shared_memory = Path::new("/dev/shm");
        let directory = if shared_memory.is_dir() {
            tempfile::Builder::new().prefix("tm").tempdir_in(shared_memory)
        } else {
            tempfile::tempdir()
        };
        Site {
            directory: directory.unwrap(),
            cgroup: "none".to_owned(),
            host: String::new(),
            socket: true,
            long_socket: false,
        }
    }

    /// In a cgroup of its own; `None`, and one line, where there can be none.
    pub(crate) fn contained() -> Option<Site> {
        let mut site = Site::new();
        let parent = unified().ok_or("no cgroup v2 is mounted");
        let made = parent.and_then(|parent| {
            let name = site.path().file_name().unwrap().to_str().unwrap().to_owned();
            let path = parent.join(format!("tickmark-test-{name}"));
            fs::create_dir(&path).map_err(|_| "no cgroup can be made: it needs root")?;
            if path.join("cgroup.kill").exists() {
                return Ok(path);
            }
            let _empty = fs::remove_dir(&path);
            Err("this kernel has no cgroup.kill")
        });
        match made {
            Ok(path) => {
                site.cgroup = path.to_str().unwrap().to_owned();
                Some(site)
            }
            Err(reason) => {
                skip("a contained site", reason);
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        if !self.long_socket {
            return self.path().join("s");
        }
        let longest = 107 - ".18446744073709551615.control".len();
        let directory = self.path().as_os_str().len() + 1;
        self.path().join("s".repeat(longest + 1 - directory))
    }

    pub(crate) fn builds(&self) -> PathBuf {
        self.path().join("builds")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// Stages a build that runs this program as the service, with a fault or none.
    pub(crate) fn stage(&self, name: &str, fault: &str) {
        let this = std::env::current_exe().unwrap();
        // Its first act, where it has to leave a trace.
        let trace = match fault {
            "trace" => format!(": >{}\n", self.path().join("trace").display()),
            _ => String::new(),
        };
        let script =
            format!("#!/bin/sh\n{trace}FAULT={fault} exec {} service $1\n", this.display());
        self.stage_script(name, &script);
    }

    pub(crate) fn stage_script(&self, name: &str, script: &str) {
        fs::create_dir_all(self.builds()).unwrap();
        let path = self.builds().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Points the live link at a build, as an administrator may.
    pub(crate) fn point_live_at(&self, name: &str) {
        let directory = HostDirectory::open(&self.state(), &host()).unwrap();
        directory.repoint_live(&self.builds(), &build(name)).unwrap();
    }

    /// What the last sidecar said of itself: its generation and build, and its number.
    pub(crate) fn sidecar(&self) -> Option<(String, u32)> {
        let note = fs::read_to_string(self.path().join("sidecar")).ok()?;
        let (whose, pid) = note.rsplit_once(' ')?;
        Some((whose.to_owned(), pid.parse().unwrap()))
    }

    /// Until a sidecar of this generation and build runs that is not `not`; its number.
    pub(crate) async fn until_sidecar(&self, whose: &str, not: Option<u32>) -> u32 {
        let mut runs = None;
        until("the sidecar runs", || {
            runs = self.sidecar().filter(|(of, pid)| of == whose && Some(*pid) != not);
            runs.is_some()
        })
        .await;
        runs.unwrap().1
    }

    pub(crate) fn config(&self) -> Config {
        let text = self.config_text();
        Config::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    pub(crate) fn config_text(&self) -> String {
        let socket = match self.socket {
            true => format!("socket = {:?}\n", self.socket()),
            false => String::new(),
        };
        format!(
            "[activator]\nstate = {:?}\ncgroup = {:?}\n\n[host.orders]\n{socket}builds = {:?}\n{}{}",
            self.state(),
            self.cgroup,
            self.builds(),
            if self.host.contains("settle") { "" } else { "settle = \"20ms\"\n" },
            self.host,
        )
    }

    pub(crate) async fn open(&self) -> Activator {
        Activator::open(self.config()).await.unwrap()
    }

    pub(crate) async fn open_wrapped(
        &self,
        wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend> + Send + 'static,
    ) -> Activator {
        let hooks = Hooks { backend: Some(Box::new(wrap)), ..Hooks::default() };
        self.open_with(hooks).await
    }

    pub(crate) async fn open_with(&self, hooks: Hooks) -> Activator {
        Activator::open_with(self.config(), hooks).await.unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.cgroup != "none" {
            let path = PathBuf::from(&self.cgroup);
            let _sent = fs::write(path.join("cgroup.kill"), "1");
            for _ in 0..100 {
                remove_tree(&path);
                if !path.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        } else {
            // A test that failed leaves its processes.
            for pid in alive(self) {
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
        }
    }
}

fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _busy = fs::remove_dir(path);
}

/// Where cgroup v2 is mounted.
fn unified() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts
        .lines()
        .find(|line| line.contains(" - cgroup2 "))
        .and_then(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
}

/// Within `seconds`.
pub(crate) fn within(seconds: u64) -> Options {
    Options { deadline: Some(Duration::from_secs(seconds)), ..Options::default() }
}

pub(crate) async fn swap(activator: &Activator, name: &str) -> Answer {
    activator.swap(&host(), build(name), within(20)).await.unwrap()
}

/// Until the host is in this state.
pub(crate) async fn until_state(activator: &Activator, state: &str) {
    let begun = Instant::now();
    loop {
        let status = activator.status(&host()).await.unwrap();
        if status.state == state {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "never {state}: {status:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill_process(number(pid), signal).unwrap();
}

/// As [`kill`], and it has ended, also where nobody waits for it.
pub(crate) fn end(pid: u32) {
    let pidfd = pidfd_open(number(pid), PidfdFlags::empty()).unwrap();
    kill(pid);
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
}

fn number(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

/// Waits for a condition, and says what was awaited where it does not come.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The processes that run for a site, by the marks directories in their environments.
pub(crate) fn alive(site: &Site) -> Vec<u32> {
    let needle = format!("{}/", site.builds().display());
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(link) = fs::read_link(entry.path().join("cwd")) else { continue };
        if format!("{}/", link.display()).starts_with(&needle) {
            pids.push(pid);
        }
    }
    pids
}
