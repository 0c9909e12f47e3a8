//! The thread that answers: one poll(2) over the listener and a fixed number of connections. It takes
//! no lock of the application, logs nothing (a log subscriber may block), and never waits for a peer.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::String;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, write};

use super::answer::Judge;
use super::connection::{Place, Wants};
use super::reserve::Reserve;

/// Connections at once. One more takes the place of the one that is nearest to its end, so that idle
/// connections cannot keep a probe out.
const PLACES: usize = 32;
/// Connections taken in one round, so that those that are there get their turn.
const ACCEPTED_AT_ONCE: usize = 16;
/// Large answers in memory at once; beyond that a page that may be large is refused.
const LARGE_ANSWERS: usize = 4;
/// How long connections are not accepted after that failed: the failure may last, and poll would not wait.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread, until this is dropped.
pub(super) struct Server {
    thread: JoinHandle<()>,
    end: Arc<OwnedFd>,
}

impl Server {
    pub(super) fn start(listener: TcpListener, judge: Judge) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ended = Arc::clone(&end);
        let thread = thread::Builder::new()
            .name(String::from("tickmark-serve"))
            .spawn(move || Answering::new(listener, ended, judge).run())?;
        Ok(Server { thread, end })
    }

    pub(super) fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

impl Drop for Server {
    /// Not waited for: it may be reading from a file system that hangs.
    fn drop(&mut self) {
        let _cannot_overflow = write(&*self.end, &1_u64.to_ne_bytes());
    }
}

struct Answering {
    listener: TcpListener,
    end: Arc<OwnedFd>,
    judge: Judge,
    reserve: Reserve,
    places: [Place; PLACES],
    /// Until when no connection is accepted.
    paused: Option<Instant>,
}

/// What one wait found.
#[derive(Default)]
struct Ready {
    end: bool,
    listener: bool,
    places: [bool; PLACES],
}

impl Answering {
    fn new(listener: TcpListener, end: Arc<OwnedFd>, judge: Judge) -> Answering {
        let places = std::array::from_fn(|_| Place::default());
        Answering { listener, end, judge, reserve: Reserve::default(), places, paused: None }
    }

    fn run(&mut self) {
        loop {
            // Unwind safe: the places are emptied, and nothing else is half done.
            match catch_unwind(AssertUnwindSafe(|| self.round())) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => {
                    self.places.iter_mut().for_each(Place::close);
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Waits for something to do and does it; false where this is to end.
    fn round(&mut self) -> bool {
        self.reserve.fill();
        let ready = self.wait();
        if ready.end {
            return false;
        }
        let now = Instant::now();
        for number in (0..PLACES).filter(|&number| ready.places[number]) {
            self.advance(number, now);
        }
        // After what came in time was served: this process may have been stopped for a while.
        for place in &mut self.places {
            if place.deadline().is_some_and(|deadline| deadline <= now) {
                place.close();
            }
        }
        if ready.listener {
            self.accept(now);
        }
        true
    }

    fn wait(&mut self) -> Ready {
        let now = Instant::now();
        self.paused = self.paused.filter(|&until| until > now);
        let nearest = self.places.iter().filter_map(Place::deadline).chain(self.paused).min();
        // A whole millisecond more: what wakes early finds nothing to do and wakes again.
        let left = nearest.map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });

        let nothing = PollFlags::empty();
        let listening = if self.paused.is_some() { nothing } else { PollFlags::IN };
        let end = PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN);
        let mut polled: [PollFd<'_>; PLACES + 2] = std::array::from_fn(|_| end.clone());
        polled[1] = PollFd::from_borrowed_fd(self.listener.as_fd(), listening);
        let mut numbers = [0; PLACES + 2];
        let mut count = 2;
        for (number, place) in self.places.iter().enumerate() {
            if let Some((fd, wants)) = place.wants() {
                let flags = match wants {
                    Wants::ToRead => PollFlags::IN,
                    Wants::ToWrite => PollFlags::OUT,
                };
                polled[count] = PollFd::from_borrowed_fd(fd, flags);
                numbers[count] = number;
                count += 1;
            }
        }
        let mut ready = Ready::default();
        match poll(&mut polled[..count], timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return ready,
            Err(_) => {
                // Out of memory; nothing else can be wrong with these.
                thread::sleep(PAUSE);
                return ready;
            }
        }
        ready.end = !polled[0].revents().is_empty();
        ready.listener = !polled[1].revents().is_empty();
        for at in 2..count {
            // An error or a hang-up too: the next read or write says what it is.
            ready.places[numbers[at]] = !polled[at].revents().is_empty();
        }
        ready
    }

    fn advance(&mut self, number: usize, now: Instant) {
        let large = self.places.iter().filter(|place| place.holds_large_answer()).count();
        let (judge, reserve) = (&mut self.judge, &mut self.reserve);
        self.places[number].advance(now, &mut |asked, answer| {
            // For the files that are read now, if there is no other descriptor.
            reserve.release();
            judge.answer(asked, large >= LARGE_ANSWERS, answer);
            // At once: whoever leaks takes what is free.
            reserve.fill();
        });
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.accept_one() {
                Ok(stream) => {
                    let Some(number) = self.place() else { return };
                    self.places[number].open(stream, now);
                    // A kubelet's request is mostly there already.
                    self.advance(number, now);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // The peer has gone; on to the next.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => {
                        self.paused = Some(now + PAUSE);
                        return;
                    }
                },
            }
        }
    }

    fn accept_one(&mut self) -> io::Result<TcpStream> {
        let accepted = self.listener.accept().or_else(|error| {
            if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) {
                self.reserve.release();
                return self.listener.accept();
            }
            Err(error)
        });
        let (stream, _) = accepted?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// A free place, or the one that has to be given up.
    fn place(&self) -> Option<usize> {
        self.places
            .iter()
            .position(Place::is_free)
            .or_else(|| (0..PLACES).min_by_key(|&number| self.places[number].claim()))
    }
}
