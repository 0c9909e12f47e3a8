//! The command line and the variables that can stand for it.

use std::time::Duration;

use rustix::process::Pid;
use tickmark_supervision::command_line::{self, Asked, Setting, milliseconds, positive};

use crate::switch::Switch;

pub(crate) const USAGE: &str = "\
tickmark-lapin-worker [FLAG VALUE]...
tickmark-lapin-worker switch NAME [PID]

Consumes queues of RabbitMQ and declares them first; each delivery is a job. SIGTERM drains: no new
jobs, those in flight end, then the process does.

  --uri URI        DEMO_URI         the broker [amqp://127.0.0.1:5672]
  --queues A,B     DEMO_QUEUES      names [demo-0,demo-1]
  --slots N        DEMO_SLOTS       processes, each with a consumer for each queue [1]
  --prefetch N     DEMO_PREFETCH    jobs at once for each queue [4]
  --job MS         DEMO_JOB         how long a job takes [0]
  --deadline MS    DEMO_DEADLINE    how long a job may take [30000]
  --recovery-grace MS  DEMO_RECOVERY_GRACE  how long recovering is healthy [for ever]
  --tick MS        DEMO_TICK        the period of the monitor [TICKMARK_TICK]
  --threads N      DEMO_THREADS     of the runtime; 1 is the flavour of a single thread [2]

switch makes process 1, or PID, ill; a supervisor passes it on to slot 0:
  stop-consumer    cancels the first consumer that is left (SIGUSR1)
  block-runtime    blocks every thread of the runtime for ever (SIGUSR2)
  endless-jobs     jobs that start from now on never end (SIGHUP)
  refuse-drain     a later SIGTERM ends nothing (SIGQUIT)

tickmark's own settings are its own variables.
";

/// What to do.
pub(crate) enum Invocation {
    Help,
    Switch(Switch, Pid),
    Work(Options),
}

/// How to work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) uri: String,
    pub(crate) queues: Vec<String>,
    pub(crate) slots: u32,
    pub(crate) prefetch: u16,
    pub(crate) job: Duration,
    pub(crate) deadline: Duration,
    pub(crate) threads: usize,
    /// `None` is what `TICKMARK_TICK` says.
    pub(crate) tick: Option<Duration>,
    /// `None` is for ever.
    pub(crate) recovery_grace: Option<Duration>,
}

const SETTINGS: &[Setting] = &[
    ("--uri", "DEMO_URI"),
    ("--queues", "DEMO_QUEUES"),
    ("--slots", "DEMO_SLOTS"),
    ("--prefetch", "DEMO_PREFETCH"),
    ("--job", "DEMO_JOB"),
    ("--deadline", "DEMO_DEADLINE"),
    ("--threads", "DEMO_THREADS"),
    ("--tick", "DEMO_TICK"),
    ("--recovery-grace", "DEMO_RECOVERY_GRACE"),
];

impl Options {
    /// The variables of one slot's process: the URI may hold a password, which must not be on
    /// a command line.
    pub(crate) fn slot_variables(&self) -> [(&'static str, String); 9] {
        // Blank is as good as unset.
        let optional = |value: Option<Duration>| {
            value.map(|value| value.as_millis().to_string()).unwrap_or_default()
        };
        [
            ("DEMO_URI", self.uri.clone()),
            ("DEMO_QUEUES", self.queues.join(",")),
            ("DEMO_SLOTS", "1".to_owned()),
            ("DEMO_PREFETCH", self.prefetch.to_string()),
            ("DEMO_JOB", self.job.as_millis().to_string()),
            ("DEMO_DEADLINE", self.deadline.as_millis().to_string()),
            ("DEMO_THREADS", self.threads.to_string()),
            ("DEMO_TICK", optional(self.tick)),
            ("DEMO_RECOVERY_GRACE", optional(self.recovery_grace)),
        ]
    }
}

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Invocation, String> {
    parse_with(arguments, |name| std::env::var(name).ok())
}

fn parse_with(
    arguments: impl Iterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Invocation, String> {
    let mut options = Options {
        uri: "amqp://127.0.0.1:5672".to_owned(),
        queues: vec!["demo-0".to_owned(), "demo-1".to_owned()],
        slots: 1,
        prefetch: 4,
        job: Duration::ZERO,
        deadline: Duration::from_secs(30),
        threads: 2,
        tick: None,
        recovery_grace: None,
    };
    let set = |flag: &str, value: &str| set(&mut options, flag, value);
    match command_line::read(arguments, environment, SETTINGS, set)? {
        Asked::Settings => Ok(Invocation::Work(options)),
        Asked::Help => Ok(Invocation::Help),
        Asked::Command(word, rest) if word == "switch" => switch(rest.into_iter()),
        Asked::Command(word, _) => Err(format!("unknown argument {word}")),
    }
}

fn switch(mut arguments: impl Iterator<Item = String>) -> Result<Invocation, String> {
    let name = arguments.next().ok_or("switch needs a name")?;
    let switch = Switch::ALL
        .into_iter()
        .find(|switch| switch.name() == name)
        .ok_or_else(|| format!("there is no switch {name}"))?;
    let pid = match arguments.next() {
        None => Some(Pid::INIT),
        Some(pid) => pid.parse().ok().filter(|&pid: &i32| pid > 0).and_then(Pid::from_raw),
    };
    Ok(Invocation::Switch(switch, pid.ok_or("the PID is not one")?))
}

fn set(options: &mut Options, flag: &str, value: &str) -> Result<(), String> {
    match flag {
        "--uri" => value.clone_into(&mut options.uri),
        "--queues" => {
            let queues: Vec<String> = value.split(',').map(|queue| queue.trim().into()).collect();
            if queues.iter().any(String::is_empty) {
                return Err(format!("{value:?} names an empty queue"));
            }
            options.queues = queues;
        }
        "--slots" => options.slots = positive(value)?,
        "--prefetch" => {
            options.prefetch = positive(value)?.try_into().map_err(|_| "must be below 65536")?;
        }
        "--job" => options.job = milliseconds(value)?,
        "--deadline" => options.deadline = Duration::from_millis(positive(value)?.into()),
        "--tick" => options.tick = Some(Duration::from_millis(positive(value)?.into())),
        "--recovery-grace" => {
            options.recovery_grace = Some(Duration::from_millis(positive(value)?.into()));
        }
        _ => {
            options.threads = positive(value)?.try_into().map_err(|_| "is too large".to_owned())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Options, String> {
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        let environment = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        match parse_with(arguments, environment)? {
            Invocation::Work(options) => Ok(options),
            _ => Err("not a worker".to_owned()),
        }
    }

    #[test]
    fn a_slot_is_started_with_what_its_supervisor_was_given() {
        let arguments = [
            "--uri=amqp://u:p@h/%2f",
            "--queues",
            "a,b",
            "--slots",
            "3",
            "--prefetch",
            "7",
            "--job",
            "5",
            "--deadline",
            "9",
            "--threads",
            "1",
            "--recovery-grace",
            "8",
        ];
        let given = parsed(&arguments, &[("DEMO_JOB", "1")]).unwrap();
        let variables = given.slot_variables();
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(parsed(&[], &variables).unwrap(), Options { slots: 1, ..given });
    }

    #[test]
    fn mistakes_name_their_flag() {
        for (arguments, mistake) in [
            (&["--slots", "0"][..], "--slots: must be at least 1"),
            (&["--queues", "a,"], "--queues: \"a,\" names an empty queue"),
            (&["--prefetch", "65536"], "--prefetch: must be below 65536"),
            (&["switches"], "unknown argument switches"),
            (&["switch", "colour"], "there is no switch colour"),
            (&["switch", "stop-consumer", "-1"], "the PID is not one"),
        ] {
            assert_eq!(parsed(arguments, &[]).err().as_deref(), Some(mistake));
        }
    }
}
