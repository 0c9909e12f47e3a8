//! A worker that serves on a loopback address of its own, and who asks it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tickmark::{Builder, ConsumerState, Liveness, Registration};

use crate::capture::{Lines, directory};

/// What is waited for comes within this, or never.
const LIMIT: Duration = Duration::from_secs(10);

/// Marks of its own, and an address that no other test has.
pub(crate) struct Served {
    dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    tick: Duration,
    processes: Mutex<u32>,
}

impl Served {
    pub(crate) fn new(tick: Duration) -> Served {
        static MADE: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high, low, MADE.fetch_add(1, Ordering::Relaxed));
        Served {
            dir: directory().unwrap(),
            address: (address, 8086).into(),
            tick,
            processes: Mutex::new(1),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Two consumers are expected of each; the marks are stale after a second.
    pub(crate) fn builder(&self, slot: u32) -> Builder {
        self.builder_with(slot, &[])
    }

    pub(crate) fn builder_with(&self, slot: u32, variables: &[(&str, &str)]) -> Builder {
        let dir = self.dir().to_str().unwrap();
        let own = [("TICKMARK_DIR", dir), ("TICKMARK_MAX_AGE", "1")];
        Liveness::builder()
            .consumers(2)
            .slot(slot)
            .tick(self.tick)
            .environment(own.into_iter().chain(variables.iter().copied()))
    }

    /// The only process.
    pub(crate) fn start(&self) -> Liveness {
        self.builder(0).serve(self.address).start().unwrap()
    }

    /// One of two, which declares as many.
    pub(crate) fn start_slot(&self, slot: u32) -> Liveness {
        self.builder(slot).processes(2).serve(self.address).start().unwrap()
    }

    pub(crate) fn register(&self, liveness: &Liveness) -> [Registration; 2] {
        ["orders", "mails"].map(|name| liveness.register(name, || ConsumerState::Consuming))
    }

    /// Asks `/livez` until it has this status.
    pub(crate) fn wait_for(&self, status: u16) -> Answered {
        let began = Instant::now();
        loop {
            let answered = try_get(self.address, "/livez");
            match answered {
                Ok(answered) if answered.status == status => return answered,
                other => assert!(began.elapsed() < LIMIT, "no {status}: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answered {
    /// The value of the header of this name, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answered {
    let began = Instant::now();
    loop {
        match try_get(address, path) {
            Ok(answered) => return answered,
            // Nobody listens yet.
            Err(error) => assert!(began.elapsed() < LIMIT, "{path}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn try_get(address: SocketAddr, path: &str) -> io::Result<Answered> {
    request(address, format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())
}

/// Sends `bytes`, and reads to the end.
pub(crate) fn request(address: SocketAddr, bytes: &[u8]) -> io::Result<Answered> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(bytes)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let whole = || io::Error::other(format!("not an answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(whole)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(whole)?;
    Ok(Answered { status, head: head.to_owned(), body: body.to_owned() })
}

/// A connection that takes little at once, and for which the kernel of the other end keeps little: what
/// it keeps grows with the size of a segment.
pub(crate) fn connect_with_little_room(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(1).unwrap();
    socket.set_tcp_mss(88).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The lines of all threads, of all tests of this file: ask about an address.
pub(crate) fn lines() -> Lines {
    static LINES: OnceLock<Lines> = OnceLock::new();
    LINES
        .get_or_init(|| {
            let lines = Lines::default();
            tracing::subscriber::set_global_default(lines.clone()).unwrap();
            lines
        })
        .clone()
}

pub(crate) fn inode(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|metadata| metadata.ino())
}
