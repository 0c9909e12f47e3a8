//! `cargo xtask demo`: a demo worker, its marks on a tmpfs and the static probe, as a story in
//! which each probe call is shown with its line and exit status, and each must come out right.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::outcome::{Doing as _, Failure};
use crate::probe::{self, Builder, Target};
use crate::workspace::{self, build_directory};

const HELP: &str = "\
cargo xtask demo

Builds the static probe and a demo worker (two slots, a queue of its own), runs them on a tmpfs
with a tick of 1 s, and tells a story in about 20 s: not started, healthy, a consumer
lost, a slot killed, a graceful drain, a stuck one. Needs neither root nor a network once the
dependencies are there. Exit 0 only if every probe call came out as it should.
";

const TICK: u32 = 1;
const MAX_AGE: u32 = 3;
const SHUTDOWN_GRACE: u32 = 4;
/// Within the grace, and longer than the marks stay fresh by themselves.
const GRACEFUL_DRAIN: Duration = Duration::from_millis(3800);

const BETWEEN_CALLS: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(15);
const HEALTHY: &str = "2 process(es) healthy";

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    if let Some(argument) = arguments.next()? {
        return match argument {
            Long("help") | Short('h') => {
                print!("{HELP}");
                Ok(())
            }
            other => Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        };
    }
    let target = Target::host()
        .ok_or_else(|| Failure::failed("the probe is made for x86_64 and aarch64 only"))?;
    for defect in probe::build_for_use(&[target], Builder::Cargo)? {
        println!("  not fit for a release: {defect}");
    }
    let worker = build_worker(target, &[])?;

    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).doing("handle signals")?;
    }
    let stage = Stage {
        marks: MarksDirectory::make()?,
        probe: target.file(),
        worker,
        interrupted,
        started: Instant::now(),
    };
    println!(
        "\nmarks in {}; tick {TICK} s, max age {MAX_AGE} s, shutdown grace {SHUTDOWN_GRACE} s",
        stage.marks.path.display()
    );
    stage.tell()?;
    println!("\nevery step came out as it should");
    Ok(())
}

/// Builds the static demo worker and returns the file. Each set of features has a directory of
/// its own, so that no build takes another's place.
pub(crate) fn build_worker(target: Target, features: &[&str]) -> Result<PathBuf, Failure> {
    println!("building the demo worker for {}", target.triple());
    let directory = build_directory(&[&["demo-worker"], features].concat().join("-"));
    let mut command = workspace::cargo();
    command
        .current_dir(workspace::root())
        .args(["build", "--quiet", "--release", "--package", "tickmark-demo-worker"])
        .args(["--features", &features.join(","), "--target", target.triple()])
        .arg("--target-dir")
        .arg(&directory);
    workspace::run(&mut command)?;
    Ok(directory.join(target.triple()).join("release").join("tickmark-demo-worker"))
}

/// Builds the static worker on lapin and returns the file.
pub(crate) fn build_lapin_worker(target: Target) -> Result<PathBuf, Failure> {
    println!("building the lapin worker for {}", target.triple());
    let directory = build_directory("lapin-worker");
    let mut command = workspace::cargo();
    command
        .current_dir(workspace::root())
        .args(["build", "--quiet", "--release", "--package", "tickmark-lapin-worker"])
        .args(["--target", target.triple(), "--target-dir"])
        .arg(&directory);
    workspace::run(&mut command)?;
    Ok(directory.join(target.triple()).join("release").join("tickmark-lapin-worker"))
}

/// Where the story takes place.
struct Stage {
    marks: MarksDirectory,
    probe: PathBuf,
    worker: PathBuf,
    interrupted: Arc<AtomicBool>,
    started: Instant,
}

impl Stage {
    fn tell(&self) -> Result<(), Failure> {
        self.act("nothing has started");
        let not_started = format!(
            "no {}/expected: worker has not started yet (is tickmark started before the consumers?)",
            self.marks.path.display()
        );
        self.until(1, |line| line == not_started)?;

        self.act("a worker with two slots starts");
        let drain = GRACEFUL_DRAIN.as_millis().to_string();
        let worker = self.start_worker(&drain)?;
        self.until(0, |line| line == HEALTHY)?;

        self.act("slot 0 loses one of its two consumers");
        worker.signal(Signal::SIGUSR1)?;
        self.until(1, |line| {
            line.starts_with("worker-0 stale ") && line.ends_with(&format!("s > {MAX_AGE}s"))
        })?;
        println!("      … and gets it back");
        worker.signal(Signal::SIGUSR2)?;
        self.until(0, |line| line == HEALTHY)?;

        self.act("slot 1 is killed with SIGKILL; its supervisor starts it again");
        let killed = worker.pid_of_slot(1)?;
        let file = self.marks.path.join("worker-1");
        let old_mark = fs::read(&file).doing("read worker-1")?;
        kill(killed, Signal::SIGKILL).doing(format_args!("kill {killed}"))?;
        self.wait("another pid for slot 1", || Ok(worker.pid_of_slot(1)? != killed))?;
        // A respawn clears what its predecessor left half-written, and leaves this by its
        // first healthy tick.
        let attempt = self.marks.path.join("attempt-1");
        self.wait("a mark of the new process in worker-1", || {
            Ok(!attempt.exists() && fs::read(&file).is_ok_and(|mark| mark != old_mark))
        })?;
        let marks = self.marks.slots()?;
        if marks != ["worker-0", "worker-1"] {
            return Err(Failure::failed(format!("marks of {marks:?}")));
        }
        println!("      pid {killed} became pid {}, in the same worker-1", worker.pid_of_slot(1)?);
        self.until(0, |line| line == HEALTHY)?;

        self.act("SIGTERM: a drain that takes longer than a mark stays fresh by itself");
        self.drains_within_its_grace(worker)?;

        self.act("another worker, whose drain is stuck, gets SIGTERM");
        self.marks.empty()?;
        let worker = self.start_worker("never")?;
        self.until(0, |line| line == HEALTHY)?;
        worker.signal(Signal::SIGTERM)?;
        let stopped = Instant::now();
        self.until(1, |line| line.contains("worker-0 stale ") && line.contains("worker-1 stale "))?;
        let stayed = stopped.elapsed();
        let bound = Duration::from_secs((SHUTDOWN_GRACE + MAX_AGE + 2 * TICK).into());
        println!("      red {:.1} s after SIGTERM", stayed.as_secs_f32());
        if stayed < Duration::from_secs(SHUTDOWN_GRACE.into()) || stayed > bound {
            return Err(Failure::failed(format!(
                "a stuck drain was green for {stayed:?}, outside {SHUTDOWN_GRACE} s to {bound:?}"
            )));
        }
        Ok(())
    }

    fn act(&self, what: &str) {
        println!("\n{:5.1}s {what}", self.started.elapsed().as_secs_f32());
    }

    /// Calls the probe: its line and its exit status.
    fn call(&self) -> Result<(String, Option<i32>), Failure> {
        let output = with_settings(&mut Command::new(&self.probe), &self.marks.path)
            .output()
            .doing("run the probe")?;
        let line = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        Ok((line, output.status.code()))
    }

    fn show(line: &str, status: Option<i32>) {
        let status = status.map_or_else(|| "a signal".to_owned(), |status| status.to_string());
        println!("      $ tickmark-probe\n      {line}\n      exit {status}");
    }

    /// Calls the probe until it answers so; shows each answer that is not the one before.
    fn until(&self, status: i32, is_due: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let started = Instant::now();
        let mut shown = None;
        loop {
            let (line, code) = self.call()?;
            let is_last = code == Some(status) && is_due(&line);
            // An age that grows by the second is the same answer.
            let kind = (line.replace(|c: char| c.is_ascii_digit(), ""), code);
            if is_last || shown.as_ref() != Some(&kind) {
                Self::show(&line, code);
            }
            if is_last {
                return Ok(());
            }
            shown = Some(kind);
            self.pause_within(started, || format!("exit {status} was due, not {line:?}"))?;
        }
    }

    fn wait(
        &self,
        what: &str,
        mut is_there: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        while !is_there()? {
            self.pause_within(started, || format!("{what} was due"))?;
        }
        Ok(())
    }

    fn pause_within(&self, started: Instant, due: impl Fn() -> String) -> Result<(), Failure> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::failed("interrupted"));
        }
        if started.elapsed() > PATIENCE {
            return Err(Failure::failed(due()));
        }
        thread::sleep(BETWEEN_CALLS);
        Ok(())
    }

    fn drains_within_its_grace(&self, mut worker: Worker) -> Result<(), Failure> {
        let started = Instant::now();
        worker.signal(Signal::SIGTERM)?;
        let mut calls = 0;
        let status = loop {
            let (line, code) = self.call()?;
            if let Some(status) = worker.process.try_wait().doing("wait for the worker")? {
                break status;
            }
            calls += 1;
            if calls == 1 || line != HEALTHY {
                Self::show(&line, code);
            }
            if line != HEALTHY || code != Some(0) {
                return Err(Failure::failed("a graceful drain stays green"));
            }
            self.pause_within(started, || "the worker was due to end".to_owned())?;
        };
        println!(
            "      green in {calls} calls of {calls}, over {:.1} s, until it ended with {status}",
            started.elapsed().as_secs_f32()
        );
        if !status.success() || started.elapsed() < GRACEFUL_DRAIN {
            return Err(Failure::failed("a graceful drain ends by itself, with 0"));
        }
        Ok(())
    }

    fn start_worker(&self, drain: &str) -> Result<Worker, Failure> {
        let mut command = Command::new(&self.worker);
        command
            .args(["--slots", "2", "--start-delay", "500", "--drain", drain])
            .env("DEMO_SUPERVISED", "1")
            // Its own group: an interrupt at the terminal is for us, and we end it by its pid.
            .process_group(0)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut process =
            with_settings(&mut command, &self.marks.path).spawn().doing("start the demo worker")?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        if let Some(log) = process.stderr.take() {
            let lines = Arc::clone(&lines);
            thread::spawn(move || follow(log, &lines));
        }
        Ok(Worker { process, lines })
    }
}

/// Only these: a setting of the person's own shell must not change the story.
fn with_settings<'a>(command: &'a mut Command, marks: &Path) -> &'a mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["TICKMARK_", "KICKS_LIVENESS_", "DEMO_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
        .env("TICKMARK_DIR", marks)
        .env("TICKMARK_TICK", TICK.to_string())
        .env("TICKMARK_MAX_AGE", MAX_AGE.to_string())
        .env("TICKMARK_SHUTDOWN_GRACE", SHUTDOWN_GRACE.to_string())
}

/// Shows what the worker logs, without the time, and keeps it.
fn follow(log: ChildStderr, lines: &Mutex<Vec<String>>) {
    for line in BufReader::new(log).lines().map_while(Result::ok) {
        let text = line.split_once(' ').map_or("", |(_, text)| text.trim());
        println!("      | {text}");
        lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

/// The supervisor of two slots. Dropped, it is killed, and the kernel kills its slots with it.
struct Worker {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Worker {
    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = i32::try_from(self.process.id()).doing("read the worker's pid")?;
        kill(Pid::from_raw(pid), signal).doing(format_args!("send {signal} to {pid}"))
    }

    /// As its supervisor logged it last.
    fn pid_of_slot(&self, slot: u32) -> Result<Pid, Failure> {
        let words = format!("slot {slot} runs as pid ");
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .rev()
            .find_map(|line| line.split_once(&words)?.1.trim().parse().ok())
            .map(Pid::from_raw)
            .ok_or_else(|| Failure::failed(format!("no pid of slot {slot} in the worker's log")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _already_ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// A directory of our own, gone when this is dropped.
struct MarksDirectory {
    path: PathBuf,
}

impl MarksDirectory {
    fn make() -> Result<Self, Failure> {
        let name = format!("tickmark-demo-{}", std::process::id());
        let shared_memory = Path::new("/dev/shm");
        let path = if is_tmpfs(shared_memory) {
            shared_memory.join(name)
        } else {
            let path = std::env::temp_dir().join(name);
            println!("note: /dev/shm is no tmpfs; the marks go to {}", path.display());
            path
        };
        fs::create_dir(&path).doing(format_args!("make {}", path.display()))?;
        Ok(Self { path })
    }

    /// The marks that are there, by name.
    fn slots(&self) -> Result<Vec<String>, Failure> {
        let mut names: Vec<String> = fs::read_dir(&self.path)
            .doing("list the marks")?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("worker-"))
            .collect();
        names.sort();
        Ok(names)
    }

    fn empty(&self) -> Result<(), Failure> {
        fs::remove_dir_all(&self.path)
            .and_then(|()| fs::create_dir(&self.path))
            .doing("empty the marks directory")
    }
}

impl Drop for MarksDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn is_tmpfs(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // Of two mounts on one place the later one is seen.
    let kind = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (Path::new(fields.next()?) == directory).then(|| fields.next())?
    });
    kind == Some("tmpfs")
}
