//! Where a test's cgroups and files are: a delegation of its own below the root of the cgroup v2
//! that is mounted here, killed and removed at its end.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tickmark_activator::cgroup::{Delegation, HostCgroup, Leaf, Setting};
use tickmark_activator::process::Process;
use tickmark_activator::stub::{self, Launch};
use tickmark_activator::{GenerationNumber, HostName, LeafName};

const OWN_MOUNTS: &str = "TICKMARK_CONTAINMENT_MOUNTS";

/// Why no cgroup can be made here.
pub(crate) fn missing_means() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    if unified_root().is_none() {
        return Some("needs a cgroup v2 that is mounted".to_owned());
    }
    if Command::new("unshare").arg("--version").output().is_err() {
        return Some("needs unshare".to_owned());
    }
    None
}

pub(crate) fn in_own_mount_namespace() -> bool {
    env::var_os(OWN_MOUNTS).is_some()
}

/// Runs this program again so that what it mounts is seen by nobody else.
pub(crate) fn run_again_in_own_mount_namespace() -> ExitCode {
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(env::current_exe().expect("this program has a path"))
        .args(env::args_os().skip(1))
        .env(OWN_MOUNTS, "1")
        .status()
        .expect("unshare runs");
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn unified_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| point.into())
    })
}

/// Long enough on a busy machine; a test that waits this long fails.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// How often a thing is done: the guest takes fifty times as long to start a process.
pub(crate) fn rounds(here: u32) -> u32 {
    if crate::guest::is_this() { here.div_ceil(20) } else { here }
}

pub(crate) fn generation(number: u64) -> LeafName {
    LeafName::Generation(GenerationNumber::new(number).expect("not zero"), 0)
}

/// Waits until `condition`, looking often.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = soon();
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Files of a test.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn log(&self) -> File {
        OpenOptions::new().append(true).create(true).open(self.path("log")).expect("a log")
    }

    /// What was written to the log.
    pub(crate) fn logged(&self) -> String {
        fs::read_to_string(self.path("log")).expect("the log reads")
    }

    pub(crate) fn launch(&self, program: impl Into<PathBuf>, arguments: &[&str]) -> Launch {
        Launch {
            program: program.into(),
            arguments: arguments.iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: "/".into(),
            output: self.log().into(),
        }
    }

    /// This very program, as one of the workers in `worker`.
    pub(crate) fn worker(&self, what: &str, arguments: &[&str]) -> Launch {
        let program = env::current_exe().expect("this program has a path");
        self.launch(program, &[&["worker", what], arguments].concat())
    }
}

/// A delegation of its own.
pub(crate) struct Site {
    pub(crate) files: Files,
    pub(crate) delegation: Delegation,
    pub(crate) name: HostName,
    pub(crate) host: HostCgroup,
}

impl Site {
    pub(crate) fn open() -> Site {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = unified_root().expect("checked before");
        let path = root.join(format!("tickmark-test-{}-{number}", std::process::id()));
        let delegation = Delegation::find(&Setting::Path(path))
            .expect("a delegation is made")
            .expect("a path is no `none`");
        let name = HostName::new("orders").expect("a good name");
        let host = delegation.host(&name).expect("a host is made");
        Site { files: Files::new(), delegation, name, host }
    }

    /// Whether this cgroup v2 has memory and pids: where version 1 has them, it has not.
    pub(crate) fn has_controllers(&self) -> bool {
        let text = fs::read_to_string(self.delegation.path().join("cgroup.controllers"))
            .expect("a cgroup has its controllers");
        ["memory", "pids"].iter().all(|wanted| text.split_whitespace().any(|word| word == *wanted))
    }

    /// The directory of a leaf, for what only somebody else would do to it.
    pub(crate) fn leaf_path(&self, name: LeafName) -> PathBuf {
        self.host_path().join(name.to_string())
    }

    pub(crate) fn host_path(&self) -> PathBuf {
        self.delegation.path().join(format!("host-{}", self.name))
    }

    pub(crate) fn fresh(&self, number: u64) -> Leaf {
        self.host.fresh_leaf(generation(number)).expect("a fresh leaf")
    }

    /// Runs a worker in `leaf`, and returns once it has said that it is there.
    pub(crate) fn run(&self, leaf: &Leaf, what: &str, arguments: &[&str]) -> Process {
        let launch = self.files.worker(what, arguments);
        let already = self.files.logged_lines();
        let waiting = stub::spawn(&launch, Some(leaf), soon()).expect("a stub");
        let process = waiting.go(soon()).expect("it runs");
        until("the worker says that it runs", || self.files.logged_lines() > already);
        process
    }
}

impl Files {
    fn logged_lines(&self) -> usize {
        fs::read_to_string(self.path("log")).unwrap_or_default().lines().count()
    }
}

/// Not by the code under test: what it cannot kill or remove must not stay.
impl Drop for Site {
    fn drop(&mut self) {
        let path = self.delegation.path();
        let _thawed = fs::write(path.join("cgroup.freeze"), "0");
        let _killed = fs::write(path.join("cgroup.kill"), "1");
        let deadline = soon();
        while remove(path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        if path.exists() && !std::thread::panicking() {
            panic!("{} stays", path.display());
        }
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _tried_again = remove(&entry.path());
        }
    }
    fs::remove_dir(path)
}
