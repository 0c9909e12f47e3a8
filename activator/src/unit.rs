//! Unit rows: hosts that are units of a service manager. They keep stop-then-start, and their
//! processes are the manager's: it is asked over D-Bus and its answer waited for. Below it, what of
//! a nested row is a unit too.
//!
//! # References
//! [org.freedesktop.systemd1(5)](https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html)

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use futures_core::Stream;
use tokio::time::timeout;
use zbus::OwnedObjectPath;

use self::bus::{JobRemovedStream, ManagerProxy, ServiceProxy, UnitProxy};
use crate::cgroup;
use crate::error::{Error, Kind};

mod nested;
mod transient;

pub use self::nested::NestedUnits;

/// The interfaces of systemd that are used, in its own words.
mod bus {
    #![allow(missing_docs, reason = "the names are systemd's, and documented there")]

    use zbus::{ObjectPath, OwnedObjectPath, Variant};

    #[zbus::proxy(
        interface = "org.freedesktop.systemd1.Manager",
        default_service = "org.freedesktop.systemd1",
        default_path = "/org/freedesktop/systemd1"
    )]
    pub(super) trait Manager {
        fn subscribe(&self) -> zbus::Result<()>;
        fn get_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
        fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
        fn unref_unit(&self, name: &str) -> zbus::Result<()>;
        fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
        fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
        fn start_transient_unit(
            &self,
            name: &str,
            mode: &str,
            properties: &[(&str, Variant<'_>)],
            aux: &[(&str, Vec<(&str, Variant<'_>)>)],
        ) -> zbus::Result<OwnedObjectPath>;
        #[zbus(signal)]
        fn job_removed(
            &self,
            id: u32,
            job: ObjectPath<'_>,
            unit: &str,
            result: &str,
        ) -> zbus::Result<()>;
    }

    #[zbus::proxy(
        interface = "org.freedesktop.systemd1.Unit",
        default_service = "org.freedesktop.systemd1"
    )]
    pub(super) trait Unit {
        #[zbus(property(emits_changed_signal = "false"))]
        fn load_state(&self) -> zbus::Result<String>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn active_state(&self) -> zbus::Result<String>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn sub_state(&self) -> zbus::Result<String>;
    }

    #[zbus::proxy(
        interface = "org.freedesktop.systemd1.Service",
        default_service = "org.freedesktop.systemd1"
    )]
    pub(super) trait Service {
        #[zbus(property(emits_changed_signal = "false"), name = "MainPID")]
        fn main_pid(&self) -> zbus::Result<u32>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn control_group(&self) -> zbus::Result<String>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn result(&self) -> zbus::Result<String>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn exec_main_code(&self) -> zbus::Result<i32>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn exec_main_status(&self) -> zbus::Result<i32>;
    }
}

/// The name of a service unit, `orders.service`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitName(String);

impl FromStr for UnitName {
    type Err = Error;
    /// # Errors
    /// It is no service, or longer or of other characters than
    /// [systemd.unit(5)](https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html)
    /// allows.
    fn from_str(name: &str) -> Result<UnitName, Error> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
        let prefix = name.strip_suffix(".service").unwrap_or("");
        if !prefix.is_empty() && name.len() < 256 && name.bytes().all(allowed) {
            Ok(UnitName(name.to_owned()))
        } else {
            Err(Error::new(Kind::Usage, format!("{name:?} does not name a unit: use NAME.service")))
        }
    }
}

impl TryFrom<String> for UnitName {
    type Error = Error;
    fn try_from(name: String) -> Result<UnitName, Error> {
        name.parse()
    }
}

impl From<UnitName> for String {
    fn from(name: UnitName) -> String {
        name.0
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bus {
    /// The machine's.
    System,
    /// The user's own: `systemd --user`.
    Session,
}

/// What the manager says of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// `ActiveState`: active, reloading, inactive, failed, activating, deactivating.
    pub active: String,
    /// `SubState`: running, exited, dead and others.
    pub sub: String,
    /// `MainPID`, where there is one.
    pub main_pid: Option<u32>,
    /// `ControlGroup`, where there is one.
    pub cgroup: Option<String>,
    /// `Result` of the last run: success, exit-code, signal, timeout, oom-kill and others.
    pub result: String,
}

/// A connection to a service manager. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Manager {
    manager: ManagerProxy<'static>,
}

impl Manager {
    /// Connects, and asks to be told of the ends of jobs.
    ///
    /// # Errors
    /// There is no such bus, or no manager on it.
    pub async fn connect(bus: Bus) -> Result<Manager, Error> {
        let connected = async {
            let connection = match bus {
                Bus::System => zbus::Connection::system().await?,
                Bus::Session => zbus::Connection::session().await?,
            };
            let manager = ManagerProxy::new(&connection).await?;
            manager.subscribe().await?;
            Ok(Manager { manager })
        };
        connected.await.map_err(|error: zbus::Error| {
            Error::because(
                Kind::Io,
                format!(
                    "cannot reach the {} manager over D-Bus: is systemd running, and its bus?",
                    match bus {
                        Bus::System => "system's service",
                        Bus::Session => "user's service",
                    }
                ),
                error,
            )
        })
    }

    /// Starts the unit and waits for the end of its start job: for `Type=notify` until it is
    /// ready. One that runs already is left as it is.
    ///
    /// # Errors
    /// [`Error::is_unknown`]: there is no such unit. It failed, and what the manager says of it.
    /// After `patience` [`Error::may_have_run`]: the job goes on.
    pub async fn start(&self, unit: &UnitName, patience: Duration) -> Result<(), Error> {
        self.run_job(Verb::Start, unit, patience).await
    }

    /// Stops the unit, its sidecar if it has one, and waits until the manager has emptied its
    /// cgroup. One that is not there is stopped.
    ///
    /// # Errors
    /// [`Error::is_unproven`]: not within `patience`, or the manager left processes behind.
    pub async fn stop(&self, unit: &UnitName, patience: Duration) -> Result<(), Error> {
        match self.run_job(Verb::Stop, unit, patience).await {
            Err(error) if error.is_unknown() => return Ok(()),
            other => other?,
        }
        let cgroup = match self.state(unit).await {
            Ok(state) => state.cgroup,
            // A transient one is forgotten once it is stopped, and none is in whose cgroup
            // something lives.
            Err(error) if error.is_unknown() => None,
            Err(error) => return Err(error),
        };
        let Some(cgroup) = cgroup else { return Ok(()) };
        match cgroup::is_populated(&cgroup)? {
            Some(true) => Err(Error::new(
                Kind::Unproven,
                format!(
                    "{unit} is stopped and processes are left in {cgroup}: give it \
                     KillMode=control-group or mixed"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Stop-then-start, which is how a unit row gets its next build: `between` puts it in place
    /// while nothing runs.
    ///
    /// # Errors
    /// Of [`Manager::stop`], and then nothing was changed; of `between` or [`Manager::start`], and
    /// then nothing serves.
    pub async fn replace(
        &self,
        unit: &UnitName,
        patience: Duration,
        between: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.stop(unit, patience).await?;
        between()?;
        self.start(unit, patience).await
    }

    /// What the manager says of the unit now.
    ///
    /// # Errors
    /// [`Error::is_unknown`]: there is no such unit.
    pub async fn state(&self, unit: &UnitName) -> Result<State, Error> {
        let connection = self.manager.inner().connection();
        let read = async {
            let path = self.manager.load_unit(&unit.0).await?;
            let general = UnitProxy::builder(connection).path(&path).build().await?;
            if general.load_state().await? == "not-found" {
                return Ok(None);
            }
            let service = ServiceProxy::builder(connection).path(&path).build().await?;
            Ok(Some(State {
                active: general.active_state().await?,
                sub: general.sub_state().await?,
                main_pid: Some(service.main_pid().await?).filter(|pid| *pid != 0),
                cgroup: Some(service.control_group().await?).filter(|path| !path.is_empty()),
                result: service.result().await?,
            }))
        };
        match read.await {
            Ok(Some(state)) => Ok(state),
            Ok(None) => Err(no_such(unit)),
            Err(error) => Err(failed("ask for the state of", unit, error)),
        }
    }

    async fn run_job(&self, verb: Verb, unit: &UnitName, patience: Duration) -> Result<(), Error> {
        match timeout(patience, self.job(verb, unit)).await {
            Ok(Ok(result)) if result == "done" => Ok(()),
            Ok(Ok(result)) => {
                let state = self.state(unit).await;
                let state = state.map_or_else(|error| error.to_string(), |state| state.to_string());
                let kind = match verb {
                    Verb::Start => Kind::Failed,
                    Verb::Stop => Kind::Unproven,
                };
                Err(Error::new(
                    kind,
                    format!(
                        "cannot {verb} {unit}: its job ended as {result:?}; {state}: see \
                         journalctl -u {unit}"
                    ),
                ))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let kind = match verb {
                    Verb::Start => Kind::MayHaveRun,
                    Verb::Stop => Kind::Unproven,
                };
                Err(Error::new(
                    kind,
                    format!("cannot {verb} {unit} within {patience:?}: its job goes on"),
                ))
            }
        }
    }

    /// Begins a job and waits for its end; gives its result. The stream of ends is there before
    /// the job is, so that none is missed.
    async fn job(&self, verb: Verb, unit: &UnitName) -> Result<String, Error> {
        let manager = &self.manager;
        let mut ends =
            manager.receive_job_removed().await.map_err(|e| failed("follow", unit, e))?;
        // `replace`: a job of somebody else's that is in the way gives way.
        let begun = match verb {
            Verb::Start => manager.start_unit(&unit.0, "replace").await,
            Verb::Stop => manager.stop_unit(&unit.0, "replace").await,
        };
        let job = match begun {
            Ok(job) => job,
            Err(error) if is_no_such_unit(&error) => return Err(no_such(unit)),
            Err(error) => return Err(failed(verb.word(), unit, error)),
        };
        result_of(&mut ends, &job).await.map_err(|error| match error {
            Some(error) => failed(verb.word(), unit, error),
            None => Error::new(
                verb.uncertain(),
                format!("cannot {verb} {unit}: the bus closed before its job ended"),
            ),
        })
    }
}

async fn result_of(
    ends: &mut JobRemovedStream,
    job: &OwnedObjectPath,
) -> Result<String, Option<zbus::Error>> {
    while let Some(end) = poll_fn(|context| Pin::new(&mut *ends).poll_next(context)).await {
        let end = end.args().map_err(Some)?;
        if end.job == job.as_ref() {
            return Ok(end.result.to_owned());
        }
    }
    Err(None)
}

#[derive(Debug, Clone, Copy)]
enum Verb {
    Start,
    Stop,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Verb::Start => "start",
            Verb::Stop => "stop",
        }
    }

    /// What is known where the job's end is not.
    fn uncertain(self) -> Kind {
        match self {
            Verb::Start => Kind::MayHaveRun,
            Verb::Stop => Kind::Unproven,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}), last result {}", self.active, self.sub, self.result)
    }
}

fn is_no_such_unit(error: &zbus::Error) -> bool {
    const NAMES: [&str; 2] =
        ["org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.systemd1.UnitNotFound"];
    matches!(error, zbus::Error::MethodError(name, ..) if NAMES.contains(&name.as_str()))
}

fn no_such(unit: &UnitName) -> Error {
    Error::new(
        Kind::Unknown,
        format!("there is no unit {unit}: install it and run systemctl daemon-reload"),
    )
}

fn failed(what: &str, unit: &UnitName, error: zbus::Error) -> Error {
    Error::because(Kind::Io, format!("cannot {what} {unit}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_named_as_a_service() {
        for good in ["orders.service", "orders@eu-1.service", "a\\x2db.service"] {
            assert_eq!(good.parse::<UnitName>().unwrap().to_string(), good);
        }
        let long = format!("{}.service", "x".repeat(248));
        for bad in ["orders", "orders.socket", ".service", "a/b.service", "a b.service", &long] {
            assert!(bad.parse::<UnitName>().unwrap_err().is_usage(), "{bad}");
        }
    }
}
