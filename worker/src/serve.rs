//! The verdict over HTTP. Here: who serves. One process of a container takes the port, from the
//! monitor's thread; a thread of its own answers then ([`server`]), without the application's locks,
//! its runtime or its log subscriber.
//!
//! The processes of a container are told from strangers by a lock in their marks directory: who holds
//! it and cannot have the port has met a stranger.

mod answer;
mod connection;
mod metrics;
mod request;
mod reserve;
mod server;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::ToString;

use tickmark_protocol::{Encoding, Generation, Slot};

use crate::environment::Environment;
use crate::log::SlotLog;
use crate::marks::{PublishError, ServeLock};
use crate::procfs::Inspection;

use answer::{Judge, Own};
use server::Server;

pub use request::fuzz;

/// The port that the verdict is served on, as one process sees it.
pub(crate) struct Port(Option<Wanted>);

struct Wanted {
    address: SocketAddr,
    environment: Environment,
    evidence: Generation,
    encoding: Encoding,
    log: SlotLog<Slot>,
    serving: Option<Serving>,
    /// Ticks in a row in which the port was taken, though no process of this container had it.
    taken: u32,
    /// Ticks in a row in which another process of this container had the lock.
    beaten: u32,
    /// Whether this uninterrupted failure has been logged.
    told: bool,
}

struct Serving {
    /// Gone where the marks directory is unusable, or was replaced and a process there was faster.
    lock: Option<ServeLock>,
    server: Server,
}

/// A dying process lets go of its lock and of its port one after the other: what is seen in one tick
/// alone is no stranger.
const TICKS_TO_BE_SURE: u32 = 2;

impl Port {
    pub(crate) fn new(
        address: Option<SocketAddr>,
        environment: Environment,
        inspection: &Inspection,
        encoding: Encoding,
        log: &SlotLog<Slot>,
    ) -> Port {
        let address = match address.map_or_else(|| environment.serve(), |given| Some(Ok(given))) {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err(text)) => {
                log.error(format_args!(
                    "TICKMARK_SERVE={text} is not an address with a port, such as 0.0.0.0:8086 or \
                     [::]:8086: nothing is served"
                ));
                None
            }
        };
        Port(address.map(|address| Wanted {
            address,
            environment,
            evidence: inspection.evidence.clone(),
            encoding,
            log: log.clone(),
            serving: None,
            taken: 0,
            beaten: 0,
            told: false,
        }))
    }

    /// Once a tick: sees that the verdict is served, by this process or by another one.
    pub(crate) fn tick(&mut self) {
        if let Some(wanted) = &mut self.0 {
            // Unwind safe: every field is valid after each assignment. A subscriber may panic.
            let _next_tick_tries_again = catch_unwind(AssertUnwindSafe(|| wanted.tick()));
        }
    }
}

impl Wanted {
    fn tick(&mut self) {
        if let Some(mut serving) = self.serving.take_if(|serving| serving.server.is_running()) {
            // The directory may have been replaced, and the lock with it. That it cannot be looked at is
            // for the verdict to tell.
            let _unusable = self.lock(&mut serving.lock);
            self.serving = Some(serving);
            return;
        }
        self.serving = None;
        let mut lock = None;
        let unlocked = match self.lock(&mut lock) {
            Ok(()) if lock.is_some() => None,
            // The rule where a container has several processes.
            Ok(()) => {
                self.taken = 0;
                self.beaten = self.beaten.saturating_add(1);
                // Once alone may be another process that looks for the port.
                self.told &= self.beaten < TICKS_TO_BE_SURE;
                return;
            }
            // A marks directory that is unusable is for the verdict to tell.
            Err(error) => Some(error),
        };
        self.beaten = 0;
        match self.serve() {
            Ok(server) => {
                self.taken = 0;
                self.told = false;
                self.serving = Some(Serving { lock, server });
                self.log.info(format_args!(
                    "serving /livez, /explain and /metrics on {}",
                    self.address
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                self.taken = self.taken.saturating_add(1);
                if self.taken >= TICKS_TO_BE_SURE {
                    self.tell(&Stranger(unlocked));
                }
            }
            Err(error) => self.tell(&error),
        }
    }

    fn lock(&self, held: &mut Option<ServeLock>) -> Result<(), PublishError> {
        ServeLock::take(self.environment.shared().dir.value, held)
    }

    fn serve(&self) -> io::Result<Server> {
        let listener = TcpListener::bind(self.address)?;
        let own = Own { evidence: self.evidence.clone(), encoding: self.encoding };
        Server::start(listener, Judge::new(self.environment.clone(), own))
    }

    fn tell(&mut self, why: &dyn fmt::Display) {
        if !self.told {
            self.told = true;
            self.log.error(format_args!("cannot serve on {}: {why}", self.address));
        }
    }
}

/// That something has the port which is not of this container, as far as can be told.
struct Stranger(Option<PublishError>);

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str(
                "something else has the port, and it is no process of this container. The containers \
                 of a pod share their ports, and with hostNetwork those of the node do: give each a \
                 port of its own in TICKMARK_SERVE, and in its probes. Until then a probe is answered \
                 by whoever has this one",
            ),
            Some(error) => {
                let error = error.to_string();
                write!(
                    f,
                    "the port is in use, and the marks directory cannot say whether by a process of \
                     this container: {error}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::*;

    fn take(dir: &Path, held: &mut Option<ServeLock>) -> Result<(), PublishError> {
        ServeLock::take(&CString::new(dir.as_os_str().as_bytes()).unwrap(), held)
    }

    /// Its siblings would take one that serves without the lock for a stranger.
    #[test]
    fn the_lock_is_kept_while_the_directory_cannot_be_looked_at() {
        let site = tempfile::tempdir().unwrap();
        let (marks, no_directory) = (site.path().join("marks"), site.path().join("file"));
        fs::write(&no_directory, "").unwrap();
        let (mut held, mut sibling) = (None, None);
        take(&marks, &mut held).unwrap();
        assert!(held.is_some());
        take(&no_directory.join("marks"), &mut held).unwrap_err();
        assert!(held.is_some());
        take(&marks, &mut sibling).unwrap();
        assert!(sibling.is_none());
        // Replaced, so that what is held is not its lock any more.
        fs::rename(&marks, site.path().join("away")).unwrap();
        take(&marks, &mut sibling).unwrap();
        assert!(sibling.is_some());
        take(&marks, &mut held).unwrap();
        assert!(held.is_none());
    }
}
