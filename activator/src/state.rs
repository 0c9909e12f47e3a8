//! What survives the activator: the lease on the state directory, and a file for each host that is
//! replaced atomically. What ran is found again by it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::cgroup::Limit;
use crate::error::{Doing as _, Error, Kind};
use crate::generation::Gen;
use crate::health::Launched;
use crate::name::{BuildName, GenerationNumber, HostName};
use crate::process::Identity;
use crate::staged::Staged;
use crate::swap::Record;

/// The version of the state file; another one is refused by name.
const FORMAT: u32 = 1;

/// How long a lease that is held is waited for. One that was killed leaves it at once; a child of
/// it that has not come to its exec may hold it a moment longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The lock on the state directory: one activator at a time. It ends with the process.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    /// Holds the lock while it is open.
    directory: Mutex<Option<File>>,
    device: u64,
    inode: u64,
    given_up: AtomicBool,
}

impl Lease {
    /// Makes the directory if it is absent, and takes the lock.
    ///
    /// # Errors
    /// [`Error::is_lease_lost`] where another activator has it.
    pub fn take(path: &Path) -> Result<Lease, Error> {
        let doing = || format!("open the state directory {}", path.display());
        DirBuilder::new().recursive(true).mode(0o755).create(path).doing(doing)?;
        let directory = File::open(path).doing(doing)?;
        let patience = Instant::now() + PATIENCE;
        loop {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < patience => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(Error::new(
                        Kind::LeaseLost,
                        format!(
                            "another activator has the state directory {}: stop it, or use another `state`",
                            path.display()
                        ),
                    ));
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).doing(|| format!("lock {}", path.display())),
            }
        }
        let stat = directory.metadata().doing(doing)?;
        let lease = Lease {
            path: path.to_owned(),
            directory: Mutex::new(Some(directory)),
            device: stat.dev(),
            inode: stat.ino(),
            given_up: AtomicBool::new(false),
        };
        lease.check()?;
        Ok(lease)
    }

    /// The state directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the lock still is on the directory at this path: one that was moved away, removed or
    /// mounted over is another activator's to take.
    ///
    /// # Errors
    /// [`Error::is_lease_lost`].
    pub fn check(&self) -> Result<(), Error> {
        let found = fs::metadata(&self.path);
        let same = found.is_ok_and(|stat| stat.dev() == self.device && stat.ino() == self.inode);
        if same && !self.given_up.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Error::new(
            Kind::LeaseLost,
            format!(
                "the lease on {} is lost: the directory is not the one that was locked",
                self.path.display()
            ),
        ))
    }

    /// Counts as lost from now on, and lets another activator take it. What may still start must
    /// have been revoked before.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        drop(self.directory.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// One process that was started, or that may have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    /// Its slot.
    pub slot: u32,
    /// Who it is; written before the gate is asked.
    pub identity: Identity,
    /// Its token and marks.
    pub launched: Launched,
    /// The pending record: it may have run. Written after the gate was asked the first time.
    pub may_have_run: bool,
}

/// A generation that was started, or that may have been.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RanGeneration {
    /// With its sockets, as they were laid out when it started.
    pub generation: Gen,
    /// Its processes, by slot.
    pub slots: Vec<Ran>,
}

/// What is known of one host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostState {
    format: u32,
    /// The state machine's own record.
    pub swap: Record<Staged>,
    /// What ran of its generations.
    pub ran: BTreeMap<GenerationNumber, RanGeneration>,
    /// The limit that the host's parent cgroup was last given.
    pub parent: Option<Limit>,
    /// The number of the last request.
    pub attempt: u64,
    /// The build the host is pinned to.
    pub hold: Option<BuildName>,
    /// Why there are no launches.
    pub fence: Option<String>,
    /// Builds that have served, the newest last.
    pub served: VecDeque<BuildName>,
    /// Builds whose start failed, and why: they are not tried again unasked.
    pub failed: BTreeMap<BuildName, String>,
    /// The sidecar's process, and whose it is.
    pub sidecar: Option<(GenerationNumber, Ran)>,
}

impl Default for HostState {
    fn default() -> HostState {
        HostState {
            format: FORMAT,
            swap: Record::default(),
            ran: BTreeMap::new(),
            parent: None,
            attempt: 0,
            hold: None,
            fence: None,
            served: VecDeque::new(),
            failed: BTreeMap::new(),
            sidecar: None,
        }
    }
}

/// How many builds that have served are remembered.
const SERVED: usize = 16;

impl HostState {
    /// `build` serves now.
    pub fn has_served(&mut self, build: &BuildName) {
        if self.served.back() != Some(build) {
            self.served.push_back(build.clone());
        }
        while self.served.len() > SERVED {
            self.served.pop_front();
        }
        self.failed.remove(build);
    }

    /// The build that served before `current` did.
    #[must_use]
    pub fn before(&self, current: Option<&BuildName>) -> Option<&BuildName> {
        self.served.iter().rev().find(|build| Some(*build) != current)
    }
}

/// A host's directory in the state directory: its state file, its log, its live link.
#[derive(Debug, Clone)]
pub struct HostDirectory {
    path: PathBuf,
}

impl HostDirectory {
    /// Makes it where it is absent.
    ///
    /// # Errors
    /// Names the directory.
    pub fn open(state: &Path, host: &HostName) -> Result<HostDirectory, Error> {
        let path = state.join("hosts").join(host.as_str());
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&path)
            .doing(|| format!("make {}", path.display()))?;
        Ok(HostDirectory { path })
    }

    /// The hosts that have a directory, in order.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn list(state: &Path) -> Result<Vec<HostName>, Error> {
        let path = state.join("hosts");
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).doing(|| format!("read {}", path.display())),
        };
        let mut hosts: Vec<HostName> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        hosts.sort();
        Ok(hosts)
    }

    /// What its processes print.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path.join("output.log")
    }

    /// The link that names the host's current build.
    #[must_use]
    pub fn live(&self) -> PathBuf {
        self.path.join("live")
    }

    /// The build that the live link names; `None` where there is none.
    ///
    /// # Errors
    /// It cannot be read, or names nothing that a build can be.
    pub fn live_build(&self) -> Result<Option<BuildName>, Error> {
        let link = self.live();
        let target = match fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).doing(|| format!("read the live link {}", link.display()));
            }
        };
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        BuildName::new(name).map(Some)
    }

    /// Points the live link at a build, atomically.
    ///
    /// # Errors
    /// Names the link.
    pub fn repoint_live(&self, builds: &Path, build: &BuildName) -> Result<(), Error> {
        let doing = || format!("point the live link {} at {build}", self.live().display());
        let fresh = self.path.join(".live.new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).doing(doing),
            _ => {}
        }
        std::os::unix::fs::symlink(builds.join(build.as_str()), &fresh).doing(doing)?;
        fs::rename(&fresh, self.live()).doing(doing)
    }

    fn file(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// The state as it was last saved; a host that has none is new.
    ///
    /// # Errors
    /// A file that cannot be read, does not read as one, or is a newer activator's.
    pub fn load(&self) -> Result<HostState, Error> {
        let path = self.file();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(HostState::default()),
            Err(error) => return Err(error).doing(|| format!("read {}", path.display())),
        };
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        if let Ok(Format { format }) = serde_json::from_slice(&bytes)
            && format != FORMAT
        {
            return Err(Error::new(
                Kind::Io,
                format!(
                    "{} has format {format}, and this activator knows {FORMAT}: run the one that wrote it",
                    path.display()
                ),
            ));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::because(
                Kind::Io,
                format!(
                    "{} does not read as a state file: move it away, and stop by hand what it names",
                    path.display()
                ),
                error,
            )
        })
    }

    /// Replaces the state file: a reader and a crash find the old one or the new one, whole. It
    /// needs no more of the disk than it has, where [`HostDirectory::keep_spare`] was done before.
    ///
    /// # Errors
    /// [`Error::is_lease_lost`], or what the file system gives; the old file is as it was.
    pub fn save(&self, lease: &Lease, state: &HostState) -> Result<(), Error> {
        lease.check()?;
        let path = self.file();
        let doing = || format!("write {}", path.display());
        let bytes = serde_json::to_vec(state).doing(doing)?;
        let spare = self.spare();
        fill(&spare, &bytes, room(bytes.len())).doing(doing)?;
        // The old file is the spare of the next save.
        match renameat_with(CWD, &spare, CWD, &path, RenameFlags::EXCHANGE) {
            // There is none, or the file system cannot exchange two.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
                fs::rename(&spare, &path).doing(doing)?;
            }
            exchanged => exchanged.doing(doing)?,
        }
        File::open(&self.path).and_then(|directory| directory.sync_all()).doing(doing)?;
        // What is saved is saved. Whoever needs the spare asks for it.
        let _later = self.keep_spare();
        Ok(())
    }

    /// Makes sure that there is a spare file with room for more than the state, which the next save
    /// writes over: what a start records can then be written on a disk that is full by that time.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn keep_spare(&self) -> Result<(), Error> {
        let spare = self.spare();
        let doing = || format!("keep room for the next state in {}", spare.display());
        let length = |path: &Path| fs::symlink_metadata(path).map_or(0, |found| found.len());
        let needed = length(&self.file());
        if length(&spare) < needed {
            fill(&spare, b"", needed).doing(doing)?;
        }
        Ok(())
    }

    fn spare(&self) -> PathBuf {
        self.path.join(".state.json.new")
    }
}

/// What a start may add to a state, with what is said of builds that failed meanwhile.
const SLACK: usize = 16 * 1024;

/// How long the file of a state is that has this length: in steps, so that it seldom grows.
fn room(length: usize) -> u64 {
    (length + SLACK).next_power_of_two() as u64
}

/// Writes `bytes` over what is in the file, then spaces, which JSON allows, to its end and at least to
/// `length`: nothing of it is given back to the disk.
fn fill(path: &Path, bytes: &[u8], length: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    // It names builds and paths, and is for this user alone to change.
    file.set_permissions(Permissions::from_mode(0o644))?;
    let length = length.max(file.metadata()?.len());
    file.write_all(bytes)?;
    let rest = length.saturating_sub(bytes.len() as u64);
    io::copy(&mut io::repeat(b' ').take(rest), &mut file)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_one_activators_at_a_time_and_lost_with_its_directory() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        let lease = Lease::take(&path).unwrap();
        lease.check().unwrap();
        let begun = Instant::now();
        assert!(Lease::take(&path).unwrap_err().is_lease_lost());
        assert!(begun.elapsed() >= PATIENCE);
        fs::rename(&path, parent.path().join("away")).unwrap();
        assert!(lease.check().unwrap_err().is_lease_lost());
        fs::create_dir(&path).unwrap();
        assert!(lease.check().unwrap_err().is_lease_lost(), "another directory at that path");
        let _next = Lease::take(&path).unwrap();
    }

    #[test]
    fn the_state_file_is_replaced_whole_and_not_without_the_lease() {
        let parent = tempfile::tempdir().unwrap();
        let lease = Lease::take(parent.path()).unwrap();
        let host = HostDirectory::open(parent.path(), &HostName::new("orders").unwrap()).unwrap();
        let mut state = host.load().unwrap();
        assert_eq!(state.attempt, 0);
        state.attempt = 7;
        state.has_served(&BuildName::new("1").unwrap());
        host.save(&lease, &state).unwrap();
        assert_eq!(host.load().unwrap().attempt, 7);
        lease.give_up();
        state.attempt = 8;
        assert!(host.save(&lease, &state).unwrap_err().is_lease_lost());
        assert_eq!(host.load().unwrap().attempt, 7);
        fs::write(host.file(), r#"{"format":2,"else":1}"#).unwrap();
        assert!(host.load().unwrap_err().to_string().contains("format 2"));
        fs::write(host.file(), "{").unwrap();
        assert!(host.load().is_err());
    }

    #[test]
    fn a_state_that_is_replaced_leaves_nothing_of_a_longer_one_and_keeps_its_room() {
        let parent = tempfile::tempdir().unwrap();
        let lease = Lease::take(parent.path()).unwrap();
        let host = HostDirectory::open(parent.path(), &HostName::new("orders").unwrap()).unwrap();
        let build = BuildName::new("1").unwrap();
        let mut state = HostState::default();
        let lengths = || [host.file(), host.spare()].map(|path| fs::metadata(path).unwrap().len());
        host.save(&lease, &state).unwrap();
        let [first, spare] = lengths();
        assert!(spare >= first && first as usize >= SLACK);
        state.failed.insert(build.clone(), "why ".repeat(SLACK));
        host.save(&lease, &state).unwrap();
        let [longest, spare] = lengths();
        assert!(longest > first && spare >= longest, "{longest} {spare}");
        for attempt in 1..4 {
            state.failed.clear();
            state.attempt = attempt;
            host.save(&lease, &state).unwrap();
            let found = host.load().unwrap();
            assert_eq!((found.attempt, found.failed.len()), (attempt, 0));
            assert_eq!(lengths(), [longest, longest]);
        }
        // A crash while the spare is written.
        fs::write(host.spare(), "{\"format\":").unwrap();
        assert_eq!(host.load().unwrap().attempt, 3);
        host.keep_spare().unwrap();
        assert_eq!(lengths(), [longest, longest]);
    }

    #[test]
    fn the_live_link_names_the_current_build() {
        let parent = tempfile::tempdir().unwrap();
        let host = HostDirectory::open(parent.path(), &HostName::new("orders").unwrap()).unwrap();
        assert_eq!(host.live_build().unwrap(), None);
        let [one, two] = ["1", "2"].map(|name| BuildName::new(name).unwrap());
        host.repoint_live(parent.path(), &one).unwrap();
        host.repoint_live(parent.path(), &two).unwrap();
        assert_eq!(host.live_build().unwrap(), Some(two));
    }
}
