//! What a command and the daemon say to each other: one line of JSON from the command, lines of
//! JSON back, the last of which is the answer. Versioned, bounded, and guarded by the socket's mode.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, chmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tickmark_activator::swap::Outcome;
use tickmark_activator::{BuildName, HostName};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use tokio::net::UnixListener;

/// The version of this protocol. A daemon refuses any other by name.
pub(crate) const VERSION: u32 = 1;

/// The longest line either side reads, in bytes with its end.
pub(crate) const LONGEST_LINE: u64 = 256 * 1024;

/// How long a client may take to say what it wants.
pub(crate) const REQUEST: Duration = Duration::from_secs(5);

/// How long either side waits for the other to take a line.
pub(crate) const WRITE: Duration = Duration::from_secs(10);

/// How often the daemon says that it is still at it.
pub(crate) const PULSE: Duration = Duration::from_secs(5);

/// How long a client waits for any line before it takes the daemon for gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// How many commands are served at once; more wait in the socket's queue.
pub(crate) const CLIENTS: usize = 64;

/// The owner and the group may connect, nobody else: whoever may, runs what they like as the
/// daemon's user.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o660);

/// The first line: `{"version":1,"request":{…}}`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Envelope {
    pub(crate) version: u32,
    /// Read only once the version is known.
    pub(crate) request: Value,
}

/// What a command wants.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    Deploy {
        host: HostName,
        /// Absolute: the daemon has another working directory.
        path: PathBuf,
        build: Option<BuildName>,
        deadline_ms: Option<u64>,
        dry_run: bool,
    },
    Swap {
        host: HostName,
        build: BuildName,
        deadline_ms: Option<u64>,
    },
    Rollback {
        host: HostName,
    },
    Restart {
        host: HostName,
    },
    Stop {
        host: HostName,
    },
    Wake {
        host: HostName,
    },
    /// No build releases it.
    Hold {
        host: HostName,
        build: Option<BuildName>,
    },
    /// With `prune`, all but the newest so many are removed.
    Builds {
        host: HostName,
        prune: Option<usize>,
    },
    /// Without a host, all.
    Status {
        host: Option<HostName>,
    },
    Logs {
        host: HostName,
        follow: bool,
        lines: u64,
    },
}

/// One line back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// Something has been done; `at_ms` is the time since the request.
    Step { at_ms: u64, state: String, text: String },
    /// It is still being done.
    Pulse,
    /// How a request to a host ended.
    Answer { outcome: Outcome, build: Option<BuildName>, error: Option<String> },
    /// What a question was answered with.
    Report(Value),
    /// What follows until the end is a log, byte for byte.
    Log,
    /// The request was not done: the status to exit with, and why.
    Failure { exit: u8, message: String },
}

/// Reads one line; `None` at the end of the stream.
///
/// # Errors
/// What reading gives, a line that is too long, or one that is cut off.
pub(crate) async fn read_line(
    from: &mut (impl AsyncBufRead + Unpin),
) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => String::from_utf8(line)
            .map(Some)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line is not UTF-8")),
        Some(_) => {
            let why = format!("a line is cut off, or longer than {LONGEST_LINE} bytes");
            Err(io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

/// Listens at `path`, which a live daemon or another file may not have. The socket has its mode
/// before anyone can connect to it, and takes the place of a stale one in one step.
///
/// # Errors
/// Names the path, the cause and what to do.
pub(crate) fn listen_at(path: &Path) -> Result<UnixListener, String> {
    let doing = |what: &str, error: &dyn std::fmt::Display| {
        format!("cannot {what} {}: {error}", path.display())
    };
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => {
            return Err(format!(
                "another daemon listens at {}: give this one another [activator] socket",
                path.display()
            ));
        }
        // Stale, or none. Anything else that is there must not be removed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt as _;
            let found = std::fs::symlink_metadata(path).map_err(|e| doing("look at", &e))?;
            if !found.file_type().is_socket() {
                return Err(format!(
                    "{} is there and is no socket: move it away, or give [activator] another socket",
                    path.display()
                ));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(doing("look at", &error)),
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| doing("make the directory of", &e))?;
    }
    // The configuration's check leaves room for it.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let _stale = std::fs::remove_file(&fresh);
    let listener = (|| {
        let address = SocketAddrUnix::new(&fresh)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &address)?;
        chmod(&fresh, SOCKET_MODE)?;
        listen(&socket, 128)?;
        std::fs::rename(&fresh, path)?;
        UnixListener::from_std(socket.into())
    })();
    listener.map_err(|error: io::Error| {
        let _unused = std::fs::remove_file(&fresh);
        doing("listen at", &error)
    })
}
