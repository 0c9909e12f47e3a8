//! The illnesses, and the signal that asks for each: a scratch image has no other way in.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    StopConsumer,
    BlockRuntime,
    EndlessJobs,
    RefuseDrain,
}

impl Switch {
    pub(crate) const ALL: [Switch; 4] =
        [Switch::StopConsumer, Switch::BlockRuntime, Switch::EndlessJobs, Switch::RefuseDrain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Switch::StopConsumer => "stop-consumer",
            Switch::BlockRuntime => "block-runtime",
            Switch::EndlessJobs => "endless-jobs",
            Switch::RefuseDrain => "refuse-drain",
        }
    }

    pub(crate) fn signal(self) -> Signal {
        match self {
            Switch::StopConsumer => Signal::USR1,
            Switch::BlockRuntime => Signal::USR2,
            Switch::EndlessJobs => Signal::HUP,
            Switch::RefuseDrain => Signal::QUIT,
        }
    }

    pub(crate) fn request(self, pid: Pid) -> io::Result<()> {
        Ok(kill_process(pid, self.signal())?)
    }
}
