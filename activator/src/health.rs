//! Whether a generation works: the same verdict as the probe's, over a marks directory that this
//! launch alone has, and whether its socket accepts.
//!
//! Generations share mount namespace, PID 1 and cgroup root with each other, and a worker in
//! another mount namespace matches none of the activator's. So the token of the launch is compared,
//! and nothing of the activator itself.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstatfs, mkdirat, openat};
use rustix::io::Errno;
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

/// Where the launches of one activator have their marks directories: in a directory that is there
/// while one of them is.
#[derive(Debug, Clone)]
pub struct MarksRoot {
    /// Where that may be, the best first.
    on_tmpfs: Vec<PathBuf>,
    in_state: PathBuf,
}

impl MarksRoot {
    /// A directory on a tmpfs where this user has one, else in the state directory: marks on a
    /// disk work, and cost a write to it every tick. The name is the state directory's own, so that
    /// two activators never share it. Nothing is made yet.
    ///
    /// # Errors
    /// The state directory is not there.
    pub fn of(state: &Path) -> Result<MarksRoot, Error> {
        let stat = fs::metadata(state).doing(|| format!("look at {}", state.display()))?;
        let name = format!("tickmark-{:x}-{:x}", stat.dev(), stat.ino());
        let places = [
            rustix::process::geteuid().is_root().then(|| PathBuf::from("/run/tickmark/marks")),
            std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            Some(PathBuf::from("/dev/shm")),
        ];
        Ok(MarksRoot {
            on_tmpfs: places.into_iter().flatten().map(|place| place.join(&name)).collect(),
            in_state: state.join("marks"),
        })
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
        let found = self.on_tmpfs.iter().find_map(|root| make_in(root, &token, is_tmpfs).ok());
        let marks = match found {
            Some(marks) => marks,
            None => {
                let marks = make_in(&self.in_state, &token, |_| true)
                    .doing(|| format!("make a marks directory in {}", self.in_state.display()))?;
                tracing::warn!(path = %marks.display(), "no tmpfs for marks: they go to a disk");
                marks
            }
        };
        Ok(Launched { token, marks })
    }

    /// Whether there is no launch, and no directory for one.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.roots().all(|root| fs::symlink_metadata(root).is_err())
    }

    fn roots(&self) -> impl Iterator<Item = &PathBuf> {
        self.on_tmpfs.iter().chain([&self.in_state])
    }

    /// Removes the directories of launches that `keep` does not name: of processes that are gone.
    pub fn retain(&self, keep: &[&Launched]) {
        for root in self.roots() {
            if !fs::symlink_metadata(root).is_ok_and(|stat| is_ours(&stat)) {
                continue;
            }
            for entry in fs::read_dir(root).into_iter().flatten().flatten() {
                let path = entry.path();
                if !keep.iter().any(|launched| launched.marks == path) {
                    let _next_time = fs::remove_dir_all(&path);
                }
            }
            remove_unused(root);
        }
    }
}

/// Makes `token` in `root`, which must be this user's and `fit`. It is made where it is absent, and
/// may be removed at any time by whoever forgets the last launch in it.
fn make_in(root: &Path, token: &str, fit: impl Fn(&File) -> bool) -> io::Result<PathBuf> {
    loop {
        match fs::DirBuilder::new().recursive(true).mode(0o755).create(root) {
            // It was there, and may be gone by now.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if fs::symlink_metadata(root).is_ok_and(|stat| !stat.is_dir()) {
                    return Err(error);
                }
                continue;
            }
            made => made?,
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let open = match openat(CWD, root, flags, Mode::empty()) {
            Ok(open) => File::from(open),
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        // Not a directory, or a link, that another user laid there first.
        if !is_ours(&open.metadata()?) || !fit(&open) {
            remove_unused(root);
            return Err(ErrorKind::PermissionDenied.into());
        }
        match mkdirat(&open, token, Mode::from_raw_mode(0o755)) {
            Ok(()) => return Ok(root.join(token)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes a directory of launches that has none: with one in it, rmdir(2) leaves it.
fn remove_unused(root: &Path) {
    let _in_use = fs::remove_dir(root);
}

fn is_tmpfs(directory: &File) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    fstatfs(directory).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS_MAGIC))
}

fn is_ours(stat: &fs::Metadata) -> bool {
    stat.is_dir() && stat.uid() == rustix::process::geteuid().as_raw() && stat.mode() & 0o022 == 0
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
        if let Some(root) = self.marks.parent() {
            remove_unused(root);
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
        let root = MarksRoot { on_tmpfs: Vec::new(), in_state: state.path().join("marks") };
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
    fn the_directory_of_launches_is_there_while_one_is_whoever_comes_and_goes() {
        let (_state, root) = root();
        assert!(root.is_unused(), "nothing was launched yet");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let launched = root.launch().unwrap();
                        assert!(launched.marks.is_dir());
                        launched.forget();
                    }
                });
            }
        });
        assert!(root.is_unused(), "the last was forgotten");
        let [one, two] = [(); 2].map(|()| root.launch().unwrap());
        one.forget();
        assert!(two.marks.is_dir());
        // As after a crash.
        root.retain(&[]);
        assert!(root.is_unused());
    }

    #[test]
    fn another_users_directory_is_passed_over_and_stays() {
        let (state, root) = root();
        let [writable, link] = ["writable", "link"].map(|name| state.path().join(name));
        fs::create_dir(&writable).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&writable, mode).unwrap();
        fs::write(writable.join("theirs"), "").unwrap();
        std::os::unix::fs::symlink(&writable, &link).unwrap();
        for place in [&writable, &link] {
            assert!(make_in(place, "token", |_| true).is_err(), "{place:?}");
        }
        let root = MarksRoot { on_tmpfs: vec![writable.clone(), link], ..root };
        assert!(root.launch().unwrap().marks.starts_with(&root.in_state));
        root.retain(&[]);
        assert!(writable.join("theirs").exists());
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
        let socket = root.in_state.join("s");
        let not_ready = ready(&launched, Some(&socket), MaxAge::DEFAULT).unwrap_err();
        assert_eq!(not_ready, NotReady::Socket(socket.clone()));
        let _listener = UnixListener::bind(&socket).unwrap();
        ready(&launched, Some(&socket), MaxAge::DEFAULT).unwrap();
        fs::remove_file(launched[0].marks.join("worker-0")).unwrap();
        let not_ready = ready(&launched, Some(&socket), MaxAge::DEFAULT).unwrap_err();
        assert_eq!(not_ready, NotReady::Marks("worker-0 missing".to_owned()));
    }
}
