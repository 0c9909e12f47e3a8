//! Deaths, red verdicts, the lease: what is observed while nobody asks; and what revokes every start.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::processes::{respawn, watch_exit};
use super::{Actor, Input, Slot, blocking};
use crate::backend::Proc;
use crate::error::{BoxError, Error, Kind};
use crate::gate::{Context, Ended, Gate};
use crate::health::Launched;
use crate::name::GenerationNumber;
use crate::process::Exit;
use crate::sidecar::Wanted;
use crate::swap::{Event, State};

impl Actor {
    /// Revokes every start of this host: the one under way, and those of slots and sidecars. It waits
    /// for a go that is: what has not run then never will.
    pub(super) async fn revoke(&self, why: Ended) {
        self.end_context(why).await;
        let launches = self.shared.launches();
        let _joined = spawn_blocking(move || launches.end(why)).await;
    }

    /// Slots and sidecars may start again, after a fence.
    pub(super) async fn allow(&self) {
        let shared = Arc::clone(&self.shared);
        let allow = move || {
            if shared.launches().ended() == Some(Ended::Fenced) {
                let mut launches = shared.launches.lock().unwrap_or_else(PoisonError::into_inner);
                *launches = Context::new();
            }
        };
        let _joined = spawn_blocking(allow).await;
    }

    pub(super) async fn exited(&mut self, number: GenerationNumber, token: &str, exit: Exit) {
        if self.swap.state() == State::Disowned {
            return;
        }
        let incumbent = self.swap.record().current.as_ref().map(|current| current.number);
        let leaving = self.swap.record().leaving.iter().any(|one| one.member.number == number);
        let Some(running) = self.running.get_mut(&number) else { return };
        let slots = running.slots.len();
        let Some(slot) = running.slots.values_mut().find(|slot| slot.proc.launched.token == token)
        else {
            return;
        };
        slot.exit = Some(exit);
        let index = slot.proc.slot;
        let ended = running.slots.values().filter(|slot| slot.exit.is_some()).count();
        if running.died || leaving && ended < slots {
            return;
        }
        let of = if slots > 1 { format!(", slot {index},") } else { String::new() };
        let text = format!("generation {number}{of} ended with {exit}");
        if incumbent == Some(number) && slots > 1 && !leaving {
            self.say(text);
            return self.respawn(number, index);
        }
        running.died = true;
        if leaving {
            self.say(text);
            return self.step(Event::Died(number)).await;
        }
        let event = Event::Died(number);
        self.remember(&event, Some(Error::new(Kind::Failed, text)));
        self.step(event).await;
    }

    /// One slot of a generation that serves is started again, alone, after the backoff.
    pub(super) fn respawn(&mut self, number: GenerationNumber, index: u32) {
        let current = self.swap.record().current.as_ref();
        let Some(current) = current.filter(|current| current.number == number) else { return };
        let build = current.build.clone();
        let Some(running) = self.running.get_mut(&number) else { return };
        let Some(slot) = running.slots.get_mut(&index).filter(|slot| !slot.respawning) else {
            return;
        };
        slot.respawning = true;
        let (old, generation) = (Arc::clone(&slot.proc), running.generation.clone());
        let wait = self.backoff.next(Instant::now());
        let shared = Arc::clone(&self.shared);
        let context = running.context.clone();
        let asking = Arc::clone(&self.shared);
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let launches = shared.launches();
            let gate = Gate::asking(context, move || {
                asking.may_launch()?;
                let current = asking.current();
                match current.as_ref().is_some_and(|current| current.number == number) {
                    true => Ok(()),
                    false => Err(Error::new(Kind::Superseded, "its generation leaves").into()),
                }
            })
            .within(launches);
            let gate = shared.hold_to_live(gate, &build);
            let again = move || respawn(&shared, &old, &build, &generation, &gate);
            let respawned = blocking(again).await;
            let _closed = inbox.send(Input::Respawned(number, index, respawned));
        });
    }

    pub(super) async fn respawned(
        &mut self,
        number: GenerationNumber,
        index: u32,
        result: Result<Proc, Error>,
    ) {
        if self.swap.state() == State::Disowned {
            return;
        }
        let incumbent = self.swap.record().current.as_ref().map(|current| current.number);
        match result {
            Ok(proc) => {
                let Some(generation) =
                    self.running.get(&number).map(|running| running.generation.clone())
                else {
                    return;
                };
                let process = Arc::new(proc);
                if incumbent != Some(number) {
                    let _ended = process.process.signal(Signal::TERM);
                }
                watch_exit(&self.inbox, number, Arc::clone(&process));
                if let Some(running) = self.running.get_mut(&number) {
                    running.generation = generation;
                    let ready_by = Some(Instant::now() + self.shared.settings.start_deadline);
                    let slot = Slot { proc: process, exit: None, respawning: false, ready_by };
                    running.slots.insert(index, slot);
                }
                self.reds.remove(&(number, index));
                self.say(format!("generation {number}, slot {index}, runs again"));
            }
            Err(error) => {
                self.say(format!("generation {number}, slot {index}: {error}"));
                let Some(running) = self.running.get_mut(&number) else { return };
                if let Some(slot) = running.slots.get_mut(&index) {
                    slot.respawning = false;
                }
                let none_left = running.slots.values().all(|slot| slot.exit.is_some());
                if incumbent != Some(number) && none_left && !running.died {
                    running.died = true;
                    self.step(Event::Died(number)).await;
                } else if incumbent == Some(number) {
                    self.respawn(number, index);
                }
            }
        }
    }

    pub(super) async fn look(&mut self) {
        if self.swap.state() == State::Disowned {
            return;
        }
        if let Err(error) = self.shared.lease.check() {
            tracing::error!(host = %self.shared.route().host, %error, "the host is not ours any more");
            self.revoke(Ended::LeaseLost).await;
            self.problem = Some(error);
            self.step(Event::LeaseLost).await;
            // The sidecar's task ends where nobody tells it what is wanted.
            self.sidecar = watch::channel(Wanted::Undecided).0;
            return;
        }
        let restart = self.shared.settings.restart;
        if self.swap.state() != State::Serving || self.checked.elapsed() < restart.check {
            return;
        }
        self.checked = Instant::now();
        let Some(running) = self.swap.serves().and_then(|number| self.running.get(&number)) else {
            return;
        };
        let number = running.generation.number;
        let launches: Vec<(u32, Launched)> = running
            .slots
            .values()
            .filter(|slot| slot.exit.is_none())
            .map(|slot| (slot.proc.slot, slot.proc.launched.clone()))
            .collect();
        let max_age = self.shared.settings.max_age;
        // What cannot be judged is not healthy.
        let uncertain =
            launches.iter().map(|(slot, _)| (*slot, Some("its verdict panicked".to_owned())));
        self.do_blocking(Input::Verdicts(number, uncertain.collect()), move |_| {
            let judge = |(slot, launched): (u32, Launched)| {
                let verdict = launched.verdict(max_age);
                (slot, (!verdict.is_healthy()).then(|| launched.explain(&verdict)))
            };
            Input::Verdicts(number, launches.into_iter().map(judge).collect())
        });
    }

    pub(super) async fn judged(
        &mut self,
        number: GenerationNumber,
        verdicts: Vec<(u32, Option<String>)>,
    ) {
        if self.swap.serves() != Some(number) || self.swap.state() != State::Serving {
            return;
        }
        let red = self.shared.settings.restart.red;
        for (slot, problem) in verdicts {
            let known = self.running.get_mut(&number).and_then(|r| r.slots.get_mut(&slot));
            let ready_by = known.map(|slot| &mut slot.ready_by);
            let Some(problem) = problem else {
                self.reds.remove(&(number, slot));
                if let Some(ready_by) = ready_by {
                    *ready_by = None;
                }
                if self.drop_restart() {
                    self.say(format!("generation {number} is healthy again, and not restarted"));
                }
                continue;
            };
            if ready_by.is_some_and(|by| by.is_some_and(|by| Instant::now() < by)) {
                continue;
            }
            let count = self.reds.entry((number, slot)).or_default();
            *count += 1;
            let count = *count;
            self.say(format!("generation {number}: red {count} of {red}: {problem}"));
            // Its restart waits already: the backoff counts it once.
            if count < red || self.restarting.is_some() {
                continue;
            }
            self.reds.remove(&(number, slot));
            // It would be gone before its start could be refused.
            if let Err(error) = self.may_restart() {
                self.say(format!("generation {number}: not restarted: {error}"));
                continue;
            }
            if self.running.get(&number).is_some_and(|running| running.slots.len() > 1) {
                // Ended here, it comes back as any slot that ended.
                if let Some(slot) = self.running.get(&number).and_then(|r| r.slots.get(&slot)) {
                    let _ended = slot.proc.process.signal(Signal::KILL);
                }
                continue;
            }
            let wait = self.backoff.next(Instant::now());
            self.say(format!("generation {number} is restarted in {wait:?}"));
            self.restarting = Some((number, self.after(wait, Event::Red(number))));
            return;
        }
    }

    /// What was red is healthy or replaced; whether its restart waited.
    pub(super) fn drop_restart(&mut self) -> bool {
        let restart = self.restarting.take();
        restart.map(|(_, backoff)| backoff.abort()).is_some()
    }

    /// Whether what serves may be started again, where that ends it first.
    fn may_restart(&self) -> Result<(), BoxError> {
        self.shared.may_launch()?;
        match &self.swap.record().current {
            Some(current) => self.shared.may_run(&current.build),
            None => Ok(()),
        }
    }
}
