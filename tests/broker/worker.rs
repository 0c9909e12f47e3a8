//! The worker under test, in a process of its own: its log, and the verdict on its marks by the
//! code that the probe runs.

use std::ffi::{CStr, CString};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tickmark::protocol::{AnyMark, Mark, MarkFile, Slot};
use tickmark::{observe, settings::Settings};

/// How fast a worker ticks and its marks grow stale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) tick: Duration,
    /// In whole seconds. Ticks fit into it three times and more, as with the defaults.
    pub(crate) max_age: Duration,
}

/// What most cases run at: seconds instead of tens of them.
pub(crate) const BRISK: Pace =
    Pace { tick: Duration::from_secs(1), max_age: Duration::from_secs(4) };
/// The defaults.
pub(crate) const REAL: Pace =
    Pace { tick: Duration::from_secs(10), max_age: Duration::from_secs(45) };
pub(crate) const TICK: Duration = BRISK.tick;
pub(crate) const MAX_AGE: Duration = BRISK.max_age;
/// What a loaded machine may add to a tick.
pub(crate) const LATE: Duration = Duration::from_millis(700);

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Finds the worker, or builds it.
pub(crate) fn build() {
    PROGRAM.get_or_init(|| {
        if let Some(program) = std::env::var_os("TICKMARK_LAPIN_WORKER") {
            return program.into();
        }
        let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "tickmark-lapin-worker"])
            .status()
            .unwrap();
        assert!(built.success(), "the worker does not build");
        // Beside this program's directory, `deps`.
        let this = std::env::current_exe().unwrap();
        this.ancestors().nth(2).unwrap().join("tickmark-lapin-worker")
    });
}

/// The worker that was found or built.
pub(crate) fn program() -> &'static Path {
    PROGRAM.get().expect("built")
}

/// A marks directory and the settings around it, and two queues that nobody else has.
pub(crate) struct Site {
    marks: TempDir,
    pub(crate) pace: Pace,
    pub(crate) queues: [String; 2],
}

impl Site {
    pub(crate) fn new() -> Site {
        Site::at(BRISK)
    }

    pub(crate) fn at(pace: Pace) -> Site {
        static SITES: AtomicU32 = AtomicU32::new(0);
        let number = SITES.fetch_add(1, Ordering::Relaxed);
        let shared_memory = Path::new("/dev/shm");
        let marks = if shared_memory.is_dir() {
            tempfile::tempdir_in(shared_memory)
        } else {
            tempfile::tempdir()
        };
        let queues = [0, 1].map(|queue| format!("demo-{number}-{queue}"));
        Site { marks: marks.unwrap(), pace, queues }
    }

    pub(crate) fn dir(&self) -> &str {
        self.marks.path().to_str().unwrap()
    }

    /// The probe's line, and whether it exits 0.
    pub(crate) fn verdict(&self) -> (bool, String) {
        let dir = CString::new(self.dir()).unwrap();
        let max_age = CString::new(self.pace.max_age.as_secs().to_string()).unwrap();
        let settings = Settings::from_lookup(|name| -> Option<&CStr> {
            match name {
                "TICKMARK_DIR" => Some(&dir),
                "TICKMARK_MAX_AGE" => Some(&max_age),
                _ => None,
            }
        });
        let verdict = observe::judge(&settings, &mut drop);
        (verdict.is_healthy(), verdict.line(dir.to_bytes()).to_string())
    }

    pub(crate) fn healthy(&self) -> bool {
        self.verdict().0
    }

    pub(crate) fn mark(&self) -> Option<Mark> {
        self.mark_of(0)
    }

    pub(crate) fn mark_of(&self, slot: u32) -> Option<Mark> {
        let bytes = std::fs::read(self.marks.path().join(format!("worker-{slot}"))).ok()?;
        match MarkFile::decode(Slot::new(slot).unwrap(), &bytes) {
            Ok(AnyMark::Binary(mark)) => Some(mark),
            other => panic!("{other:?}"),
        }
    }

    /// How long ago the mark was left.
    pub(crate) fn mark_age(&self) -> Duration {
        let written = std::fs::metadata(self.marks.path().join("worker-0")).unwrap().modified();
        SystemTime::now().duration_since(written.unwrap()).unwrap_or_default()
    }

    /// Starts a worker for `uri` with more variables.
    pub(crate) fn start(&self, uri: &str, variables: &[(&str, &str)]) -> Worker {
        let mut command = Command::new(PROGRAM.get().expect("built"));
        let Pace { tick, max_age } = self.pace;
        // The variable knows whole seconds only.
        match tick.subsec_millis() {
            0 => command.env("TICKMARK_TICK", tick.as_secs().to_string()),
            _ => command.env("DEMO_TICK", tick.as_millis().to_string()),
        };
        let mut child = command
            .env("TICKMARK_DIR", self.marks.path())
            .env("TICKMARK_MAX_AGE", max_age.as_secs().to_string())
            .env("DEMO_URI", uri)
            .env("DEMO_QUEUES", self.queues.join(","))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let caught = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                caught.lock().unwrap().push(line);
            }
        });
        Worker { child, lines }
    }
}

pub(crate) struct Worker {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Worker {
    /// What it logged so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Its lines about liveness, from the level on.
    pub(crate) fn liveness(&self) -> Vec<String> {
        self.liveness_of(0)
    }

    /// The same of another slot, where this is a supervisor.
    pub(crate) fn liveness_of(&self, slot: u32) -> Vec<String> {
        let liveness = format!("[liveness] slot {slot}: ");
        self.log()
            .iter()
            .filter_map(|line| {
                let (before, text) = line.split_once(&liveness)?;
                let level = before.split_whitespace().nth(1)?;
                Some(format!("{level} {text}"))
            })
            .collect()
    }

    pub(crate) fn errors(&self) -> Vec<String> {
        self.errors_of(0)
    }

    /// But for a start that took longer than a few short ticks: on a busy machine one may.
    pub(crate) fn errors_of(&self, slot: u32) -> Vec<String> {
        let lines = self.liveness_of(slot);
        let started = lines.iter().position(|line| line == "INFO healthy").unwrap_or(0);
        let is_of_start =
            |(at, line): &(usize, String)| *at < started && line.starts_with("ERROR not healthy ");
        let lines = lines.into_iter().enumerate().filter(|line| !is_of_start(line));
        lines.map(|(_, line)| line).filter(|line| line.starts_with("ERROR")).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// For the message of a failure.
    pub(crate) fn story(&self) -> String {
        self.log().join("\n")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// How long until `holds` does; a failure after `limit`.
pub(crate) fn until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    begun.elapsed()
}

/// Fails unless `holds` for all of `time`.
pub(crate) fn throughout(time: Duration, mut holds: impl FnMut()) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        holds();
        std::thread::sleep(Duration::from_millis(50));
    }
}
