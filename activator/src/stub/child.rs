//! Inside the stub: from its start to its exec. It has one thread and none of the activator's
//! state, and ends as soon as the activator does.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SendFlags, send};
use rustix::process::{chdir, setsid};
use rustix::stdio::{dup2_stdin, dup2_stdout, stderr, stdin, stdout};

use super::message::{GO, Order, Step, decode_order, encode_answer};
use super::raw::{Image, close_on_exec_from, reset_signals};

/// The first descriptor that is not a standard one.
const FIRST: i32 = 3;

/// Ends by the exec, or returns where nothing is to be run: the activator has gone, or took its
/// go back, or something failed and was said.
pub(super) fn run() {
    // Standard input for words, standard output for the go: what std can hand to a child.
    let Ok(socket) = fcntl_dupfd_cloexec(stdin(), FIRST) else { return };
    let Ok(go) = fcntl_dupfd_cloexec(stdout(), FIRST) else { return };
    let mut socket = UnixStream::from(socket);
    let say = |socket: &UnixStream, step, errno| {
        // The activator may be gone, and then nobody is there to tell.
        let _gone = send(socket, &encode_answer(step, errno), SendFlags::NOSIGNAL);
    };
    let image = match prepare(&mut socket) {
        Ok(image) => image,
        Err((step, error)) => {
            let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            return say(&socket, step, errno);
        }
    };
    say(&socket, Step::Ready, 0);
    if waits_for_go(go) {
        // The socket closes with the exec, by which the activator knows.
        let errno = image.exec();
        say(&socket, Step::Exec, errno);
    }
}

fn prepare(socket: &mut UnixStream) -> Result<Image, (Step, io::Error)> {
    let order = read_order(socket).map_err(|error| (Step::Read, error))?;
    detach().map_err(|error| (Step::Detach, error))?;
    chdir(order.directory.as_c_str()).map_err(|errno| (Step::Directory, errno.into()))?;
    let mut arguments = order.arguments;
    arguments.insert(0, order.program.clone());
    Ok(Image::new(order.program, arguments, order.environment))
}

fn read_order(socket: &mut UnixStream) -> io::Result<Order> {
    let mut length = [0; 8];
    socket.read_exact(&mut length)?;
    let length = usize::try_from(u64::from_ne_bytes(length)).map_err(io::Error::other)?;
    let mut text = vec![0; length];
    socket.read_exact(&mut text)?;
    decode_order(&text).ok_or_else(|| Errno::INVAL.into())
}

/// Leaves behind what is the activator's: its terminal and session, its descriptors, its signals
/// and, where the kernel spares it, the protection from the out-of-memory killer.
fn detach() -> io::Result<()> {
    close_on_exec_from(FIRST)?;
    let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(stderr())?;
    setsid()?;
    reset_signals()?;
    let score = "/proc/self/oom_score_adj";
    if fs::read_to_string(score)?.starts_with('-') {
        fs::write(score, "0")?;
    }
    Ok(())
}

/// Whether the byte came; its end is the activator's.
fn waits_for_go(go: OwnedFd) -> bool {
    let mut byte = [0; 1];
    matches!(UnixStream::from(go).read(&mut byte), Ok(1)) && byte[0] == GO
}
