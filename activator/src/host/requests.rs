//! What is asked of a host, and what is answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::{Actor, Answer, Ask, Input, KILL, Waiter, blocking};
use crate::error::{Error, Kind};
use crate::gate::{Context, Ended};
use crate::name::{BuildName, GenerationNumber};
use crate::staged::{self, Staged};
use crate::swap::{Attempt, Event, Outcome, Request, State, Want, Why};

impl Actor {
    pub(super) async fn asked(
        &mut self,
        ask: Ask,
        deadline: Option<Duration>,
        context: Context,
        reply: oneshot::Sender<Answer>,
    ) {
        let hold = match &ask {
            Ask::Hold(build) => Some(build.clone()),
            _ => None,
        };
        let want = match self.want(ask).await {
            Ok(want) => want,
            Err(error) => {
                let outcome = match self.swap.serves() {
                    Some(serves) => Outcome::Unchanged { serves, why: Why::Denied },
                    None => Outcome::NothingServes { why: Why::Denied },
                };
                let _gone = reply.send(self.answer_with(outcome, Some(error)));
                return;
            }
        };
        // What serves is only pinned; while another is on its way, this request takes its place.
        if let Some(build) = &hold
            && self.swap.state() == State::Serving
            && let Some(serves) = self.serves_as(build)
        {
            let (outcome, error) = match self.pin(Some(build.clone())).await {
                Ok(_) if self.swap.record().leaving.is_empty() => (Outcome::Done(serves), None),
                Ok(_) => (Outcome::Unproven { serves: Some(serves) }, None),
                Err(error) => (Outcome::Unchanged { serves, why: Why::Unsaved }, Some(error)),
            };
            let _gone = reply.send(self.answer_with(outcome, error));
            return;
        }
        let patience = deadline.unwrap_or(self.shared.settings.start_deadline);
        let waiter = Waiter { reply, patience, context, hold, holds: Vec::new() };
        // What is on its way to serve is pinned once it does.
        if waiter.hold.is_some()
            && let Want::Swap(build) = &want
            && let Some(swap) = self.on_its_way(build)
        {
            swap.holds.push(waiter);
            return;
        }
        let attempt = {
            let mut store = self.shared.store();
            store.attempt += 1;
            Attempt(store.attempt)
        };
        self.waiters.insert(attempt, waiter);
        self.step(Event::Asked(Request { attempt, want })).await;
        if self.swap.superseded() {
            self.end_context(Ended::Superseded).await;
        }
    }

    /// The request whose swap to this build is under way, where one is.
    fn on_its_way(&mut self, build: &Staged) -> Option<&mut Waiter> {
        let (attempt, upcoming) = self.swap.upcoming()?;
        let same = upcoming == build;
        self.waiters.get_mut(&attempt).filter(|_| same)
    }

    /// The generation that serves, where it is of this build.
    fn serves_as(&self, build: &BuildName) -> Option<GenerationNumber> {
        let current = self.swap.record().current.as_ref()?;
        self.swap.serves().filter(|_| current.build.name == *build)
    }

    async fn pin(&self, build: Option<BuildName>) -> Result<Option<BuildName>, Error> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.set(|state| &mut state.hold, build)).await
    }

    pub(super) async fn release(&mut self) -> Result<Option<BuildName>, Error> {
        // Also of what is still on its way to being held.
        for waiter in self.waiters.values_mut() {
            waiter.hold = None;
            waiter.holds.iter_mut().for_each(|hold| hold.hold = None);
        }
        self.pin(None).await
    }

    /// What the machine is asked for.
    pub(super) async fn want(&self, ask: Ask) -> Result<Want<Staged>, Error> {
        let shared = Arc::clone(&self.shared);
        let current = self.swap.record().current.as_ref().map(|member| member.build.clone());
        let good = self.swap.record().good.clone();
        blocking(move || {
            let route = shared.route();
            let capture = |name: &BuildName| {
                shared.choices.choose();
                staged::capture(&route.builds, name, &route.tier)
            };
            let host = &route.host;
            let held = shared.store().hold.clone();
            let name = current.as_ref().map(|build| &build.name);
            Ok(match ask {
                Ask::Swap(build) => {
                    shared.is_free_for(&build)?;
                    Want::Swap(capture(&build)?)
                }
                Ask::Rollback => {
                    let before = shared.store().before(name).cloned();
                    let build = before.ok_or_else(|| {
                        Error::new(Kind::Unknown, format!("{host}: no other build has served yet"))
                    })?;
                    shared.is_free_for(&build)?;
                    Want::Swap(capture(&build)?)
                }
                // The very build that serves, as it was captured.
                Ask::Restart => match current.or(good) {
                    Some(build) => Want::Swap(build),
                    None => {
                        return Err(Error::new(
                            Kind::Unknown,
                            format!("{host}: nothing has served yet: deploy a build"),
                        ));
                    }
                },
                Ask::Stop => Want::Stop,
                Ask::Wake => match &held {
                    Some(hold) => Want::Wake(capture(hold)?),
                    None => {
                        let live = shared.directory.live_build()?.ok_or_else(|| {
                            Error::new(
                                Kind::Unknown,
                                format!("{host}: nothing was ever deployed: deploy a build"),
                            )
                        })?;
                        Want::Wake(Staged { live: true, ..capture(&live)? })
                    }
                },
                Ask::Hold(build) => Want::Swap(capture(&build)?),
            })
        })
        .await
    }

    pub(super) async fn fence(&mut self, reason: Option<String>) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let set = reason.is_some();
        blocking(move || {
            shared.set(|state| &mut state.fence, reason.clone())?;
            shared.backend.fence(&shared.route().host, reason.as_deref());
            Ok(())
        })
        .await?;
        if set {
            self.revoke(Ended::Fenced).await;
        } else {
            self.allow().await;
        }
        Ok(())
    }

    /// Revokes the start under way. It waits for a go that is: what has not run then never will.
    pub(super) async fn end_context(&self, why: Ended) {
        let context = self.context.clone();
        let _joined = spawn_blocking(move || context.end(why)).await;
    }

    /// `unsaved`: why the record is not durable.
    pub(super) async fn answer(
        &mut self,
        attempt: Attempt,
        outcome: Outcome,
        unsaved: Option<Error>,
    ) {
        let waiter = self.waiters.remove(&attempt);
        let hold = waiter.as_ref().and_then(|waiter| waiter.hold.clone());
        let unsaved = match outcome {
            // Of a stop the record is all that keeps the next activator from starting it again.
            Outcome::Stopped | Outcome::Unproven { serves: None } => unsaved,
            Outcome::Done(_) | Outcome::Unproven { .. } => match hold {
                Some(build) if self.serves_as(&build).is_some() => {
                    self.pin(Some(build)).await.err()
                }
                _ => None,
            },
            _ => None,
        };
        let outcome = match unsaved {
            Some(error) => {
                self.problem = Some(error);
                Outcome::Unknown { serves: outcome.serves(), why: Why::Unsaved }
            }
            None => outcome,
        };
        let problem = match outcome {
            Outcome::Done(_) | Outcome::Stopped => {
                self.problem = None;
                None
            }
            _ => self.problem.take(),
        };
        let answer = self.answer_with(outcome, problem);
        let Some(mut waiter) = waiter else { return };
        for hold in std::mem::take(&mut waiter.holds) {
            self.answer_hold(hold, &answer, waiter.context.ended().is_some()).await;
        }
        if outcome == Outcome::Stopped {
            // Its sidecar is part of a host.
            let mut left = self.sidecar_left.clone();
            let wait = KILL + self.shared.settings.drain;
            tokio::spawn(async move {
                let gone = left.wait_for(|left| *left);
                let answer = match tokio::time::timeout(wait, gone).await {
                    Ok(Ok(_)) => answer,
                    _ => Answer { outcome: Outcome::Unproven { serves: None }, ..answer },
                };
                let _gone = waiter.reply.send(answer);
            });
            return;
        }
        let _gone = waiter.reply.send(answer);
    }

    /// Answers a hold of what another request swapped to, as that was answered. Where only the other
    /// was taken back, it is asked again for itself.
    async fn answer_hold(&self, waiter: Waiter, other: &Answer, taken_back: bool) {
        let Waiter { reply, patience, context, hold, .. } = waiter;
        let mut answer = other.clone();
        if let Some(build) = hold.filter(|_| context.ended().is_none()) {
            if self.serves_as(&build).is_some() {
                if let Err(error) = self.pin(Some(build)).await {
                    let serves = answer.outcome.serves();
                    answer.outcome = Outcome::Unknown { serves, why: Why::Unsaved };
                    answer.error = Some(error);
                }
            } else if taken_back && !self.swap.superseded() {
                let (ask, deadline) = (Ask::Hold(build), Some(patience));
                let _own = self.inbox.send(Input::Ask { ask, deadline, context, reply });
                return;
            }
        }
        let _gone = reply.send(answer);
    }

    pub(super) fn answer_with(&self, outcome: Outcome, error: Option<Error>) -> Answer {
        let current = self.swap.record().current.as_ref();
        let build = outcome
            .serves()
            .and_then(|serves| current.filter(|current| current.number == serves))
            .map(|current| current.build.name.clone());
        Answer { outcome, error, build }
    }
}
