//! Where the cases work: a temporary directory with a copy of the probe that any user may run, and
//! what this machine can do.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use tickmark::Encoding;
use tickmark::procfs;
use tickmark::protocol::{Generation, State};

use crate::Need;
use crate::marks::Marks;

/// Whom files of mode 0600 are closed to.
const NOBODY: u32 = 65534;

pub(crate) struct Site {
    directory: TempDir,
    made: AtomicU32,
    /// What a worker in this container writes into its records.
    pub(crate) generation: Option<Generation>,
    strace: bool,
}

impl Site {
    /// Copies the probe: the build that is tested is replaced while others work, and its directory
    /// may be closed to the user that a case runs it as.
    ///
    /// # Errors
    /// Why nothing can be tested here.
    pub(crate) fn open() -> Result<Self, String> {
        let named = env::var_os("TICKMARK_PROBE").ok_or("TICKMARK_PROBE names no static build")?;
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(named);
        if !built.is_file() {
            return Err(format!("TICKMARK_PROBE names no static build: {}", built.display()));
        }
        let inspection = procfs::inspect(Encoding::Binary, false, None);
        if inspection.topology.state == State::Unsafe {
            return Err(format!("PID 1 is not this container's: {}", inspection.topology.detail));
        }
        let failed = |error: std::io::Error| format!("no place to work in: {error}");
        let directory =
            tempfile::Builder::new().prefix("tickmark-probe.").tempdir().map_err(failed)?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).map_err(failed)?;
        let probe = directory.path().join("tickmark-probe");
        fs::copy(&built, &probe).map_err(failed)?;
        fs::set_permissions(&probe, Permissions::from_mode(0o755)).map_err(failed)?;
        let strace = Command::new("strace")
            .args(["-o", "/dev/null"])
            .arg(&probe)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success());
        let made = AtomicU32::new(0);
        Ok(Self { directory, made, generation: inspection.generation, strace })
    }

    /// Why a case that needs this cannot run here.
    pub(crate) fn missing(&self, need: Need) -> Option<String> {
        let (there, reason) = match need {
            Need::Nothing => (true, ""),
            Need::Root => (is_root(), "needs root"),
            Need::Generation => {
                (self.generation.is_some(), "needs a container that has a generation")
            }
            Need::Pair => (
                self.text_generation().is_some(),
                "needs PID 1's start time and the mount namespace's inode",
            ),
            Need::Strace => (self.strace, "needs strace, and leave to trace"),
            Need::Fuse => (
                is_root() && may_mount() && Path::new("/dev/fuse").exists(),
                "needs root, leave to mount and /dev/fuse, for a file system that hangs",
            ),
        };
        (!there).then(|| reason.to_owned())
    }

    /// What a worker that writes text puts into its records.
    pub(crate) fn text_generation(&self) -> Option<Generation> {
        procfs::inspect(Encoding::Text, false, None)
            .generation
            .filter(|generation| generation.formula().is_some())
    }

    /// A name in the working directory that nobody else has.
    pub(crate) fn fresh(&self, name: &OsStr) -> PathBuf {
        let mut unique = OsString::from(self.made.fetch_add(1, Ordering::Relaxed).to_string());
        unique.push("-");
        unique.push(name);
        self.directory.path().join(unique)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.directory.path().join("tickmark-probe")
    }

    /// The probe with nothing in its environment and no arguments.
    pub(crate) fn bare_probe(&self) -> Command {
        let mut command = Command::new(self.program());
        command.env_clear().stdin(Stdio::null());
        command
    }

    /// The probe of one marks directory.
    pub(crate) fn probe(&self, marks: &Marks) -> Command {
        let mut command = self.bare_probe();
        command.arg("--dir").arg(marks.path());
        command
    }

    /// The same as a user that permissions hold for: root passes by them.
    pub(crate) fn unprivileged_probe(&self, marks: &Marks) -> Command {
        let mut command = self.probe(marks);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Root of a container may lack CAP_SYS_ADMIN, capability 21.
fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << 21 != 0)
}
