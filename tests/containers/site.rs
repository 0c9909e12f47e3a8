//! Where the containers live: one temporary directory with the root file system, `runc`'s own
//! state and the bundles, in a mount namespace of the tests' own, all gone at the end.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// A guest hides /tmp and /run, and has this read-only.
const VISIBLE_TO_A_GUEST: &str = "/var/tmp";

const SITE: &str = "TICKMARK_CONTAINER_SITE";

/// Names of the binaries in the container's root.
pub(crate) const PROBE: &str = "/tickmark-probe";
pub(crate) const PROBE_HIDE: &str = "/tickmark-probe-hide";
pub(crate) const WORKER: &str = "/tickmark-demo-worker";
pub(crate) const WORKER_HIDE: &str = "/tickmark-demo-worker-hide";

/// The static builds under test, by the names they get in the root file system.
pub(crate) struct Binaries {
    pub(crate) found: Vec<(&'static str, &'static str, PathBuf)>,
}

impl Binaries {
    pub(crate) fn from_environment() -> Self {
        let found = [
            (PROBE, "TICKMARK_PROBE", "dist/tickmark-probe-x86_64"),
            (WORKER, "TICKMARK_DEMO_WORKER", "dist/tickmark-demo-worker"),
            (PROBE_HIDE, "TICKMARK_PROBE_HIDE", "dist/tickmark-probe-hide"),
            (WORKER_HIDE, "TICKMARK_DEMO_WORKER_HIDE", "dist/tickmark-demo-worker-hide"),
        ];
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = found.map(|(name, variable, default)| {
            let path = match env::var_os(variable) {
                Some(path) => repository.join(path),
                None => repository.join(default),
            };
            (name, variable, path)
        });
        Self { found: found.into() }
    }

    fn first_missing(&self, names: &[&str]) -> Option<String> {
        self.found
            .iter()
            .filter(|(name, ..)| names.contains(name))
            .find(|(.., path)| !path.is_file())
            .map(|(_, variable, path)| {
                format!("{variable} names no static build: {}", path.display())
            })
    }

    pub(crate) fn missing(&self) -> Option<String> {
        self.first_missing(&[PROBE, WORKER])
    }

    /// Why the cases that hide evidence cannot run.
    pub(crate) fn missing_hiding(&self) -> Option<String> {
        self.first_missing(&[PROBE_HIDE, WORKER_HIDE])
    }
}

/// Why no container can be made here.
pub(crate) fn missing_means() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    for (tool, argument) in [("runc", "--version"), ("unshare", "--version")] {
        if Command::new(tool).arg(argument).output().is_err() {
            return Some(format!("needs {tool}"));
        }
    }
    None
}

pub(crate) fn in_own_mount_namespace() -> bool {
    env::var_os(SITE).is_some()
}

/// The directory that this run's parent deletes at its end.
pub(crate) fn directory() -> io::Result<PathBuf> {
    env::var_os(SITE)
        .map(PathBuf::from)
        .ok_or_else(|| io::Error::other(format!("{SITE} is not set")))
}

/// Runs this program again with mounts of its own, so that none outlives it, and stays behind
/// to delete what it may leave: this process is the one that an interrupt does not end.
pub(crate) fn run_again_in_own_mount_namespace() -> ExitCode {
    match run_again() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("container tests: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run_again() -> io::Result<ExitCode> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let directory = tempfile::Builder::new()
        .prefix("tickmark-containers.")
        .tempdir_in(if in_guest() { "/tmp" } else { VISIBLE_TO_A_GUEST })?;
    let mut tests = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(SITE, directory.path())
        .spawn()?;
    let status = loop {
        if let Some(status) = tests.try_wait()? {
            break status;
        }
        if interrupted.swap(false, Ordering::Relaxed) {
            tests.kill()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    delete_containers(&directory.path().join("runc"));
    directory.close()?;
    Ok(match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => ExitCode::from(code),
        None => ExitCode::FAILURE,
    })
}

fn delete_containers(state: &Path) {
    for left in fs::read_dir(state).into_iter().flatten().flatten() {
        let deleted = Command::new("runc")
            .arg("--root")
            .arg(state)
            .args(["delete", "--force"])
            .arg(left.file_name())
            .status();
        if !deleted.is_ok_and(|status| status.success()) {
            eprintln!("container tests: {:?} is left", left.path());
        }
    }
}

fn has_unique_mount_ids() -> bool {
    const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
    let wanted = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
    statx(CWD, "/", AtFlags::empty(), wanted)
        .is_ok_and(|found| found.stx_mask & STATX_MNT_ID_UNIQUE != 0)
}

/// Set inside the guest of an old kernel, where all is slower and there is one processor.
pub(crate) const GUEST: &str = "TICKMARK_OLD_KERNEL_GUEST";

pub(crate) fn in_guest() -> bool {
    env::var_os(GUEST).is_some()
}

/// Long enough for a few ticks of a second each on a busy machine.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(if in_guest() { 240 } else { 120 })
}

/// The directory of this run.
pub(crate) struct Site {
    directory: PathBuf,
    /// A cgroup v2 is what this kernel's containers see.
    pub(crate) unified_cgroup: bool,
    /// This kernel has `STATX_MNT_ID_UNIQUE`: Linux 6.8 and later.
    pub(crate) unique_mount_ids: bool,
    next: AtomicU32,
}

impl Site {
    pub(crate) fn open(binaries: &Binaries) -> io::Result<Self> {
        let directory = directory()?;
        let site = Self {
            directory,
            unified_cgroup: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            unique_mount_ids: has_unique_mount_ids(),
            next: AtomicU32::new(0),
        };
        fs::create_dir(site.rootfs())?;
        for (name, _, path) in &binaries.found {
            if path.is_file() {
                fs::copy(path, site.in_rootfs(name))?;
            }
        }
        Ok(site)
    }

    pub(crate) fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    pub(crate) fn in_rootfs(&self, name: &str) -> PathBuf {
        self.rootfs().join(name.trim_start_matches('/'))
    }

    pub(crate) fn runc_state(&self) -> PathBuf {
        self.directory.join("runc")
    }

    /// A new directory for a bundle or for marks, and its name, which no other container of
    /// this machine has: cgroups are named after it.
    pub(crate) fn new_directory(&self, what: &str) -> io::Result<(String, PathBuf)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("tickmark-{}-{number}-{what}", std::process::id());
        let path = self.directory.join(&name);
        fs::create_dir(&path)?;
        Ok((name, path))
    }
}
