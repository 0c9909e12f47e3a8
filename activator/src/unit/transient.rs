//! Transient services: a unit that exists while it runs, made and started by one call. Who may
//! start what is not decided here.
//!
//! # References
//! `StartTransientUnit` in
//! [org.freedesktop.systemd1(5)](https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html),
//! [systemd.service(5)](https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html)

use std::fs;
use std::time::Duration;

use zbus::Variant;

use super::bus::{JobRemovedStream, ServiceProxy};
use super::{Manager, State, UnitName, failed, is_no_such_unit, result_of};
use crate::cgroup::Limit;
use crate::error::{Doing as _, Error, Kind};
use crate::process::Process;

/// How long what ignores SIGTERM is left until SIGKILL: a stop is bounded by its caller, whose
/// deadline is in seconds, and the manager's default of 90 is not.
const GRACE: Duration = Duration::from_secs(2);

/// Between two looks at whether a name is free.
const PAUSE: Duration = Duration::from_millis(5);

/// Exit statuses of the manager's own child, which it gives where it did not come to its exec.
///
/// # References
/// "Process Exit Codes" in
/// [systemd.exec(5)](https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html)
const BEFORE_EXEC: std::ops::RangeInclusive<i32> = 200..=245;

/// `si_code` of a process that exited, as waitid(2) gives it.
const CLD_EXITED: i32 = 1;

/// What a transient service runs, and how. D-Bus has no text but UTF-8.
#[derive(Debug)]
pub(super) struct Transient {
    /// What people read.
    pub(super) description: String,
    /// The executable, absolute.
    pub(super) program: String,
    /// Its arguments, without the zeroth.
    pub(super) arguments: Vec<String>,
    /// `NAME=value`. The manager adds its own.
    pub(super) environment: Vec<String>,
    /// Where it runs.
    pub(super) directory: String,
    /// What it may use.
    pub(super) limit: Limit,
}

impl Transient {
    fn properties(&self) -> Vec<(&'static str, Variant<'_>)> {
        let argv: Vec<&str> =
            std::iter::once(&self.program).chain(&self.arguments).map(String::as_str).collect();
        // Each argument as it is: without the flag `$` begins a variable.
        let exec = vec![(self.program.as_str(), argv, vec!["no-env-expand"])];
        let environment: Vec<&str> = self.environment.iter().map(String::as_str).collect();
        let usec = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let mut properties = vec![
            ("Description", Variant::from(self.description.as_str())),
            // The start job ends once the exec has succeeded, or has not.
            ("Type", "exec".into()),
            ("ExecStartEx", exec.into()),
            ("Environment", environment.into()),
            (
                "UnsetEnvironment",
                vec!["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"].into(),
            ),
            ("WorkingDirectory", self.directory.as_str().into()),
            // As a stub leaves it.
            ("IgnoreSIGPIPE", false.into()),
            ("KillMode", "control-group".into()),
            ("TimeoutStopUSec", usec(GRACE).into()),
            // It is forgotten once it has ended, also where it failed: its name is free again.
            ("CollectMode", "inactive-or-failed".into()),
            // But not before it was asked how it ended.
            ("AddRef", true.into()),
        ];
        let Limit { memory, pids, cpu } = self.limit;
        let limits = [
            ("MemoryMax", memory.map(|bytes| bytes.get())),
            ("TasksMax", pids.map(|count| u64::from(count.get()))),
            // Thousandths of one processor, and microseconds in each second.
            ("CPUQuotaPerSecUSec", cpu.map(|cpu| u64::from(cpu.get()) * 1000)),
        ];
        properties
            .extend(limits.into_iter().filter_map(|(name, limit)| Some((name, limit?.into()))));
        properties
    }
}

/// The ends of jobs, from before the job is begun.
pub(super) struct Ends(JobRemovedStream);

impl Manager {
    /// Stops what an earlier start left under this name, and waits until the manager has forgotten
    /// it. Gives what tells of the end of the job that comes next.
    ///
    /// # Errors
    /// Of [`Manager::stop`].
    pub(super) async fn vacate(&self, unit: &UnitName, patience: Duration) -> Result<Ends, Error> {
        // Of a start whose outcome was not waited for.
        self.release(unit).await;
        self.stop(unit, patience).await?;
        // Of its own jobs alone: nobody reads this while the gate is asked, and the ends of others
        // would fill it.
        let ends = self.manager.receive_job_removed_with_args(&[(2, &unit.0)]).await;
        let ends = ends.map_err(|error| failed("follow", unit, error))?;
        loop {
            let loaded = async {
                let path = self.manager.get_unit(&unit.0).await?;
                let connection = self.manager.inner().connection();
                let unit = super::UnitProxy::builder(connection).path(&path).build().await?;
                Ok(unit.load_state().await? != "not-found")
            };
            match loaded.await {
                Ok(false) => return Ok(Ends(ends)),
                Err(error) if is_no_such_unit(&error) => return Ok(Ends(ends)),
                Ok(true) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(failed("look for", unit, error)),
            }
        }
    }

    /// Starts `service` under this name and waits for its exec. The manager keeps the unit until
    /// [`Manager::release`].
    ///
    /// # Errors
    /// [`Error::may_have_run`], or else nothing of it ran. A program that ends at once with a status
    /// between 200 and 245 cannot be told from one that was not executed.
    pub(super) async fn start_transient(
        &self,
        mut ends: Ends,
        unit: &UnitName,
        service: &Transient,
    ) -> Result<(), Error> {
        let uncertain = |error: zbus::Error| {
            Error::because(Kind::MayHaveRun, format!("nothing says whether {unit} started"), error)
        };
        let begun =
            self.manager.start_transient_unit(&unit.0, "replace", &service.properties(), &[]).await;
        let job = match begun {
            Ok(job) => job,
            Err(error) if is_an_answer(&error) => return Err(failed("start", unit, error)),
            Err(error) => return Err(uncertain(error)),
        };
        let result = result_of(&mut ends.0, &job).await.map_err(|error| {
            uncertain(error.unwrap_or_else(|| zbus::Error::Failure("the bus closed".into())))
        })?;
        if result == "done" {
            return Ok(());
        }
        let state = self.state(unit).await;
        let ran = match &state {
            Ok(_) => self.came_to_its_exec(unit).await.map_err(uncertain)?,
            Err(_) => true,
        };
        let state = state.map_or_else(|error| error.to_string(), |state: State| state.to_string());
        Err(Error::new(
            if ran { Kind::MayHaveRun } else { Kind::Failed },
            format!(
                "cannot start {unit}: its job ended as {result:?}, {}; {state}: see \
                 journalctl -u {unit}",
                if ran { "after its program began" } else { "and its program was not executed" }
            ),
        ))
    }

    /// Whether a start that failed came to its exec: a job of `Type=exec` fails also where the
    /// program ran and failed before the manager had read that it was executed.
    async fn came_to_its_exec(&self, unit: &UnitName) -> zbus::Result<bool> {
        let path = self.manager.load_unit(&unit.0).await?;
        let connection = self.manager.inner().connection();
        let service = ServiceProxy::builder(connection).path(&path).build().await?;
        Ok(match (service.exec_main_code().await?, service.exec_main_status().await?) {
            (0, _) => service.main_pid().await? != 0,
            (CLD_EXITED, status) => !BEFORE_EXEC.contains(&status),
            _ => true,
        })
    }

    /// The unit's main process, held; `None` where it has ended already.
    ///
    /// # Errors
    /// It cannot be held, or is in another PID namespace than ours.
    pub(super) async fn main_process(&self, unit: &UnitName) -> Result<Option<Process>, Error> {
        let state = self.state(unit).await?;
        let (Some(pid), Some(cgroup)) = (state.main_pid, state.cgroup) else { return Ok(None) };
        let process = Process::of_child(pid);
        let found = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        // The manager forgets the number before it waits for the process: where it still has it,
        // it was no other's in between.
        if self.state(unit).await?.main_pid != Some(pid) {
            return Ok(None);
        }
        let found = found.doing(|| format!("look at process {pid} of {unit}"))?;
        if !found.lines().any(|line| is_within(line, &cgroup)) {
            return Err(Error::new(
                Kind::Io,
                format!(
                    "process {pid} is not in {cgroup}: the manager of {unit} numbers processes in \
                     another PID namespace"
                ),
            ));
        }
        process.map(Some)
    }

    /// Lets the manager forget the unit once it has ended.
    pub(super) async fn release(&self, unit: &UnitName) {
        // One that is not held is let go already.
        let _not_held = self.manager.unref_unit(&unit.0).await;
    }
}

/// Whether the line of `/proc/<pid>/cgroup` names `cgroup`, as the manager does, or one below it.
fn is_within(line: &str, cgroup: &str) -> bool {
    let below = line.strip_prefix("0::").and_then(|path| path.strip_prefix(cgroup));
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether it is the manager's refusal, or the bus's that there is no manager: then the call did
/// nothing. Any other error may have come after the call was taken.
fn is_an_answer(error: &zbus::Error) -> bool {
    use zbus::fdo::Error as Standard;
    match error {
        zbus::Error::MethodError(..) => true,
        zbus::Error::FDO(error) => !matches!(
            **error,
            Standard::ZBus(_)
                | Standard::NoReply(_)
                | Standard::IOError(_)
                | Standard::Timeout(_)
                | Standard::TimedOut(_)
                | Standard::Disconnected(_)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::{NonZeroU32, NonZeroU64};

    #[test]
    fn what_is_told_is_in_the_managers_types() {
        let service = Transient {
            description: "it".into(),
            program: "/a b".into(),
            arguments: vec!["$x".into()],
            environment: vec!["A=1".into()],
            directory: "/".into(),
            limit: Limit {
                memory: NonZeroU64::new(1 << 20),
                pids: None,
                cpu: NonZeroU32::new(250),
            },
        };
        let properties = service.properties();
        let of = |name: &str| {
            let found = properties.iter().find(|(named, _)| *named == name);
            found.map(|(_, value)| (value.value_signature().to_string(), value))
        };
        assert_eq!(of("ExecStartEx").unwrap().0, "a(sasas)");
        assert_eq!(of("Environment").unwrap().0, "as");
        assert_eq!(*of("MemoryMax").unwrap().1, Variant::U64(1 << 20));
        assert_eq!(*of("CPUQuotaPerSecUSec").unwrap().1, Variant::U64(250_000));
        assert!(of("TasksMax").is_none());
    }

    #[test]
    fn a_process_is_in_a_cgroup_or_below_and_not_beside_it() {
        assert!(is_within("0::/app.slice/a.service", "/app.slice/a.service"));
        assert!(is_within("0::/app.slice/a.service/b", "/app.slice/a.service"));
        for other in ["0::/app.slice/a.service2", "0::/", "1:name=systemd:/app.slice/a.service"] {
            assert!(!is_within(other, "/app.slice/a.service"), "{other}");
        }
    }

    #[test]
    fn only_an_answer_says_that_nothing_was_started() {
        use zbus::fdo::Error as Standard;
        let of = |error: Standard| is_an_answer(&zbus::Error::FDO(Box::new(error)));
        assert!(of(Standard::AccessDenied("no".into())));
        assert!(of(Standard::ServiceUnknown("nobody".into())));
        assert!(!of(Standard::NoReply("it went away".into())));
        assert!(!is_an_answer(&zbus::Error::InvalidReply));
    }
}
