//! Whether a generation works: the same verdict as the probe's, over a marks directory that this
//! launch alone has, and whether its socket accepts.
//!
//! Generations share mount namespace, PID 1 and cgroup root with each other, and a worker in
//! another mount namespace matches none of the activator's. So the token of the launch is compared,
//! and nothing of the activator itself.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tickmark::clock::Clocks;
use tickmark::observe::judge_with;
use tickmark::procfs::Evidence;
use tickmark::protocol::{Encoding, LaunchToken, MaxAge, Verdict};
use tickmark::settings::{Settings, Source, Sourced};

use crate::error::{Doing as _, Error};
use crate::link::accepts;

/// One launch of one process: its token, and the directory its marks go to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launched {
    /// `TICKMARK_LAUNCH`: 128 random bits in hexadecimal.
    pub token: String,
    /// `TICKMARK_DIR`: made for this launch, and empty then.
    pub marks: PathBuf,
}

/// Where the launches of one activator have their marks directories.
#[derive(Debug, Clone)]
pub struct MarksRoot {
    path: PathBuf,
}

impl MarksRoot {
    /// A directory on a tmpfs where this user has one, else in the state directory: marks on a
    /// disk work, and cost a write to it every tick. The name is the state directory's own, so that
    /// two activators never share it.
    ///
    /// # Errors
    /// Names the directory that could not be made.
    pub fn of(state: &Path) -> Result<MarksRoot, Error> {
        let stat = fs::metadata(state).doing(|| format!("look at {}", state.display()))?;
        let name = format!("tickmark-{:x}-{:x}", stat.dev(), stat.ino());
        let places = [
            rustix::process::geteuid().is_root().then(|| PathBuf::from("/run/tickmark/marks")),
            std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            Some(PathBuf::from("/dev/shm")),
        ];
        for place in places.into_iter().flatten() {
            let path = place.join(&name);
            if make_directory(&path).is_ok() && is_tmpfs(&path) && is_ours(&path) {
                return Ok(MarksRoot { path });
            }
        }
        let path = state.join("marks");
        make_directory(&path).doing(|| format!("make {}", path.display()))?;
        tracing::warn!(path = %path.display(), "no tmpfs for marks: they go to a disk");
        Ok(MarksRoot { path })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A fresh token and a fresh, empty directory named by it.
    ///
    /// # Errors
    /// The directory could not be made; one that exists is an error too.
    pub fn launch(&self) -> Result<Launched, Error> {
        let mut random = [0; 16];
        getrandom(&mut random, GetRandomFlags::empty()).doing(|| "get random bytes".to_owned())?;
        let token = u128::from_ne_bytes(random);
        let token = format!("{token:032x}");
        let marks = self.path.join(&token);
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&marks)
            .doing(|| format!("make the marks directory {}", marks.display()))?;
        Ok(Launched { token, marks })
    }

    /// Removes the directories of launches that `keep` does not name: of processes that are gone.
    pub fn retain(&self, keep: &[&Launched]) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            if !keep.iter().any(|launched| launched.marks == path) {
                let _next_time = fs::remove_dir_all(&path);
            }
        }
    }
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn is_tmpfs(path: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    statfs(path).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC))
}

/// Not a directory, or a link, that another user laid there first.
fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|stat| {
        stat.is_dir()
            && stat.uid() == rustix::process::geteuid().as_raw()
            && stat.mode() & 0o022 == 0
    })
}

impl Launched {
    /// What a process of this launch has in its environment, by which it finds its directory and
    /// says whose marks they are; the gem's name of the directory too.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, &std::ffi::OsStr); 3] {
        let marks = self.marks.as_os_str();
        [
            ("TICKMARK_LAUNCH", self.token.as_ref()),
            ("TICKMARK_DIR", marks),
            ("KICKS_LIVENESS_DIR", marks),
        ]
    }

    /// The verdict over this launch's directory. Marks of another launch or container are
    /// rejected; text, which carries no token, is judged by its freshness alone: the directory was
    /// empty at the start.
    #[must_use]
    pub fn verdict(&self, max_age: MaxAge) -> Verdict {
        let mut dispose = drop;
        let launch = LaunchToken::new(self.token.as_bytes());
        let mut evidence = Evidence::of_launch(launch, &mut dispose);
        let directory = c_string(&self.marks);
        let settings = settings(&directory, max_age, launch);
        judge_with(&settings, &mut evidence, Clocks::SYSTEM, &mut |_| {})
    }

    /// The verdict in words, as the probe would print it.
    #[must_use]
    pub fn explain(&self, verdict: &Verdict) -> String {
        verdict.line(self.marks.as_os_str().as_bytes()).to_string()
    }

    /// Removes the marks of a process that is gone.
    pub fn forget(&self) {
        match fs::remove_dir_all(&self.marks) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %self.marks.display(), %error, "cannot remove marks");
            }
            _ => {}
        }
    }
}

fn settings(directory: &CStr, max_age: MaxAge, launch: Option<LaunchToken>) -> Settings<'_> {
    fn given<T>(value: T) -> Sourced<T> {
        Sourced { value, source: Source::FLAG }
    }
    Settings {
        dir: given(directory),
        max_age: given(max_age),
        strict: given(false),
        format: given(Encoding::Binary),
        launch,
    }
}

fn c_string(path: &Path) -> CString {
    // Every path here was made by a system call, which takes no NUL.
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Why a generation is not ready yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReady {
    /// The verdict, in words.
    Marks(String),
    /// Its socket does not accept.
    Socket(PathBuf),
}

impl std::fmt::Display for NotReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotReady::Marks(line) => f.write_str(line),
            NotReady::Socket(path) => write!(f, "{} does not accept", path.display()),
        }
    }
}

/// Ready is a healthy verdict for every launch, and a socket that accepts where there is one.
///
/// # Errors
/// [`NotReady`] says what is missing.
pub fn ready(
    launches: &[Launched],
    socket: Option<&Path>,
    max_age: MaxAge,
) -> Result<(), NotReady> {
    for launched in launches {
        let verdict = launched.verdict(max_age);
        if !verdict.is_healthy() {
            return Err(NotReady::Marks(launched.explain(&verdict)));
        }
    }
    match socket {
        // What cannot be connected to does not accept, whatever the reason.
        Some(socket) if !accepts(socket).unwrap_or(false) => {
            Err(NotReady::Socket(socket.to_owned()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tickmark::clock;
    use tickmark::marks::Publisher;
    use tickmark::procfs::inspect;
    use tickmark::protocol::{Generation, Mark, Phase, Slot, SlotCount};

    fn root() -> (tempfile::TempDir, MarksRoot) {
        let state = tempfile::tempdir().unwrap();
        let root = MarksRoot { path: state.path().to_owned() };
        (state, root)
    }

    /// Leaves what a healthy worker leaves, with `generation` in it.
    fn publish(launched: &Launched, encoding: Encoding, generation: Option<&Generation>) {
        let mut publisher = Publisher::new(c_string(&launched.marks), Slot::FIRST, encoding);
        let session = publisher.begin().unwrap();
        session.expected(SlotCount::new(1).unwrap()).unwrap();
        if let Some(generation) = generation {
            session.generation(generation).unwrap();
        }
        let mark = Mark {
            slot: 0,
            pid: 1,
            sequence: 1,
            wall_ms: 0,
            monotonic_ns: clock::monotonic_ns(),
            tick_ms: 1000,
            phase: Phase::Running,
            consumers_subscribed: 0,
            consumers_expected: 0,
            jobs_in_flight: 0,
            oldest_job_ms: 0,
            time_namespace: 0,
            generation: generation.cloned(),
            consumer_states: Default::default(),
        };
        session.mark(&mark).unwrap();
    }

    fn generation(launched: Option<&Launched>) -> Generation {
        let token = launched.and_then(|l| LaunchToken::new(l.token.as_bytes()));
        inspect(Encoding::Binary, false, token).generation.unwrap()
    }

    #[test]
    fn each_launch_has_an_empty_directory_and_a_token_of_its_own() {
        let (_state, root) = root();
        let [one, two] = [(); 2].map(|()| root.launch().unwrap());
        assert_ne!(one, two);
        assert_eq!(fs::read_dir(&one.marks).unwrap().count(), 0);
        assert!(
            ready(std::slice::from_ref(&one), None, MaxAge::DEFAULT)
                .unwrap_err()
                .to_string()
                .contains("not started yet")
        );
        root.retain(&[&two]);
        assert!(!one.marks.exists() && two.marks.exists());
    }

    #[test]
    fn the_token_of_the_launch_is_compared_and_never_the_activators_own_generation() {
        let (_state, root) = root();
        let launched = root.launch().unwrap();
        publish(&launched, Encoding::Binary, Some(&generation(Some(&launched))));
        assert!(launched.verdict(MaxAge::DEFAULT).is_healthy());

        // As a worker in a mount namespace of its own: nothing but the token is shared.
        let token = LaunchToken::new(launched.token.as_bytes());
        let elsewhere =
            Generation { launch: token, mount_namespace_id: Some(7), ..Generation::empty() };
        publish(&launched, Encoding::Binary, Some(&elsewhere));
        assert!(launched.verdict(MaxAge::DEFAULT).is_healthy());

        // This very container, and another launch, or none.
        let other = root.launch().unwrap();
        for stranger in [generation(Some(&other)), generation(None)] {
            publish(&launched, Encoding::Binary, Some(&stranger));
            assert_eq!(launched.verdict(MaxAge::DEFAULT), Verdict::PreviousContainer);
        }
    }

    #[test]
    fn for_text_marks_the_fresh_directory_alone_decides() {
        let (_state, root) = root();
        let launched = root.launch().unwrap();
        let another = Generation {
            mount_namespace_inode: Some(4_026_532_616),
            pid1_start_time: Some(12_345),
            ..Generation::empty()
        };
        publish(&launched, Encoding::Text, Some(&another));
        assert!(launched.verdict(MaxAge::DEFAULT).is_healthy());
    }

    #[test]
    fn ready_is_healthy_marks_and_a_socket_that_accepts() {
        let (_state, root) = root();
        let launched = [root.launch().unwrap()];
        publish(&launched[0], Encoding::Binary, Some(&generation(Some(&launched[0]))));
        let socket = root.path().join("s");
        let not_ready = ready(&launched, Some(&socket), MaxAge::DEFAULT).unwrap_err();
        assert_eq!(not_ready, NotReady::Socket(socket.clone()));
        let _listener = UnixListener::bind(&socket).unwrap();
        ready(&launched, Some(&socket), MaxAge::DEFAULT).unwrap();
        fs::remove_file(launched[0].marks.join("worker-0")).unwrap();
        let not_ready = ready(&launched, Some(&socket), MaxAge::DEFAULT).unwrap_err();
        assert_eq!(not_ready, NotReady::Marks("worker-0 missing".to_owned()));
    }
}
