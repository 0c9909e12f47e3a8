//! A client of the service: connects through the canonical path, sends a number, and must get
//! exactly that number back once, with the generation and the build that answered.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Who answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) generation: u64,
    pub(crate) build: String,
}

/// One request.
pub(crate) fn ask(socket: &Path, number: u64) -> io::Result<Answered> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(&number.to_ne_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let lines: Vec<&str> = text.lines().collect();
    let [line] = lines[..] else {
        return Err(io::Error::other(format!("{} responses: {text:?}", lines.len())));
    };
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    if next() != number.to_string() {
        return Err(io::Error::other(format!("another's response: {text:?}")));
    }
    Ok(Answered { generation: next().parse().map_err(io::Error::other)?, build: next().to_owned() })
}
