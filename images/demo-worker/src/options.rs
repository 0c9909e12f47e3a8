//! What the command line and the environment ask for. A flag wins over its variable.

use std::time::Duration;

use tickmark_supervision::command_line::{self, Asked, Setting, milliseconds, positive};

pub(crate) const USAGE: &str = "\
tickmark-demo-worker: a queue worker that can be made ill on purpose

usage: tickmark-demo-worker [--consumers N] [--slots N] [--start-delay MS|held] [--drain MS|never]
       tickmark-demo-worker pause

  --consumers N       consumer threads, all of which must consume     DEMO_CONSUMERS    2
  --slots N           worker processes; above 1 this process is a     DEMO_SLOTS        1
                      supervisor that respawns one that died
  --start-delay MS    wait before the consumers are registered;       DEMO_START_DELAY  0
                      held: until SIGUSR2
  --drain MS|never    how long the work in flight takes to end        DEMO_DRAIN        0
                      after SIGTERM
  --help              this text

  pause               wait for SIGTERM and reap children, like a pod's pause container

Each option can come from the variable beside it; the last column is the default.
Liveness has its own settings in TICKMARK_*: to watch it turn within seconds, use

  TICKMARK_DIR=/dev/shm/demo TICKMARK_TICK=1 TICKMARK_MAX_AGE=3 tickmark-demo-worker &
  TICKMARK_DIR=/dev/shm/demo TICKMARK_MAX_AGE=3 tickmark-probe; echo $?

Make it ill, and well again:

  kill -USR1 PID      lose one consumer: the mark goes stale after TICKMARK_MAX_AGE
  kill -USR2 PID      take it back; or start the consumers that --start-delay held
  kill -TERM PID      drain, then exit; with --drain never it is stuck, and the mark goes
                      stale after TICKMARK_SHUTDOWN_GRACE + TICKMARK_MAX_AGE
  kill -KILL PID      of a slot: the supervisor starts it again into the same slot

A supervisor passes SIGTERM and SIGUSR2 to every slot, and SIGUSR1 to slot 0.
";

/// What to do.
pub(crate) enum Invocation {
    Help,
    Pause,
    Work(Options),
}

/// How to work.
pub(crate) struct Options {
    pub(crate) consumers: u32,
    pub(crate) slots: u32,
    /// `None` is until SIGUSR2.
    pub(crate) start_delay: Option<Duration>,
    /// `None` is a drain that never ends.
    pub(crate) drain: Option<Duration>,
}

impl Options {
    /// The command line of one slot's process.
    pub(crate) fn slot_arguments(&self) -> Vec<String> {
        let start_delay = match self.start_delay {
            Some(delay) => delay.as_millis().to_string(),
            None => "held".to_owned(),
        };
        let drain = match self.drain {
            Some(drain) => drain.as_millis().to_string(),
            None => "never".to_owned(),
        };
        [
            ("--slots", "1".to_owned()),
            ("--consumers", self.consumers.to_string()),
            ("--start-delay", start_delay),
            ("--drain", drain),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }
}

const SETTINGS: &[Setting] = &[
    ("--consumers", "DEMO_CONSUMERS"),
    ("--slots", "DEMO_SLOTS"),
    ("--start-delay", "DEMO_START_DELAY"),
    ("--drain", "DEMO_DRAIN"),
];

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Invocation, String> {
    parse_with(arguments, |name| std::env::var(name).ok())
}

fn parse_with(
    arguments: impl Iterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Invocation, String> {
    let mut options = Options {
        consumers: 2,
        slots: 1,
        start_delay: Some(Duration::ZERO),
        drain: Some(Duration::ZERO),
    };
    let set = |flag: &str, value: &str| set(&mut options, flag, value);
    match command_line::read(arguments, environment, SETTINGS, set)? {
        Asked::Settings => Ok(Invocation::Work(options)),
        Asked::Help => Ok(Invocation::Help),
        Asked::Command(word, _) if word == "pause" => Ok(Invocation::Pause),
        Asked::Command(word, _) => Err(format!("unknown argument {word}")),
    }
}

fn set(options: &mut Options, flag: &str, value: &str) -> Result<(), String> {
    match flag {
        "--consumers" => options.consumers = positive(value)?,
        "--slots" => options.slots = positive(value)?,
        "--start-delay" if value == "held" => options.start_delay = None,
        "--start-delay" => options.start_delay = Some(milliseconds(value)?),
        _ if value == "never" => options.drain = None,
        _ => options.drain = Some(milliseconds(value)?),
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
        let given = parsed(&["--slots", "4", "--consumers", "3", "--drain", "never"], &[]).unwrap();
        let arguments = given.slot_arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let slot = parsed(&arguments, &[("DEMO_SLOTS", "4")]).unwrap();
        assert_eq!((slot.slots, slot.consumers, slot.drain), (1, 3, None));
    }

    #[test]
    fn mistakes_name_their_flag() {
        for (arguments, mistake) in [
            (&["--slots", "0"][..], "--slots: must be at least 1"),
            (&["--drain", "no"], "--drain: \"no\" is not a whole number"),
            (&["paused"], "unknown argument paused"),
        ] {
            assert_eq!(parsed(arguments, &[]).err().as_deref(), Some(mistake));
        }
    }
}
