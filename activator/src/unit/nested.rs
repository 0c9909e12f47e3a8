//! What of a nested row is a unit: its sidecar, a transient service that is started from the
//! generation's captured executable. A nested generation is not: it binds in a run directory that
//! root lays out for it, by a call of root's own, and a service manager lays out nothing.

use std::fmt;
use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::timeout_at;

use super::transient::Transient;
use super::{Manager, UnitName};
use crate::backend::{Proc, Start, StartError};
use crate::error::{Doing as _, Error, Kind};
use crate::exec::{NestedControl, StagedExe, Undo, environment};
use crate::generation::Gen;
use crate::health::{Launched, MarksRoot};
use crate::name::{HostName, LeafName};
use crate::process::Process;
use crate::staged;
use crate::state::Ran;

/// Runs the sidecars of nested rows as units of a service manager:
/// `tickmark-HOST-sidecar.service`, so that two activators with a host of the same name need a
/// manager each.
///
/// A sidecar is the manager's child. It runs as the manager's user, with the variables of an exec
/// row's sidecar besides those that the manager gives everything, and what it prints goes where the
/// manager's default says: to the journal. A lost bus is an error of each call after it.
///
/// Its calls block: they belong on a blocking thread.
///
/// # Panics
/// A call panics on a thread that drives a runtime, and where the runtime has been shut down. One
/// on a current-thread runtime that nothing drives never returns.
pub struct NestedUnits {
    manager: Manager,
    runtime: Handle,
    marks: MarksRoot,
}

impl fmt::Debug for NestedUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NestedUnits").field("marks", &self.marks).finish_non_exhaustive()
    }
}

impl NestedUnits {
    /// Asks `manager`, which was connected on `runtime`. Marks go where those of the activator's
    /// other processes do: below `marks`.
    #[must_use]
    pub fn new(manager: Manager, runtime: Handle, marks: MarksRoot) -> NestedUnits {
        NestedUnits { manager, runtime, marks }
    }

    /// Waits for `asked`, and no longer than until `deadline`: a bus or a manager that does not
    /// answer is an error of this kind.
    fn within<T>(
        &self,
        deadline: Instant,
        kind: Kind,
        what: &str,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        // Made inside, where there is a clock.
        let answer = self.runtime.block_on(async { timeout_at(deadline.into(), asked).await });
        answer.unwrap_or_else(|_elapsed| {
            Err(Error::new(
                kind,
                format!("cannot {what}: the service manager has not answered by the deadline"),
            ))
        })
    }

    fn stop_unit(&self, unit: &UnitName, deadline: Instant) -> Result<(), Error> {
        let stop = self.manager.stop(unit, left(deadline));
        match self.within(deadline, Kind::Unproven, &format!("stop {unit}"), stop) {
            Err(error) if !error.is_unproven() => {
                Err(Error::because(Kind::Unproven, format!("{unit} is not proven stopped"), error))
            }
            other => other,
        }
    }

    /// It ran, and cannot be kept; and whether it is gone.
    fn give_up(&self, unit: &UnitName, why: Error, deadline: Instant) -> (StartError, bool) {
        let why = if why.may_have_run() {
            why
        } else {
            Error::because(Kind::MayHaveRun, format!("{unit} ran and cannot be held"), why)
        };
        match self.stop_unit(unit, deadline) {
            Ok(()) => (StartError::MayHaveRun(None, why), true),
            Err(left) => {
                let what = format!("{why}; and it may run on");
                let error = Error::because(Kind::Unproven, what, left);
                (StartError::KillUnproven(None, error), false)
            }
        }
    }

    /// The process that was started, and its record.
    fn take(
        &self,
        start: &Start<'_>,
        unit: &UnitName,
        launched: &Launched,
    ) -> Result<Process, Error> {
        let host = &start.route.host;
        let found = async {
            let found = self.manager.main_process(unit).await?;
            // How it ended is asked while the manager still knows.
            let state = match found {
                None => self.manager.state(unit).await?.to_string(),
                Some(_) => String::new(),
            };
            found.ok_or_else(|| {
                Error::new(
                    Kind::MayHaveRun,
                    format!("{host}: its sidecar ended as soon as it ran: {unit} is {state}"),
                )
            })
        };
        let what = format!("find the process of {unit}");
        let process = self.within(start.deadline, Kind::MayHaveRun, &what, found)?;
        // An exec row's start writes this before the gate, of a process that waits for its go. Here
        // there is no process before the manager has made it, which is the start itself. So a crash
        // in between leaves a sidecar that no record names: what ends it is its name. A supervisor
        // that finds no record stops by name, which is no error where nothing runs, and every
        // start does so first.
        let (identity, launched) = (process.identity().clone(), launched.clone());
        (start.note)(Ran { slot: start.slot, identity, launched, may_have_run: true }).map_err(
            |error| {
                let what = format!("{host}: its sidecar ran, and that cannot be recorded");
                Error::because(Kind::MayHaveRun, what, error)
            },
        )?;
        Ok(process)
    }
}

impl NestedControl for NestedUnits {
    /// The sidecar, once it was executed. What was left under its name is stopped first.
    ///
    /// # Errors
    /// [`Error::is_no_generations`]: a generation. There is no staged executable, or it is not what
    /// was captured. [`StartError`] says what is left.
    fn start(
        &self,
        start: &Start<'_>,
        leaf: LeafName,
        staged: Option<&StagedExe>,
        generation: &Gen,
    ) -> Result<Proc, StartError> {
        let host = &start.route.host;
        let unit = sidecar_unit(host, leaf)?;
        let staged = staged.ok_or_else(|| {
            Error::new(
                Kind::Failed,
                format!("{host}: a nested sidecar needs the staged executable of its generation"),
            )
        })?;
        validate(staged)?;
        let launched = self.marks.launch()?;
        let forgotten = launched.clone();
        let undo_marks = Undo::by(move || forgotten.forget());
        let service = service(start, &staged.path, generation, &launched)?;
        let ends = self.within(
            start.deadline,
            Kind::Failed,
            &format!("make way for {unit}"),
            self.manager.vacate(&unit, left(start.deadline)),
        )?;
        // The end of the job is waited for inside: what is revoked after this is known to have run.
        let answer = start.gate.pass(|| {
            let go = self.manager.start_transient(ends, &unit, &service);
            self.within(start.deadline, Kind::MayHaveRun, &format!("start {unit}"), go)
        });
        let (process, gone) = match answer.map_err(StartError::Refused)? {
            Ok(()) => match self.take(start, &unit, &launched) {
                Ok(process) => (Ok(process), false),
                Err(why) => {
                    let (error, gone) = self.give_up(&unit, why, start.deadline);
                    (Err(error), gone)
                }
            },
            Err(error) if error.may_have_run() => {
                // Where its job has ended otherwise; not where it goes on past the deadline.
                let ended = !left(start.deadline).is_zero();
                let gone = ended && self.stop_unit(&unit, start.deadline).is_ok();
                (Err(StartError::MayHaveRun(None, error)), gone)
            }
            Err(error) => (Err(StartError::Failed(error)), true),
        };
        let release = async {
            self.manager.release(&unit).await;
            Ok(())
        };
        if let Err(error) = self.within(start.deadline, Kind::Io, "let go of the unit", release) {
            tracing::warn!(%host, %unit, %error, "the next start lets go of it");
        }
        if !gone {
            undo_marks.keep();
        }
        Ok(Proc { process: process?, leaf: None, launched, slot: start.slot })
    }

    /// Stops the sidecar's unit, with all that it forked. One that is not there is stopped.
    ///
    /// # Errors
    /// [`Error::is_unproven`]. [`Error::is_no_generations`]: a generation.
    fn stop(&self, host: &HostName, leaf: LeafName, deadline: Instant) -> Result<(), Error> {
        self.stop_unit(&sidecar_unit(host, leaf)?, deadline)
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn sidecar_unit(host: &HostName, leaf: LeafName) -> Result<UnitName, Error> {
    match leaf {
        LeafName::Sidecar => format!("tickmark-{host}-sidecar.service").parse(),
        LeafName::Generation(number, _) => Err(Error::new(
            Kind::NoGenerations,
            format!(
                "{host}: a service manager runs no nested generation, and {number} is one: root \
                 lays out its run directory and starts it by a call of its own"
            ),
        )),
    }
}

/// What is told is what was captured. Between this and the exec the file is the same as long as
/// only its owner may write there.
fn validate(staged: &StagedExe) -> Result<(), Error> {
    let path = &staged.path;
    let refuse = |why: &str| {
        Err(Error::new(Kind::Failed, format!("{} is not to be run: {why}", path.display())))
    };
    if !path.is_absolute() {
        return refuse("it is not an absolute path");
    }
    let stat = fs::symlink_metadata(path).doing(|| format!("look at {}", path.display()))?;
    if !stat.is_file() || stat.permissions().mode() & 0o111 == 0 {
        return refuse("it is not an executable file, which a link is not either");
    }
    match &staged.digest {
        Some(captured) if !staged::digest(path, &stat)?.eq_ignore_ascii_case(captured) => {
            refuse("its digest is not the one that was captured: it has changed since")
        }
        _ => Ok(()),
    }
}

fn service(
    start: &Start<'_>,
    program: &Path,
    generation: &Gen,
    launched: &Launched,
) -> Result<Transient, Error> {
    let route = start.route;
    let text = |text: &std::ffi::OsStr| {
        text.to_str().map(str::to_owned).ok_or_else(|| {
            let shown = text.display();
            Error::new(Kind::Usage, format!("{}: {shown:?} is not UTF-8", route.host))
        })
    };
    let mut variables = Vec::new();
    for (name, value) in environment(route, start.slot, generation, launched) {
        variables.push(format!("{}={}", text(&name)?, text(&value)?));
    }
    let directory = route.directory.as_deref().or_else(|| program.parent());
    Ok(Transient {
        description: format!("Sidecar of {}, generation {}", route.host, generation.number),
        program: text(program.as_os_str())?,
        arguments: route.sidecar.clone().unwrap_or_default(),
        environment: variables,
        directory: text(directory.unwrap_or_else(|| Path::new("/")).as_os_str())?,
        limit: generation.tier,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::GenerationNumber;

    #[test]
    fn every_host_has_a_sidecars_name_and_no_generation_has_one() {
        for host in ["a".to_owned(), "a-b_C".to_owned(), "x".repeat(64)] {
            let host = HostName::new(host).unwrap();
            let unit = sidecar_unit(&host, LeafName::Sidecar).unwrap();
            assert_eq!(unit.to_string(), format!("tickmark-{host}-sidecar.service"));
            let generation = LeafName::Generation(GenerationNumber::FIRST, 0);
            assert!(sidecar_unit(&host, generation).unwrap_err().is_no_generations());
        }
    }

    #[test]
    fn what_is_no_longer_what_was_captured_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("build");
        let told = |path: &Path, digest: Option<&str>| {
            let staged = StagedExe {
                path: path.to_owned(),
                version: None,
                digest: digest.map(str::to_owned),
            };
            validate(&staged).map_err(|error| error.to_string())
        };
        fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(told(&path, None).unwrap_err().contains("executable"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        told(&path, None).unwrap();
        let digest = staged::digest(&path, &fs::metadata(&path).unwrap()).unwrap();
        told(&path, Some(&digest)).unwrap();
        assert!(
            told(&path, Some(&digest.replace(&digest[..1], "x"))).unwrap_err().contains("digest")
        );
        fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
        assert!(told(&path, Some(&digest)).unwrap_err().contains("digest"));

        let link = directory.path().join("live");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(told(&link, None).unwrap_err().contains("link"));
        assert!(told(directory.path(), None).unwrap_err().contains("executable"));
        assert!(told(Path::new("build"), None).unwrap_err().contains("absolute"));
        assert!(told(&directory.path().join("none"), None).unwrap_err().contains("none"));
    }
}
