//! The task of a host: one message at a time, a step of the machine for each event, and what it
//! says done in its order, after its record is durable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_blocking};

use super::{Actor, Input, LEASE, Shared, Step, blocking};
use crate::error::Error;
use crate::gate::Ended;
use crate::sidecar::Wanted;
use crate::staged::Staged;
use crate::swap::{Action, Event, State};

impl Actor {
    pub(super) async fn run(
        mut self,
        mut messages: mpsc::UnboundedReceiver<Input>,
        actions: Vec<Action<Staged>>,
    ) {
        self.perform(actions).await;
        let mut look = tokio::time::interval(LEASE.min(self.shared.settings.restart.check));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let input = tokio::select! {
                input = messages.recv() => input,
                _ = look.tick() => Some(Input::Look),
            };
            match input {
                Some(Input::Close(reply)) => {
                    self.revoke(Ended::Closing).await;
                    let _gone = reply.send(());
                    return;
                }
                Some(input) => self.handle(input).await,
                None => return,
            }
        }
    }

    pub(super) async fn handle(&mut self, input: Input) {
        match input {
            Input::Ask { ask, deadline, context, reply } => {
                self.asked(ask, deadline, context, reply).await;
            }
            Input::Fence { reason, reply } => {
                let _gone = reply.send(self.fence(reason).await);
            }
            Input::Release(reply) => {
                let _gone = reply.send(self.release().await);
            }
            Input::Status(reply) => {
                let _gone = reply.send(self.status());
            }
            Input::Captured(reply) => {
                let _gone = reply.send(self.swap.builds().cloned().collect());
            }
            Input::Event(Event::Red(number), _) => {
                // One that was dropped may be on its way still.
                if self.restarting.take_if(|(of, _)| *of == number).is_some() {
                    self.step(Event::Red(number)).await;
                }
            }
            Input::Event(event, problem) => {
                self.remember(&event, problem);
                self.step(event).await;
            }
            Input::Started(number, result) => self.started(number, result).await,
            Input::Respawned(number, slot, result) => self.respawned(number, slot, result).await,
            Input::Adopted(number, generation, procs) => {
                self.take_in(number, generation, procs);
                self.step(Event::Adopted(number)).await;
            }
            Input::Exited { number, token, exit } => self.exited(number, &token, exit).await,
            Input::Verdicts(number, verdicts) => self.judged(number, verdicts).await,
            Input::Look => {
                self.look().await;
                self.save_again().await;
            }
            Input::Close(_) => {}
        }
    }

    /// One step of the machine, and what it says.
    pub(super) async fn step(&mut self, event: Event<Staged>) {
        let before = self.swap.state();
        let settled = match &event {
            Event::Proven(number) => Some(*number),
            _ => None,
        };
        // What ends the incumbent before it starts the successor must be recorded first, and what that
        // start records must have its room, however full the disk is by then.
        let ends = matches!(event, Event::Admitted { overlap: false }).then(|| self.swap.clone());
        let mut actions = self.swap.step(event);
        if let Some(admitting) = ends
            && let Err(error) = self.persist_with_spare().await
        {
            self.say(error.to_string());
            self.problem = Some(error);
            self.swap = admitting;
            actions = self.swap.step(Event::Denied);
        }
        if let Some(number) = settled {
            self.forget(number);
        }
        if before == State::Warming
            && self.swap.state() != State::Warming
            && let Some(task) = self.awaiting.take()
        {
            task.abort();
        }
        if self.swap.state() != before {
            self.say(format!("{}", self.swap.state()));
        }
        self.perform(actions).await;
    }

    /// Makes the record durable, and then does the actions in their order.
    pub(super) async fn perform(&mut self, actions: Vec<Action<Staged>>) {
        let durable = self.persist().await;
        if let Err(error) = &durable {
            tracing::error!(host = %self.shared.route().host, %error, "cannot persist the state");
        }
        for action in actions {
            self.act(action, &durable).await;
        }
        if let Some(next) = self.sidecar_wanted() {
            self.sidecar.send_if_modified(|wanted| {
                let other = *wanted != next;
                *wanted = next;
                other
            });
        }
    }

    /// Whose sidecar is to run; `None` where that stays as it is.
    fn sidecar_wanted(&self) -> Option<Wanted> {
        let serves = self.swap.serves().and_then(|number| self.running.get(&number));
        if let Some(running) = serves {
            return Some(Wanted::Of(running.generation.clone()));
        }
        if !self.swap.record().wanted {
            return Some(Wanted::Nothing);
        }
        // While another generation takes over, the sidecar stays with the one that served: after a
        // restart of the activator as long as that is not proven gone.
        let sidecar = self.shared.store().sidecar.as_ref().map(|(number, _)| *number);
        let gone = !self.swap.members().any(|member| Some(member.number) == sidecar);
        (gone && *self.sidecar.borrow() == Wanted::Undecided).then_some(Wanted::Nothing)
    }

    pub(super) async fn persist(&self) -> Result<(), Error> {
        let record = self.swap.record().clone();
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            if shared.store().swap == record && !shared.is_unsaved() {
                return Ok(());
            }
            shared.change(|state| state.swap = record)
        })
        .await
    }

    async fn persist_with_spare(&self) -> Result<(), Error> {
        self.persist().await?;
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.directory.keep_spare()).await
    }

    /// What could not be saved is tried again.
    async fn save_again(&self) {
        let ours = self.swap.state() != State::Disowned;
        if ours && self.shared.is_unsaved() && self.persist().await.is_ok() {
            tracing::info!(host = %self.shared.route().host, "the state is saved again");
        }
    }

    pub(super) async fn act(&mut self, action: Action<Staged>, durable: &Result<(), Error>) {
        let refused = durable.as_ref().err().cloned();
        match action {
            Action::Admit { build } => match refused {
                Some(error) => self.later(Event::Denied, Some(error)),
                None => self.admit(&build),
            },
            Action::Raise { over, successor } => match refused {
                Some(error) => self.later(Event::RaiseRefused, Some(error)),
                None => {
                    self.raise(over, successor);
                }
            },
            Action::Start(member) => match refused {
                Some(error) => self.later(Event::Refused(member.number), Some(error)),
                None => self.start(member),
            },
            Action::Await(member) => self.watch_health(&member),
            Action::Switch(number) => match refused {
                Some(error) => self.later(Event::SwitchRefused(number), Some(error)),
                None => self.switch(number),
            },
            Action::Unlink(number) => self.unlink(number).await,
            Action::Settle(number) => self.settle(number),
            Action::Term(number) => self.term(number),
            Action::Kill(number) => self.kill(number),
            Action::Restore(member) => match refused {
                Some(error) => self.later(Event::RestoreRefused, Some(error)),
                None => self.restore(member),
            },
            Action::Rest => self.rest(),
            Action::Adopt(member) => self.adopt(member),
            Action::Answer(attempt, outcome) => self.answer(attempt, outcome, refused).await,
        }
    }

    /// An event for a later turn.
    pub(super) fn later(&self, event: Event<Staged>, problem: Option<Error>) {
        let _own = self.inbox.send(Input::Event(event, problem));
    }

    /// Does `work` off the runtime's threads, and gives what it says to the task; `uncertain` where it
    /// panics, since the machine waits for an answer to each action and would wait for ever.
    pub(super) fn do_blocking(
        &self,
        uncertain: Input,
        work: impl FnOnce(&Arc<Shared>) -> Input + Send + 'static,
    ) {
        let (shared, inbox) = (Arc::clone(&self.shared), self.inbox.clone());
        spawn_blocking(move || {
            let said = catch_unwind(AssertUnwindSafe(|| work(&shared)));
            let _closed = inbox.send(said.unwrap_or(uncertain));
        });
    }

    pub(super) fn after(&self, wait: Duration, event: Event<Staged>) -> AbortHandle {
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _closed = inbox.send(Input::Event(event, None));
        })
        .abort_handle()
    }

    pub(super) fn say(&self, text: String) {
        let host = self.shared.route().host.clone();
        tracing::info!(%host, state = %self.swap.state(), "{text}");
        let _nobody_listens = self.shared.steps.send(Step {
            host,
            attempt: self.swap.attempt(),
            state: self.swap.state(),
            text,
            at: SystemTime::now(),
        });
    }

    /// Keeps the error of the attempt, and the builds whose start failed. One that was healthy is
    /// tried for ever, and is none of them.
    pub(super) fn remember(&mut self, event: &Event<Staged>, problem: Option<Error>) {
        if let Some(error) = problem {
            self.say(error.to_string());
            self.problem = Some(error);
        }
        let number = match event {
            Event::Failed(number)
            | Event::Overdue(number)
            | Event::Died(number)
            | Event::MayHaveRun(number)
            | Event::KillUnproven(number) => *number,
            _ => return,
        };
        let record = self.swap.record();
        let Some(successor) = &record.successor else { return };
        let name = &successor.build.name;
        if record.good.as_ref().is_some_and(|good| good.name == *name) {
            return;
        }
        // One that was stopped from outside, or may not start, did not fail by itself. Nor did one that
        // a crash cut short: it may never have run.
        let outside = self.swap.state() == State::Recovering
            || self.context.ended().is_some()
            || self.problem.as_ref().is_some_and(|error| error.is_layout() || error.is_refused());
        if successor.number == number && !successor.ready && !outside {
            let why = self.problem.as_ref().map_or_else(|| "it died".to_owned(), Error::to_string);
            self.shared.store().failed.insert(name.clone(), why);
        }
    }
}
