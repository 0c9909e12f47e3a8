//! What the state machine says, done. Each answers with an event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::spawn_blocking;

use super::processes::{adopt_all, end_all, generation, start_all, switch, times, watch_exit};
use super::{Actor, EXEC, Input, POLL, Running, SLOW_POLL, SOON, Slot, blocking};
use crate::backend::{Proc, StartError, Stopped};
use crate::cgroup::Limit;
use crate::error::{Error, Kind};
use crate::gate::{Context, Ended, Gate};
use crate::generation::Gen;
use crate::health::{self, Launched};
use crate::link;
use crate::name::{GenerationNumber, LeafName};
use crate::staged::Staged;
use crate::state::RanGeneration;
use crate::swap::{Event, Member, State};

impl Actor {
    pub(super) fn admit(&mut self, build: &Staged) {
        // Each attempt has a context and a deadline of its own. What is tried instead of what failed
        // has the host's: a caller whose time is over, or who went away, does not end it as well.
        let instead = self.swap.instead().is_some();
        let attempt = self.swap.attempt().filter(|_| !instead);
        let waiter = attempt.and_then(|attempt| self.waiters.get(&attempt));
        self.patience =
            waiter.map_or(self.shared.settings.start_deadline, |waiter| waiter.patience);
        self.deadline = None;
        // It may have been pinned while this request waited.
        let free = match waiter {
            Some(waiter) if waiter.hold.is_none() => self.shared.is_free_for(&build.name),
            _ => Ok(()),
        };
        self.context = waiter.map_or_else(Context::new, |waiter| waiter.context.clone());
        if !instead {
            self.problem = None;
        }
        self.say(format!("build {} is to serve", build.name));
        let route = self.shared.route();
        let layout = self.shared.backend.gen_layout(route);
        if let Err(error) = free.and_then(|()| layout.permits(route, "spawn")) {
            return self.later(Event::Denied, Some(error));
        }
        if route.is_unit() {
            let error = Error::new(
                Kind::Unit,
                format!("{}: unit-backed rows keep stop-then-start", route.host),
            );
            return self.later(Event::Denied, Some(error));
        }
        let overlap = self.shared.overlaps;
        // Stop-then-start ends the incumbent before the spawn could be refused.
        if !overlap && let Some(ended) = self.context.ended() {
            return self.later(Event::Denied, Some(ended.error()));
        }
        if let Err(error) = self.shared.may_run(build) {
            let error = Error::because(Kind::Refused, "the live build may not run", error);
            return self.later(Event::Denied, Some(error));
        }
        self.later(Event::Admitted { overlap }, None);
    }

    pub(super) fn raise(&mut self, over: Option<Member<Staged>>, successor: Member<Staged>) {
        self.do_blocking(panicked(Event::RaiseRefused), move |shared| {
            let slots = shared.route().slots;
            let own = times(&successor.build.tier, slots);
            let raised = shared.generations().and_then(|backend| match &over {
                Some(over) => {
                    let incumbent = times(&over.build.tier, slots);
                    backend.raise_parent(shared.route(), &incumbent, &own)?;
                    Ok(Limit::overlap(&incumbent, &own))
                }
                None => backend.restore_parent(shared.route(), &own).map(|()| own),
            });
            match raised.and_then(|limit| shared.change(|state| state.parent = Some(limit))) {
                Ok(()) => Input::Event(Event::Raised, None),
                Err(error) => Input::Event(Event::RaiseRefused, Some(error)),
            }
        });
    }

    pub(super) fn restore(&mut self, member: Member<Staged>) {
        self.do_blocking(panicked(Event::RestoreRefused), move |shared| {
            let limit = times(&member.build.tier, shared.route().slots);
            let restored = shared
                .generations()
                .and_then(|backend| backend.restore_parent(shared.route(), &limit))
                .and_then(|()| shared.change(|state| state.parent = Some(limit)));
            match restored {
                Ok(()) => Input::Event(Event::Restored, None),
                Err(error) => Input::Event(Event::RestoreRefused, Some(error)),
            }
        });
    }

    pub(super) fn start(&mut self, member: Member<Staged>) {
        let number = member.number;
        self.say(format!("starting generation {number} of build {}", member.build.name));
        let keep: Vec<GenerationNumber> = self.swap.members().map(|member| member.number).collect();
        self.deadline = Instant::now().checked_add(self.patience);
        let gate = self.gate(&member.build);
        let deadline = Instant::now() + EXEC;
        self.do_blocking(panicked(Event::MayHaveRun(number)), move |shared| {
            if let Ok(backend) = shared.generations() {
                let slots = 0..shared.route().slots;
                let keep: Vec<LeafName> = keep
                    .iter()
                    .flat_map(|number| {
                        slots.clone().map(|slot| LeafName::Generation(*number, slot))
                    })
                    .chain([LeafName::Sidecar])
                    .collect();
                backend.sweep(shared.route(), &keep);
            }
            Input::Started(number, start_all(shared, &generation(&member), &gate, deadline))
        });
    }

    /// The gate of a start of this host: the caller's context, the lease, the fence, the deadline;
    /// the live link where overlap was declined.
    pub(super) fn gate(&self, build: &Staged) -> Gate {
        let (shared, deadline) = (Arc::clone(&self.shared), self.deadline);
        let gate = Gate::asking(self.context.clone(), move || {
            shared.may_launch()?;
            match deadline {
                Some(deadline) if Instant::now() >= deadline => {
                    Err(Error::new(Kind::Ended, "the deadline passed before the build ran").into())
                }
                _ => Ok(()),
            }
        });
        self.shared.hold_to_live(gate, build)
    }

    pub(super) async fn started(
        &mut self,
        number: GenerationNumber,
        result: Result<(Gen, Vec<Proc>), StartError>,
    ) {
        let (event, problem) = match result {
            Ok((generation, procs)) => {
                self.take_in(number, generation, procs);
                (Event::Started(number), None)
            }
            Err(error) => {
                let event = match &error {
                    StartError::Refused(_) => Event::Refused(number),
                    StartError::Failed(_) => Event::Failed(number),
                    StartError::MayHaveRun(..) => Event::MayHaveRun(number),
                    StartError::KillUnproven(..) => Event::KillUnproven(number),
                };
                let (proc, error) = error.into_parts();
                if let Some(proc) = proc {
                    let known = self.shared.store().ran.get(&number).cloned();
                    if let Some(RanGeneration { generation, .. }) = known {
                        self.take_in(number, generation, vec![*proc]);
                    }
                }
                (event, Some(error))
            }
        };
        if matches!(event, Event::Refused(_) | Event::Failed(_)) {
            self.forget(number);
        }
        self.remember(&event, problem);
        self.step(event).await;
    }

    /// Takes processes in hand, and watches for their end.
    pub(super) fn take_in(&mut self, number: GenerationNumber, generation: Gen, procs: Vec<Proc>) {
        let running = self.running.entry(number).or_insert_with(|| Running {
            generation,
            context: Context::new(),
            slots: BTreeMap::new(),
            died: false,
        });
        // A slot may have been started again just before its activator ended; all others were
        // awaited.
        let adopted = self.swap.state() == State::Recovering && procs.len() > 1;
        let ready_by = adopted.then(|| Instant::now() + self.shared.settings.start_deadline);
        for proc in procs {
            let proc = Arc::new(proc);
            watch_exit(&self.inbox, number, Arc::clone(&proc));
            running.slots.insert(proc.slot, Slot { proc, exit: None, respawning: false, ready_by });
        }
    }

    /// Nothing is left of a generation.
    pub(super) fn forget(&mut self, number: GenerationNumber) {
        let known = self.shared.store().ran.remove(&number);
        self.running.remove(&number);
        if let Some(timer) = self.timers.remove(&number) {
            timer.abort();
        }
        self.reds.retain(|(of, _), _| *of != number);
        if let Some(known) = known {
            for ran in &known.slots {
                ran.launched.forget();
            }
            let canonical = self.shared.route().socket.as_ref();
            for path in [&known.generation.socket, &known.generation.control].into_iter().flatten()
            {
                // Its own number is never given again; the canonical socket is not its own.
                if Some(path) != canonical {
                    let _left = link::clear_own_socket(path);
                }
            }
        }
    }

    pub(super) fn watch_health(&mut self, member: &Member<Staged>) {
        let number = member.number;
        let Some(running) = self.running.get(&number) else {
            return self.later(Event::Overdue(number), None);
        };
        let launches: Vec<Launched> =
            running.slots.values().map(|slot| slot.proc.launched.clone()).collect();
        let generation = running.generation.clone();
        let (shared, inbox) = (Arc::clone(&self.shared), self.inbox.clone());
        let context = self.context.clone();
        let deadline =
            self.deadline.unwrap_or_else(|| Instant::now() + self.shared.settings.start_deadline);
        let task = tokio::spawn(async move {
            let begun = Instant::now();
            let (event, problem) = loop {
                let (launches, generation) = (launches.clone(), generation.clone());
                let shared = Arc::clone(&shared);
                let looked = spawn_blocking(move || {
                    let max_age = shared.settings.max_age;
                    health::ready(&launches, generation.socket.as_deref(), max_age)?;
                    if let Some(generations) = shared.backend.generations() {
                        generations.gen_ready(shared.route(), &generation);
                    }
                    Ok::<(), health::NotReady>(())
                });
                let not_ready = match looked.await {
                    Ok(Ok(())) => break (Event::Ready(number), None),
                    Ok(Err(not_ready)) => not_ready.to_string(),
                    Err(error) => error.to_string(),
                };
                if context.ended().is_some_and(|ended| ended != Ended::Superseded) {
                    let error = format!("generation {number} is stopped: its request has ended");
                    break (Event::Overdue(number), Some(Error::new(Kind::Ended, error)));
                }
                let now = Instant::now();
                if now >= deadline {
                    let error = format!("generation {number} was not ready in time: {not_ready}");
                    break (Event::Overdue(number), Some(Error::new(Kind::Failed, error)));
                }
                let poll = if now.duration_since(begun) < SOON { POLL } else { SLOW_POLL };
                tokio::time::sleep(poll.min(deadline - now)).await;
            };
            let _closed = inbox.send(Input::Event(event, problem));
        });
        self.awaiting = Some(task.abort_handle());
    }

    pub(super) fn switch(&mut self, number: GenerationNumber) {
        let Some(running) = self.running.get(&number) else {
            let error = Error::new(Kind::Failed, format!("generation {number} is not in hand"));
            return self.later(Event::SwitchRefused(number), Some(error));
        };
        let generation = running.generation.clone();
        let drop_reds = self.swap.members().map(|member| member.number).collect::<Vec<_>>();
        self.reds.retain(|(of, _), _| drop_reds.contains(of));
        let _replaced = self.drop_restart();
        self.do_blocking(panicked(Event::SwitchRefused(number)), move |shared| {
            match switch(shared, &generation) {
                Ok(()) => Input::Event(Event::Switched(number), None),
                Err(error) => Input::Event(Event::SwitchRefused(number), Some(error)),
            }
        });
    }

    pub(super) async fn unlink(&mut self, number: Option<GenerationNumber>) {
        let known: Vec<Gen> = {
            let store = self.shared.store();
            let in_hand = self.running.values().map(|running| &running.generation);
            let recorded = store.ran.values().map(|ran| &ran.generation);
            in_hand
                .chain(recorded)
                .filter(|known| number.is_none_or(|number| known.number == number))
                .cloned()
                .collect()
        };
        let gone = number.is_none().then_some(Stopped::Gone { next: self.swap.record().next });
        let shared = Arc::clone(&self.shared);
        let unlinked = blocking(move || {
            let mut current = shared.current();
            let named = |current: &Gen| number.is_none_or(|number| current.number == number);
            if current.as_ref().is_some_and(named) {
                *current = None;
            }
            let generations = shared.generations()?;
            for stopped in known.iter().map(Stopped::Generation).chain(gone) {
                generations.gen_stopped(shared.route(), stopped)?;
            }
            Ok(())
        });
        if let Err(error) = unlinked.await {
            tracing::warn!(host = %self.shared.route().host, %error, "the link stays");
        }
    }

    pub(super) fn settle(&mut self, number: GenerationNumber) {
        let task = self.after(self.shared.settings.settle, Event::Settled(number));
        if let Some(earlier) = self.timers.insert(number, task) {
            earlier.abort();
        }
    }

    pub(super) fn term(&mut self, number: GenerationNumber) {
        if let Some(settling) = self.timers.remove(&number) {
            settling.abort();
        }
        let Some(running) = self.running.get_mut(&number) else {
            return self.later(Event::Drained(number), None);
        };
        let mut left = false;
        for slot in running.slots.values() {
            match slot.proc.process.signal(Signal::TERM) {
                Ok(alive) => left |= alive,
                Err(error) => {
                    left = true;
                    tracing::warn!(host = %self.shared.route().host, %error, "cannot tell it to end");
                }
            }
        }
        self.say(format!("generation {number} drains"));
        let wait = if left { self.shared.settings.drain } else { Duration::ZERO };
        let draining = self.after(wait, Event::Drained(number));
        self.timers.insert(number, draining);
    }

    pub(super) fn kill(&mut self, number: GenerationNumber) {
        let procs: Vec<Arc<Proc>> = self
            .running
            .get(&number)
            .map(|running| running.slots.values().map(|slot| Arc::clone(&slot.proc)).collect())
            .unwrap_or_default();
        let context = self.running.get(&number).map(|running| running.context.clone());
        self.do_blocking(panicked(Event::Unproven(number)), move |shared| {
            // No slot of it starts again behind the proof.
            if let Some(context) = context {
                context.end(Ended::Superseded);
            }
            match end_all(shared, number, &procs) {
                Ok(()) => Input::Event(Event::Proven(number), None),
                Err(error) => Input::Event(Event::Unproven(number), Some(error)),
            }
        });
    }

    pub(super) fn rest(&mut self) {
        if let Some(earlier) = self.resting.take() {
            earlier.abort();
        }
        let wait = self.backoff.next(Instant::now());
        self.resting = Some(self.after(wait, Event::Rested));
    }

    pub(super) fn adopt(&mut self, member: Member<Staged>) {
        self.do_blocking(panicked(Event::Died(member.number)), move |shared| {
            let number = member.number;
            match adopt_all(shared, &member) {
                Ok(Some((generation, procs))) => Input::Adopted(number, generation, procs),
                Ok(None) => Input::Event(Event::Died(number), None),
                Err(error) => Input::Event(Event::Died(number), Some(error)),
            }
        });
    }
}

/// What an action says whose work panicked: never that it was done, nor that nothing was.
fn panicked(event: Event<Staged>) -> Input {
    let error = Error::new(Kind::Io, "a task of the activator panicked: its log says where");
    Input::Event(event, Some(error))
}
