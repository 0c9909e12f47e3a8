//! One connection, from its acceptance to its end: a request, an answer, and a moment for the peer to
//! take it. Never waits, and lasts no longer than its deadlines.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};
use std::vec::Vec;

use super::request::{self, Asked};

/// How long a whole request may take to come. A kubelet sends it with the connection.
const REQUEST_DEADLINE: Duration = Duration::from_secs(2);
/// How long an answer may take to be taken.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// How long the peer's end is waited for: closed before it, an answer that is under way may be lost.
const END_DEADLINE: Duration = Duration::from_millis(500);
/// What is read and thrown away after the answer, at most.
const MOST_IGNORED: usize = 64 * 1024;
/// An answer above this is a large one: its room is not kept, and there are only so many at once.
pub(super) const LARGE: usize = 64 * 1024;

/// A place for a connection, with buffers that the next one finds again.
#[derive(Default)]
pub(super) struct Place {
    current: Option<Connection>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    step: Step,
    deadline: Instant,
}

enum Step {
    Request,
    Answer { sent: usize },
    End { ignored: usize },
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    ToRead,
    ToWrite,
}

impl Place {
    pub(super) fn is_free(&self) -> bool {
        self.current.is_none()
    }

    /// Takes a connection whose stream does not block; one that was here is cut.
    pub(super) fn open(&mut self, stream: TcpStream, now: Instant) {
        self.close();
        let deadline = now + REQUEST_DEADLINE;
        self.current = Some(Connection { stream, step: Step::Request, deadline });
    }

    pub(super) fn close(&mut self) {
        self.current = None;
        self.request.clear();
        emptied(&mut self.answer);
    }

    pub(super) fn wants(&self) -> Option<(BorrowedFd<'_>, Wants)> {
        let connection = self.current.as_ref()?;
        let wants = match connection.step {
            Step::Answer { .. } => Wants::ToWrite,
            Step::Request | Step::End { .. } => Wants::ToRead,
        };
        Some((connection.stream.as_fd(), wants))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|connection| connection.deadline)
    }

    /// Who goes first where there is no place: one that has its answer, then the oldest.
    pub(super) fn claim(&self) -> Option<(bool, Instant)> {
        self.current
            .as_ref()
            .map(|connection| (!matches!(connection.step, Step::End { .. }), connection.deadline))
    }

    pub(super) fn holds_large_answer(&self) -> bool {
        self.answer.len() > LARGE
    }

    /// Goes on as far as that does not wait. `answer` writes the answer to what is asked.
    pub(super) fn advance(&mut self, now: Instant, answer: &mut dyn FnMut(Asked, &mut Vec<u8>)) {
        while let Some(connection) = &mut self.current {
            let went_on = match connection.step {
                Step::Request => connection.read(&mut self.request, &mut self.answer, now, answer),
                Step::Answer { sent } => connection.write(&mut self.answer, sent, now),
                Step::End { ignored } => connection.ignore(ignored),
            };
            match went_on {
                Ok(()) => {}
                Err(Stop::Waits) => return,
                Err(Stop::Ended) => self.close(),
            }
        }
    }
}

/// Keeps the room for the next answer, unless this was a large one.
fn emptied(answer: &mut Vec<u8>) {
    answer.clear();
    answer.shrink_to(LARGE);
}

/// Why a connection does not go on now.
enum Stop {
    Waits,
    Ended,
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        match error.kind() {
            ErrorKind::WouldBlock => Stop::Waits,
            _ => Stop::Ended,
        }
    }
}

impl Connection {
    fn read(
        &mut self,
        request: &mut Vec<u8>,
        response: &mut Vec<u8>,
        now: Instant,
        answer: &mut dyn FnMut(Asked, &mut Vec<u8>),
    ) -> Result<(), Stop> {
        let seen = request.len();
        request.resize(request::LONGEST, 0);
        let read = uninterrupted(|| self.stream.read(&mut request[seen..]));
        request.truncate(seen + *read.as_ref().unwrap_or(&0));
        if read? == 0 {
            return Err(Stop::Ended);
        }
        if request::may_be_whole(request, seen)
            && let Some(asked) = request::read(request)
        {
            answer(asked, response);
            self.step = Step::Answer { sent: 0 };
            // Not before now, however long the answer took to be found.
            self.deadline = now.max(Instant::now()) + ANSWER_DEADLINE;
        }
        Ok(())
    }

    fn write(&mut self, answer: &mut Vec<u8>, sent: usize, now: Instant) -> Result<(), Stop> {
        let written = uninterrupted(|| self.stream.write(&answer[sent..]))?;
        let sent = sent + written;
        if sent < answer.len() {
            if written == 0 {
                return Err(Stop::Ended);
            }
            self.step = Step::Answer { sent };
            return Ok(());
        }
        emptied(answer);
        self.stream.shutdown(Shutdown::Write)?;
        self.step = Step::End { ignored: 0 };
        self.deadline = now + END_DEADLINE;
        Ok(())
    }

    fn ignore(&mut self, ignored: usize) -> Result<(), Stop> {
        let mut bytes = [0; 4096];
        let read = uninterrupted(|| self.stream.read(&mut bytes))?;
        let ignored = ignored + read;
        if read == 0 || ignored > MOST_IGNORED {
            return Err(Stop::Ended);
        }
        self.step = Step::End { ignored };
        Ok(())
    }
}

fn uninterrupted(mut call: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
