//! Starting a program so that everything is decided before its first instruction: a stub (the
//! activator's own binary again) waits in its cgroup, its identity already known, and becomes the
//! program at the go. Without one it ends, and nothing ran.
//!
//! std's spawn returns after the exec, which is too late to ask. A forked stub would hold copies
//! of the other stubs' ends and so outlive the activator; a re-executed one holds its own alone.

mod child;
mod message;
mod raw;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fmt, fs};

use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::Signal;

use self::message::{ANSWER, GO, STUB, Step};
use crate::cgroup::Leaf;
use crate::descriptor;
use crate::error::{Doing as _, Error, Kind};
use crate::process::{Exit, Identity, Process};

/// The activator's own binary, also where the file has been replaced since.
const OWN_BINARY: &str = "/proc/self/exe";

/// How long a refused stub may take to die of SIGKILL before it is left to do so alone.
const DEATH: Duration = Duration::from_secs(5);

static INTERCEPTED: AtomicBool = AtomicBool::new(false);

/// Becomes the stub if this process was started as one, and then never returns. Call it first in
/// `main`, before anything that makes a thread, opens a file or reads the arguments.
pub fn intercept() {
    INTERCEPTED.store(true, Ordering::Relaxed);
    if env::args_os().next().is_some_and(|name| name == STUB) {
        child::run();
        std::process::exit(127);
    }
}

/// What to run, and all that it gets: it inherits neither an environment nor a descriptor from the
/// activator. It leads a session of its own, blocks and ignores no signal, reads nothing from its
/// standard input, and keeps the activator's user, umask and resource limits.
#[derive(Debug)]
pub struct Launch {
    /// Absolute. It is not searched for, and a file that the kernel cannot run is not handed to a
    /// shell.
    pub program: PathBuf,
    /// Without the zeroth, which is the program.
    pub arguments: Vec<OsString>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Its standard output and error: a file opened to append, since a pipe would break when the
    /// activator ends.
    pub output: OwnedFd,
}

/// Starts a stub for `launch`, in `leaf` where there is one, and returns when the exec is the only
/// thing left to do. Blocks.
///
/// # Errors
/// Nothing ran, and the stub is gone. So too where it is not ready by `deadline`, as in a frozen
/// cgroup.
pub fn spawn(launch: &Launch, leaf: Option<&Leaf>, deadline: Instant) -> Result<Waiting, Error> {
    let doing = || format!("start a stub for {}", launch.program.display());
    let order = check(launch)?;
    let (socket, its_socket) = pair().doing(doing)?;
    let (go, its_go) = pair().doing(doing)?;
    let take_back = its_go.try_clone().doing(doing)?;
    let output = launch.output.try_clone().doing(doing)?;
    let mut child = Command::new(OWN_BINARY)
        .arg0(STUB)
        .stdin(its_socket)
        .stdout(its_go)
        .stderr(output)
        .spawn()
        .doing(doing)?;
    // The command is gone, and the stub's ends with it: what is left of them is the stub's.
    let process = match Process::of_child(child.id()) {
        Ok(process) => process.in_cgroup(leaf.map(Leaf::id)),
        Err(error) => {
            // It ends by itself once its socket does; this makes it sure and takes the zombie.
            let _ended = child.kill().and_then(|()| child.wait());
            return Err(error);
        }
    };
    let waiting = Waiting {
        program: launch.program.clone(),
        directory: launch.directory.clone(),
        socket: socket.into(),
        go,
        take_back,
        process: Some(process),
    };
    if let Some(leaf) = leaf {
        leaf.place(child.id())?;
    }
    waiting.hand_over(&order, deadline).doing(doing)?;
    match waiting.answer(deadline).doing(doing)? {
        Answer::Said(Step::Ready, 0) => Ok(waiting),
        Answer::Said(step, errno) => Err(waiting.said(step, errno)),
        Answer::Ended => {
            let how = waiting.process().wait(Instant::now() + DEATH)?;
            let how = how.as_ref().map_or("it left".to_owned(), Exit::to_string);
            Err(Error::new(
                Kind::Failed,
                format!("cannot {}: it ended before it was ready ({how})", doing()),
            ))
        }
        Answer::None => Err(Error::new(
            Kind::Failed,
            format!("cannot {}: not ready by the deadline: {}", doing(), held_up(leaf)),
        )),
    }
}

fn check(launch: &Launch) -> Result<Vec<u8>, Error> {
    let program = launch.program.display();
    let wrong = |why: String| Err(Error::new(Kind::Usage, why));
    if !INTERCEPTED.load(Ordering::Relaxed) {
        return wrong(
            "this program does not begin with tickmark_activator::stub::intercept(): call it \
             first in main"
                .to_owned(),
        );
    }
    if !launch.program.is_absolute() || !launch.directory.is_absolute() {
        return wrong(format!(
            "{program} in {}: the program and its directory must be absolute",
            launch.directory.display()
        ));
    }
    if launch.environment.iter().any(|(name, _)| name.is_empty() || name.as_bytes().contains(&b'='))
    {
        return wrong(format!("{program}: a variable's name is empty or holds '='"));
    }
    let kind = fstat(&launch.output).map(|found| FileType::from_raw_mode(found.st_mode));
    let kind = kind.doing(|| format!("look at the output of {program}"))?;
    let flags = fcntl_getfl(&launch.output).doing(|| format!("look at the output of {program}"))?;
    match kind {
        FileType::Fifo | FileType::Socket => {
            return wrong(format!(
                "{program}: its output is a pipe or a socket, which would break when the activator \
                 ends: give it a file"
            ));
        }
        FileType::RegularFile if !flags.contains(OFlags::APPEND) => {
            return wrong(format!(
                "{program}: its output is not opened to append, so that two generations would \
                 write over each other"
            ));
        }
        _ => {}
    }
    message::encode_order(launch).ok_or_else(|| {
        Error::new(Kind::Usage, format!("{program}: an argument or a variable holds a NUL"))
    })
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// A stub that waits for its go. Dropped, it is killed, and nothing ran.
#[derive(Debug)]
pub struct Waiting {
    program: PathBuf,
    directory: PathBuf,
    socket: UnixStream,
    go: OwnedFd,
    /// The stub's end of `go` too: one that nobody has read can be taken back.
    take_back: OwnedFd,
    /// Taken by the go.
    process: Option<Process>,
}

enum Answer {
    Said(Step, i32),
    /// The stub's end is closed: by its exec or by its end.
    Ended,
    /// Nothing until the deadline.
    None,
}

impl Waiting {
    /// Who will run, to be persisted before the go: the exec changes none of it.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.process().identity()
    }

    #[allow(clippy::missing_panics_doc, reason = "only the go takes it, and consumes this")]
    fn process(&self) -> &Process {
        self.process.as_ref().expect("a stub is there until its go")
    }

    /// Lets the program run. Blocks until it does, until its exec has failed, or until `deadline`;
    /// then the go is taken back, and only where the stub had read it is it unknown what ran.
    ///
    /// # Errors
    /// [`GoError`] says whether nothing ran.
    pub fn go(mut self, deadline: Instant) -> Result<Process, GoError> {
        let doing = || format!("start {}", self.program.display());
        // Nothing else is in it, and the other end is ours too: this cannot wait or break.
        if let Err(error) = send(&self.go, &[GO], SendFlags::NOSIGNAL).doing(doing) {
            return Err(GoError::NotRun(error));
        }
        let answer = self.answer(deadline).doing(doing);
        let taken_back =
            matches!(recv(&self.take_back, &mut [0; 1][..], RecvFlags::DONTWAIT), Ok((1, _)));
        let not_run = |why: &str| {
            GoError::NotRun(Error::new(Kind::Failed, format!("cannot {}: {why}", doing())))
        };
        match answer {
            Ok(Answer::Said(step, errno)) => Err(GoError::NotRun(self.said(step, errno))),
            _ if taken_back => Err(not_run("its stub did not take the go, and was killed")),
            Ok(Answer::Ended) => Ok(self.take()),
            Ok(Answer::None) => {
                let why = "its exec did not end by the deadline";
                let error = Error::new(Kind::MayHaveRun, format!("cannot {}: {why}", doing()));
                Err(GoError::MayHaveRun(Box::new(MayHaveRun { process: self.take(), error })))
            }
            Err(cause) => {
                let error = Error::because(Kind::MayHaveRun, format!("cannot {}", doing()), cause);
                Err(GoError::MayHaveRun(Box::new(MayHaveRun { process: self.take(), error })))
            }
        }
    }

    /// Ends the stub and says when it is gone, so that its leaf is empty again. Dropping it does
    /// the same and tells nobody.
    ///
    /// # Errors
    /// It did not die of SIGKILL within five seconds.
    pub fn refuse(mut self) -> Result<(), Error> {
        let process = self.take();
        end(&process)
    }

    #[allow(clippy::missing_panics_doc, reason = "the two callers consume this")]
    fn take(&mut self) -> Process {
        self.process.take().expect("a stub is there until its go")
    }

    /// A launch may be longer than the socket's buffer.
    fn hand_over(&self, order: &[u8], deadline: Instant) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        let mut rest = order;
        while !rest.is_empty() {
            if !descriptor::wait(&self.socket, PollFlags::OUT, deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match (&self.socket).write(rest) {
                Ok(written) => rest = &rest[written..],
                // Broken: it has ended, and its answer says why.
                Err(error) => match error.kind() {
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return Ok(()),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn answer(&self, deadline: Instant) -> io::Result<Answer> {
        if !descriptor::wait(&self.socket, PollFlags::IN, deadline)? {
            return Ok(Answer::None);
        }
        let mut answer = [0; ANSWER];
        let received = retry_on_intr(|| recv(&self.socket, &mut answer[..], RecvFlags::DONTWAIT));
        match received {
            // Unread bytes of the launch make the end of a stub a reset.
            Ok((0, _)) | Err(Errno::CONNRESET) => Ok(Answer::Ended),
            Ok((ANSWER, _)) => message::decode_answer(answer)
                .map(|(step, errno)| Answer::Said(step, errno))
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn said(&self, step: Step, errno: i32) -> Error {
        let error = io::Error::from_raw_os_error(errno);
        let program = self.program.display();
        let message = match step {
            Step::Read => format!("cannot start {program}: its stub cannot read the launch"),
            Step::Detach => format!("cannot start {program}: its stub cannot detach itself"),
            Step::Directory => {
                format!("cannot start {program} in its directory, {}", self.directory.display())
            }
            Step::Ready => format!("cannot start {program}: its stub is confused"),
            Step::Exec => format!("cannot run {program}{}", hint(&self.program, &error)),
        };
        Error::because(Kind::Failed, message, error)
    }
}

fn held_up(leaf: Option<&Leaf>) -> &'static str {
    match leaf.map(Leaf::frozen) {
        Some(Ok(true)) => "its cgroup is frozen (cgroup.freeze)",
        _ => "is this machine overloaded?",
    }
}

/// What an errno of execve alone does not say.
fn hint(program: &Path, error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) if fs::metadata(program).is_ok() => {
            " (the file is there: its interpreter is missing)"
        }
        Some(Errno::ACCESS) => " (is it an executable file, on a file system without noexec?)",
        Some(Errno::NOEXEC) => " (neither this machine's format nor a script with #!)",
        _ => "",
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(process) = self.process.take()
            && let Err(error) = end(&process)
        {
            tracing::warn!("a refused stub for {}: {error}", self.program.display());
        }
    }
}

/// SIGKILL rather than the end of the pipe alone: it works on a frozen one too.
fn end(process: &Process) -> Result<(), Error> {
    process.signal(Signal::KILL)?;
    match process.wait(Instant::now() + DEATH)? {
        Some(_) => Ok(()),
        None => Err(Error::new(
            Kind::Unproven,
            format!(
                "process {} does not die of SIGKILL: see /proc/{}/stack",
                process.pid(),
                process.pid()
            ),
        )),
    }
}

/// A go without a running program.
#[derive(Debug)]
#[non_exhaustive]
pub enum GoError {
    /// Nothing of the program ran, and the stub is gone. [`GoError::errno`] is the exec's.
    NotRun(Error),
    /// It may have run, and may run still.
    MayHaveRun(Box<MayHaveRun>),
}

/// What is known of a start whose outcome is not.
#[derive(Debug)]
pub struct MayHaveRun {
    /// The stub, or what it became.
    pub process: Process,
    /// Why nothing more is known.
    pub error: Error,
}

impl GoError {
    /// The errno of a failed exec.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        let GoError::NotRun(error) = self else { return None };
        let source: &(dyn std::error::Error + 'static) = std::error::Error::source(error)?;
        source.downcast_ref::<io::Error>()?.raw_os_error()
    }

    /// The error alone.
    #[must_use]
    pub fn error(&self) -> &Error {
        match self {
            GoError::NotRun(error) => error,
            GoError::MayHaveRun(uncertain) => &uncertain.error,
        }
    }
}

impl fmt::Display for GoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl std::error::Error for GoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error().source()
    }
}
