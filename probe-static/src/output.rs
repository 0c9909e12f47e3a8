//! Text to a descriptor through a small fixed buffer, in as few writes as it takes. What cannot be
//! written is dropped: a full or broken stdout changes no verdict.

use rustix::io::Errno;
use tickmark_protocol::Sink;

/// Room for a line of several unhealthy slots; a longer text takes more than one write.
const BUFFER: usize = 1024;

/// A buffered writer; what is left is written when it is dropped.
#[derive(Debug)]
pub struct Output<W: FnMut(&[u8]) -> Result<usize, Errno>> {
    write: W,
    buffer: heapless::Vec<u8, BUFFER>,
    broken: bool,
}

impl<W: FnMut(&[u8]) -> Result<usize, Errno>> Output<W> {
    /// Writes with `write`, which says how much of its input it took, as write(2) does.
    pub const fn new(write: W) -> Self {
        Self { write, buffer: heapless::Vec::new(), broken: false }
    }

    fn flush(&mut self) {
        let mut rest = self.buffer.as_slice();
        while !rest.is_empty() && !self.broken {
            match (self.write)(rest) {
                Ok(0) => self.broken = true,
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(_) => self.broken = true,
            }
        }
        self.buffer.clear();
    }
}

impl<W: FnMut(&[u8]) -> Result<usize, Errno>> Sink for Output<W> {
    fn put(&mut self, text: &[u8]) {
        let mut rest = text;
        while !rest.is_empty() {
            if self.buffer.is_full() {
                self.flush();
            }
            let (now, later) = rest.split_at(rest.len().min(BUFFER - self.buffer.len()));
            // Cannot fail: `now` is no longer than the room that is left.
            drop(self.buffer.extend_from_slice(now));
            rest = later;
        }
    }
}

impl<W: FnMut(&[u8]) -> Result<usize, Errno>> Drop for Output<W> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_line_is_one_write() {
        let mut writes = Vec::new();
        let mut output = Output::new(|bytes: &[u8]| {
            writes.push(bytes.to_vec());
            Ok(bytes.len())
        });
        output.put(b"2");
        output.put(b" process(es) healthy\n");
        drop(output);
        assert_eq!(writes, [b"2 process(es) healthy\n".to_vec()]);
    }

    #[test]
    fn short_and_interrupted_writes_lose_nothing() {
        let mut written = Vec::new();
        let mut calls = 0;
        let mut output = Output::new(|bytes: &[u8]| {
            calls += 1;
            if calls % 3 == 0 {
                return Err(Errno::INTR);
            }
            let took = bytes.len().min(7);
            written.extend_from_slice(&bytes[..took]);
            Ok(took)
        });
        let text = "0123456789".repeat(300);
        output.put(text.as_bytes());
        drop(output);
        assert_eq!(written, text.as_bytes());
    }

    #[test]
    fn a_broken_stdout_is_given_up_quietly() {
        for answer in [Ok(0), Err(Errno::PIPE), Err(Errno::NOSPC)] {
            let mut calls = 0;
            let mut output = Output::new(|_: &[u8]| {
                calls += 1;
                answer
            });
            output.put(&[b'x'; 5000]);
            drop(output);
            assert_eq!(calls, 1);
        }
    }
}
