//! The swap: how one host's generations start, take over, leave and come back after a crash.
//!
//! One pure state machine: what was observed goes in as an [`Event`], what is to be done comes out
//! as [`Action`]s. No I/O, no clock, no task; the driver has those. `tests/model.rs` explores this
//! very machine.
//!
//! # States
//!
//! Keep the diagram and [`State`] in step: a test compares the names, and the model compares every
//! edge with what it walked through.
//!
//! ```text
//! Asleep     --> Admitting:  swap or wake
//! Asleep     --> Stopping:   stop
//! Admitting  --> Clearing:   admitted; stop-then-start sends the incumbent away first
//! Admitting  --> Raising:    there is room
//! Admitting  --> Restoring:  refused, the incumbent serves on, the parent is too wide
//! Admitting  --> Retiring:   refused, an older generation still leaves
//! Admitting  --> Serving:    refused, the incumbent serves on
//! Admitting  --> Resting:    refused, nothing serves
//! Admitting  --> Asleep:     refused, and no build was ever healthy
//! Admitting  --> Stopping:   stopped
//! Clearing   --> Raising:    at most one other generation is left
//! Clearing   --> Admitting:  superseded, or no room and the last healthy build instead
//! Clearing   --> Serving:    another generation is not proven gone
//! Clearing   --> Resting:    nothing serves and none is proven gone
//! Clearing   --> Asleep:     the same, and no build was ever healthy
//! Clearing   --> Stopping:   stopped
//! Raising    --> Starting:   the parent carries both
//! Raising    --> Admitting:  superseded, or refused and the last healthy build instead
//! Raising    --> Restoring:  refused, the incumbent serves on
//! Raising    --> Retiring:   refused, an older generation still leaves
//! Raising    --> Resting:    refused, nothing serves
//! Raising    --> Asleep:     refused, and no build was ever healthy
//! Raising    --> Stopping:   stopped
//! Starting   --> Warming:    the process runs
//! Starting   --> Retiring:   it may have run: killed
//! Starting   --> Restoring:  nothing ran, the incumbent serves on
//! Starting   --> Admitting:  superseded, or failed and the last healthy build instead
//! Starting   --> Resting:    failed, nothing serves
//! Starting   --> Asleep:     failed, and no build was ever healthy
//! Starting   --> Stopping:   stopped
//! Warming    --> Switching:  ready
//! Warming    --> Retiring:   died or never ready: killed, the incumbent serves on
//! Warming    --> Admitting:  superseded, or failed and the last healthy build instead
//! Warming    --> Stopping:   stopped
//! Switching  --> Retiring:   switched, or the link refused
//! Switching  --> Repointing: switched to one that has died
//! Switching  --> Restoring:  switched, and nothing has to leave
//! Switching  --> Serving:    switched, and nothing has to leave or be restored
//! Switching  --> Admitting:  failed, a newer request or the last healthy build instead
//! Switching  --> Resting:    failed, nothing serves
//! Switching  --> Asleep:     failed, and no build was ever healthy
//! Switching  --> Stopping:   stopped
//! Repointing --> Retiring:   the link names the incumbent
//! Repointing --> Restoring:  the link names the incumbent, and nothing has to leave
//! Repointing --> Serving:    the link names the incumbent, and nothing has to leave or be restored
//! Repointing --> Admitting:  the incumbent died, a newer request or the last healthy build instead
//! Repointing --> Resting:    the link refused, or the incumbent died
//! Repointing --> Asleep:     stopped, and nothing is left
//! Repointing --> Stopping:   stopped
//! Retiring   --> Repointing: the new one died while the old one still serves
//! Retiring   --> Restoring:  every other generation is proven gone
//! Retiring   --> Serving:    done, or one is not proven gone
//! Retiring   --> Admitting:  a newer request
//! Retiring   --> Resting:    the incumbent died
//! Retiring   --> Asleep:     failed or stopped, and nothing is left
//! Retiring   --> Stopping:   stopped
//! Restoring  --> Serving:    the parent has the incumbent's tier
//! Restoring  --> Admitting:  a newer request
//! Restoring  --> Resting:    the incumbent died
//! Restoring  --> Asleep:     stopped, and nothing is left
//! Restoring  --> Stopping:   stopped
//! Serving    --> Admitting:  swap, or a red verdict
//! Serving    --> Retiring:   one not proven gone is killed once more
//! Serving    --> Restoring:  the parent is still too wide
//! Serving    --> Resting:    the incumbent died
//! Serving    --> Stopping:   stop
//! Resting    --> Admitting:  rested, or asked
//! Resting    --> Repointing: rested, and the link does not name the incumbent yet
//! Resting    --> Retiring:   one that was not linked yet died
//! Resting    --> Asleep:     stopped, and nothing is left
//! Resting    --> Stopping:   stop
//! Stopping   --> Asleep:     none is left, or none can be proven gone
//! Stopping   --> Admitting:  a newer request
//! Recovering --> Repointing: the incumbent, or the one before it, still runs
//! Recovering --> Warming:    only the successor still runs
//! Recovering --> Resting:    nothing runs
//! Recovering --> Asleep:     nothing runs or should
//! Recovering --> Stopping:   it was being stopped
//! Recovering --> Admitting:  nothing runs, and something is asked
//! ```
//!
//! From every state a lost lease leads to `Disowned`, and a crash to `Recovering`.
//!
//! # What a driver owes it
//!
//! * After each [`Swap::step`], and before it does what came out, it makes [`Swap::record`] durable
//!   (if that changed). Where that fails, it does nothing of it that starts or changes something,
//!   and answers with that action's refusal. An [`Event::Admitted`] without overlap, after which the
//!   incumbent ends, is then [`Event::Denied`] instead.
//! * It does the actions in their order, and answers each with one of the events that the action
//!   names. An answer may come late; one that is no longer of interest is ignored here.
//! * [`Event::Died`] follows the generation's [`Event::Started`] or [`Event::Adopted`], once, and
//!   may come at any later time.
//! * After a crash, or when it gets the lease of a host that another held: [`Swap::recover`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::GenerationNumber;

/// Where a host is. What each waits for is what lets it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Nothing serves and nothing is to. Waits for a request.
    Asleep,
    /// The layout is asked. Waits for [`Event::Admitted`] or [`Event::Denied`].
    Admitting,
    /// Too many generations are left for one more. Waits for proofs.
    Clearing,
    /// The parent's limit is being raised. Waits for [`Event::Raised`] or [`Event::RaiseRefused`].
    Raising,
    /// The successor is being started. Waits for one of the five outcomes of [`Action::Start`].
    Starting,
    /// The successor runs. Waits until it is ready, died, or its time is over.
    Warming,
    /// The canonical path is being pointed at the successor. Waits for the link.
    Switching,
    /// The canonical path is being pointed back at the incumbent. Waits for the link.
    Repointing,
    /// The incumbent serves, others leave. Waits for their proofs.
    Retiring,
    /// The parent gets the incumbent's own tier. Waits for [`Event::Restored`] or its refusal.
    Restoring,
    /// The incumbent serves.
    Serving,
    /// Nothing serves although something should. Waits for [`Event::Rested`].
    Resting,
    /// All leave. Waits for their proofs.
    Stopping,
    /// After a crash: what is recorded is looked for. Waits for what was found of each.
    Recovering,
    /// The lease is lost: the host is another activator's. Waits for nothing, does nothing.
    Disowned,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Asleep => "asleep",
            State::Admitting => "admitting",
            State::Clearing => "clearing",
            State::Raising => "raising",
            State::Starting => "starting",
            State::Warming => "warming",
            State::Switching => "switching",
            State::Repointing => "repointing",
            State::Retiring => "retiring",
            State::Restoring => "restoring",
            State::Serving => "serving",
            State::Resting => "resting",
            State::Stopping => "stopping",
            State::Recovering => "recovering",
            State::Disowned => "disowned",
        })
    }
}

/// Where a generation is that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// It serves on for a moment, for clients that resolved the path before the switch.
    Settling,
    /// It was told to end, and works off what it has.
    Draining,
    /// Whatever is left of it is killed; the proof is awaited.
    Proving,
    /// It is not proven gone: it counts as alive.
    Unproven,
}

/// The number of a request, counted by the driver; a newer one supersedes an older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub u64);

/// What is asked of a host. `B` is a build as it was captured when it was asked for: the machine
/// compares it and hands it back, nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request<B> {
    /// Its number. One that is not above every earlier one is superseded at once.
    pub attempt: Attempt,
    /// What.
    pub want: Want<B>,
}

/// What a request wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want<B> {
    /// This build, by a generation of its own; also what serves already (a restart).
    Swap(B),
    /// Something that serves: whatever does, or else this build. It never cuts an attempt short.
    Wake(B),
    /// Nothing.
    Stop,
}

/// One copy of a build.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member<B> {
    /// Its number: recorded before it starts, and never given twice.
    pub number: GenerationNumber,
    /// What it runs.
    pub build: B,
    /// It has been ready once.
    pub ready: bool,
}

/// A generation that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leaving<B> {
    /// Which.
    pub member: Member<B>,
    /// How far it is.
    pub stage: Stage,
}

/// Something observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<B> {
    /// Someone asks.
    Asked(Request<B>),
    /// The layout has generation paths (`overlap`), or has none, or the host is set to stop-then-start.
    Admitted {
        /// Two generations may serve at once.
        overlap: bool,
    },
    /// The layout refuses: fenced, in conflict, or a unit's row.
    Denied,
    /// The parent's limit carries both.
    Raised,
    /// It could not be raised.
    RaiseRefused,
    /// The process runs. It says nothing of its health.
    Started(GenerationNumber),
    /// The gate refused, at the last point before exec: nothing ran.
    Refused(GenerationNumber),
    /// It could not be started: nothing ran.
    Failed(GenerationNumber),
    /// Nothing says whether it ran. The driver keeps the handle, if there is one.
    MayHaveRun(GenerationNumber),
    /// It ran, was killed, and the kill is not proven. The same of the handle.
    KillUnproven(GenerationNumber),
    /// Its verdict is healthy, and its socket accepts.
    Ready(GenerationNumber),
    /// The time to become ready is over: the caller's deadline, or the host's where nobody asked.
    Overdue(GenerationNumber),
    /// Its leader has ended. That says nothing of what it forked.
    Died(GenerationNumber),
    /// The verdict was red often enough in a row, and the backoff is over.
    Red(GenerationNumber),
    /// The canonical path names it.
    Switched(GenerationNumber),
    /// The link failed; the canonical path is as it was.
    SwitchRefused(GenerationNumber),
    /// The time to settle is over.
    Settled(GenerationNumber),
    /// The time to drain is over.
    Drained(GenerationNumber),
    /// It is proven empty.
    Proven(GenerationNumber),
    /// It could not be proven empty.
    Unproven(GenerationNumber),
    /// The parent has the tier it was given.
    Restored,
    /// It could not be set.
    RestoreRefused,
    /// The backoff is over.
    Rested,
    /// A recorded generation runs, and is in hand again.
    Adopted(GenerationNumber),
    /// The lock on the state directory is not held any more.
    LeaseLost,
}

/// Something to be done; its answers follow each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<B> {
    /// Ask the generations' view of the layout. [`Event::Admitted`], [`Event::Denied`].
    Admit {
        /// Of this build.
        build: B,
    },
    /// Give the parent what both need. [`Event::Raised`], [`Event::RaiseRefused`].
    Raise {
        /// The one that is there already, if any.
        over: Option<Member<B>>,
        /// The one that is to start.
        successor: Member<B>,
    },
    /// Start it from what was staged: prepare, ask the gate, record, ask the gate, go.
    /// [`Event::Started`], [`Event::Refused`], [`Event::Failed`], [`Event::MayHaveRun`],
    /// [`Event::KillUnproven`].
    Start(Member<B>),
    /// Watch for its health. [`Event::Ready`] or [`Event::Overdue`]. Nobody waits any more once the
    /// state is not [`State::Warming`].
    Await(Member<B>),
    /// Point the canonical path at it (and widen its socket, and purge). [`Event::Switched`],
    /// [`Event::SwitchRefused`]. A host without a socket switches by saying so.
    Switch(GenerationNumber),
    /// Remove the canonical link if it names this one, and only then; `None`, any generation of
    /// this host, be it long gone. No answer.
    Unlink(Option<GenerationNumber>),
    /// Start the time to settle; an earlier one of it is dropped. [`Event::Settled`].
    Settle(GenerationNumber),
    /// Tell it to end, and start the time to drain. [`Event::Drained`], and [`Event::Died`] once it
    /// has ended.
    Term(GenerationNumber),
    /// Kill whatever is left of it, and prove that nothing is. What left by itself is only proven:
    /// `populated` is read first. [`Event::Proven`], [`Event::Unproven`].
    Kill(GenerationNumber),
    /// Give the parent this one's tier alone. [`Event::Restored`], [`Event::RestoreRefused`].
    Restore(Member<B>),
    /// Start the backoff (which may be zero); an earlier one is dropped. [`Event::Rested`].
    Rest,
    /// Look for a recorded generation. [`Event::Adopted`], or [`Event::Died`] where its leader is
    /// not there.
    Adopt(Member<B>),
    /// The request is done with. No answer.
    Answer(Attempt, Outcome),
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// This generation serves, as asked; every other is proven gone.
    Done(GenerationNumber),
    /// Nothing runs, as asked, and that is proven.
    Stopped,
    /// The attempt failed, and left nothing.
    Unchanged {
        /// The generation that serves.
        serves: GenerationNumber,
        /// Why the attempt failed.
        why: Why,
    },
    /// It is as asked, but an older generation is not proven gone.
    Unproven {
        /// The generation that serves; none after a stop.
        serves: Option<GenerationNumber>,
    },
    /// The attempt failed, and something of it may be left.
    Unknown {
        /// The generation that serves.
        serves: Option<GenerationNumber>,
        /// Why the attempt failed.
        why: Why,
    },
    /// Nothing serves.
    NothingServes {
        /// Why the attempt failed.
        why: Why,
    },
}

impl Outcome {
    /// The status with which a command exits that has this answer.
    #[must_use]
    pub fn exit(self) -> u8 {
        match self {
            Outcome::Done(_) | Outcome::Stopped => 0,
            Outcome::Unchanged { .. } => 1,
            Outcome::Unproven { .. } => 3,
            Outcome::Unknown { .. } => 4,
            Outcome::NothingServes { .. } => 5,
        }
    }

    /// The generation that serves.
    #[must_use]
    pub fn serves(self) -> Option<GenerationNumber> {
        match self {
            Outcome::Done(serves) | Outcome::Unchanged { serves, .. } => Some(serves),
            Outcome::Unproven { serves } | Outcome::Unknown { serves, .. } => serves,
            Outcome::Stopped | Outcome::NothingServes { .. } => None,
        }
    }
}

/// Why an attempt failed. The driver keeps the error that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The layout refused.
    Denied,
    /// An earlier generation is not proven gone, so that there is no room for one more.
    NoRoom,
    /// The parent's limit could not be raised.
    Raise,
    /// The gate refused the start.
    Refused,
    /// It could not be started.
    Failed,
    /// Nothing says whether it ran.
    MayHaveRun,
    /// It ran and was killed before it was handed over.
    Killed,
    /// It was not ready in time.
    NeverReady,
    /// It died.
    Died,
    /// The canonical path could not be pointed at it.
    Switch,
    /// A newer request took its place.
    Superseded,
    /// The lease was lost.
    Lease,
    /// How it ended could not be recorded. The driver says so, never the machine.
    Unsaved,
}

/// What must survive a crash: written before anything is done that it speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<B> {
    /// The number of the next generation.
    pub next: GenerationNumber,
    /// Something should serve.
    pub wanted: bool,
    /// The build that was healthy last.
    pub good: Option<B>,
    /// The incumbent.
    pub current: Option<Member<B>>,
    /// The one that may have been started.
    pub successor: Option<Member<B>>,
    /// Those that leave.
    pub leaving: Vec<Leaving<B>>,
    /// The parent may be wider than the incumbent's tier.
    pub raised: bool,
    /// What the canonical path names, unless a switch was under way.
    pub link: Option<GenerationNumber>,
}

impl<B> Default for Record<B> {
    fn default() -> Record<B> {
        Record {
            next: GenerationNumber::FIRST,
            wanted: false,
            good: None,
            current: None,
            successor: None,
            leaving: Vec::new(),
            raised: false,
            link: None,
        }
    }
}

/// What is being tried, for whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Trial<B> {
    /// `None`: nobody asked, the host restarts by itself.
    asked: Option<Attempt>,
    build: B,
    /// Generations that may be there beside the successor.
    beside: usize,
    successor: Option<GenerationNumber>,
    end: End,
    /// The last healthy build is tried, because this happened to the one that was asked for.
    instead: Option<Why>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Open,
    Switched,
    Failed(Why),
}

/// The machine of one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Swap<B> {
    state: State,
    record: Record<B>,
    trial: Option<Trial<B>>,
    /// The stop that is being done.
    stop: Option<Attempt>,
    /// The newest request, if its turn has not come.
    next: Option<Request<B>>,
    newest: Attempt,
    /// The canonical path is as recorded: no crash lies in between.
    sure: bool,
    /// While recovering: not yet looked for, and found alive.
    lost: Vec<GenerationNumber>,
    found: Vec<GenerationNumber>,
}

type Actions<B> = Vec<Action<B>>;

impl<B: Clone + PartialEq> Default for Swap<B> {
    fn default() -> Swap<B> {
        Swap::new()
    }
}

impl<B: Clone + PartialEq> Swap<B> {
    /// A host that has never run.
    #[must_use]
    pub fn new() -> Swap<B> {
        Swap {
            state: State::Asleep,
            record: Record::default(),
            trial: None,
            stop: None,
            next: None,
            newest: Attempt::default(),
            sure: true,
            lost: Vec::new(),
            found: Vec::new(),
        }
    }

    /// A host as it was recorded, and what is to be looked for.
    #[must_use]
    pub fn recover(record: Record<B>) -> (Swap<B>, Vec<Action<B>>) {
        let mut swap = Swap { record, sure: false, ..Swap::new() };
        let actions: Actions<B> = swap.members().cloned().map(Action::Adopt).collect();
        swap.lost = swap.members().map(|member| member.number).collect();
        swap.state = State::Recovering;
        if swap.lost.is_empty() {
            let mut actions = Vec::new();
            swap.recovered(&mut actions);
            return (swap, actions);
        }
        (swap, actions)
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// What must be durable before the actions of the last step are done.
    #[must_use]
    pub fn record(&self) -> &Record<B> {
        &self.record
    }

    /// The generation that the canonical path names, if that is the incumbent.
    #[must_use]
    pub fn serves(&self) -> Option<GenerationNumber> {
        let current = self.record.current.as_ref()?;
        (self.sure && self.record.link == Some(current.number)).then_some(current.number)
    }

    /// The attempt that is under way. The gate refuses a start whose attempt is not this one any more,
    /// or that [`Swap::superseded`] has overtaken.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        self.trial.as_ref().and_then(|trial| trial.asked).or(self.stop)
    }

    /// The attempt under way and the build that serves if it succeeds, where nothing newer is asked.
    #[must_use]
    pub fn upcoming(&self) -> Option<(Attempt, &B)> {
        let trial = self.trial.as_ref().filter(|trial| trial.instead.is_none())?;
        let open = self.next.is_none() && !matches!(trial.end, End::Failed(_));
        trial.asked.filter(|_| open).map(|attempt| (attempt, &trial.build))
    }

    /// What happened to the build that was asked for, where the last healthy one is tried instead.
    #[must_use]
    pub fn instead(&self) -> Option<Why> {
        self.trial.as_ref().and_then(|trial| trial.instead)
    }

    /// A newer request waits that cuts the one under way short.
    #[must_use]
    pub fn superseded(&self) -> bool {
        self.next.as_ref().is_some_and(|next| !matches!(next.want, Want::Wake(_)))
    }

    /// Every generation that is not proven gone: two at most.
    pub fn members(&self) -> impl Iterator<Item = &Member<B>> {
        let Record { current, successor, leaving, .. } = &self.record;
        current.iter().chain(successor).chain(leaving.iter().map(|leaving| &leaving.member))
    }

    /// Every build that runs, is being tried or waits for its turn, or was healthy last.
    pub fn builds(&self) -> impl Iterator<Item = &B> {
        let waits = self.next.as_ref().and_then(|next| match &next.want {
            Want::Swap(build) | Want::Wake(build) => Some(build),
            Want::Stop => None,
        });
        let tried = self.trial.as_ref().map(|trial| &trial.build);
        let members = self.members().map(|member| &member.build);
        members.chain(tried).chain(waits).chain(&self.record.good)
    }

    /// One observation in, what to do about it out.
    #[must_use = "the actions are what must happen"]
    pub fn step(&mut self, event: Event<B>) -> Vec<Action<B>> {
        let mut actions = Vec::new();
        let out = &mut actions;
        if self.state == State::Disowned {
            if let Event::Asked(request) = event {
                let outcome = Outcome::Unknown { serves: None, why: Why::Lease };
                out.push(Action::Answer(request.attempt, outcome));
            }
            return actions;
        }
        match event {
            Event::Asked(request) => self.asked(request, out),
            Event::Admitted { overlap } => self.admitted(overlap, out),
            Event::Denied => self.answered(State::Admitting, Why::Denied, out),
            Event::Raised => self.raised(out),
            Event::RaiseRefused => {
                if self.state == State::Raising {
                    self.record.successor = None;
                    self.answered(State::Raising, Why::Raise, out);
                }
            }
            Event::Started(number) => self.started(number, out),
            Event::Refused(number) => self.not_started(number, Why::Refused, out),
            Event::Failed(number) => self.not_started(number, Why::Failed, out),
            Event::MayHaveRun(number) => self.not_started(number, Why::MayHaveRun, out),
            Event::KillUnproven(number) => self.not_started(number, Why::Killed, out),
            Event::Ready(number) => self.ready(number, out),
            Event::Overdue(number) => {
                if self.state == State::Warming && self.is_successor(number) {
                    self.discard(out);
                    self.fail(Why::NeverReady, out);
                }
            }
            Event::Died(number) => self.died(number, out),
            Event::Red(number) => self.red(number, out),
            Event::Switched(number) => self.switched(number, out),
            Event::SwitchRefused(number) => self.switch_refused(number, out),
            Event::Settled(number) => {
                if let Some(leaving) = self.leaving(number)
                    && leaving.stage == Stage::Settling
                {
                    leaving.stage = Stage::Draining;
                    out.push(Action::Term(number));
                }
            }
            Event::Drained(number) => {
                if let Some(leaving) = self.leaving(number)
                    && leaving.stage == Stage::Draining
                {
                    leaving.stage = Stage::Proving;
                    out.push(Action::Kill(number));
                }
            }
            Event::Proven(number) => {
                self.record.leaving.retain(|leaving| leaving.member.number != number);
                self.left(out);
            }
            Event::Unproven(number) => {
                if let Some(leaving) = self.leaving(number) {
                    leaving.stage = Stage::Unproven;
                    self.left(out);
                }
            }
            Event::Restored | Event::RestoreRefused => {
                if self.state == State::Restoring {
                    self.record.raised &= event != Event::Restored;
                    self.conclude(out);
                }
            }
            Event::Rested => self.rested(out),
            Event::Adopted(number) => {
                if self.state == State::Recovering && self.lost.contains(&number) {
                    self.found.push(number);
                    self.looked_for(number, out);
                }
            }
            Event::LeaseLost => self.disowned(out),
        }
        actions
    }

    fn asked(&mut self, request: Request<B>, out: &mut Actions<B>) {
        if request.attempt <= self.newest {
            out.push(Action::Answer(request.attempt, self.failed(Why::Superseded)));
            return;
        }
        self.newest = request.attempt;
        if let Some(older) = self.next.replace(request) {
            out.push(Action::Answer(older.attempt, self.failed(Why::Superseded)));
        }
        match self.state {
            State::Asleep | State::Serving | State::Resting => self.decide(out),
            State::Clearing | State::Warming if self.superseded() => self.abandon(out),
            // What leaves must be gone before another can start, but nobody waits for it to stop.
            State::Retiring if matches!(&self.next, Some(next) if next.want == Want::Stop) => {
                self.conclude(out);
            }
            // Each of the others has an answer to wait for, or cannot be cut short.
            _ => {}
        }
    }

    /// What comes next, where nothing is under way.
    fn decide(&mut self, out: &mut Actions<B>) {
        let astray = self.record.current.is_some() && self.serves().is_none();
        match self.next.take() {
            Some(Request { attempt, want: Want::Stop }) => self.stop(Some(attempt), out),
            Some(next) if astray => {
                self.next = Some(next);
                self.repoint(out);
            }
            Some(Request { attempt, want: Want::Swap(build) }) => {
                self.begin(Some(attempt), build, None, out);
            }
            Some(Request { attempt, want: Want::Wake(build) }) => match self.serves() {
                Some(number) => {
                    out.push(Action::Answer(attempt, self.done(number)));
                    self.decide(out);
                }
                None => self.begin(Some(attempt), build, None, out),
            },
            None if astray => self.repoint(out),
            None if self.record.current.is_some() => {
                self.state = State::Serving;
                if !self.record.leaving.is_empty() || self.record.raised {
                    out.push(Action::Rest);
                }
            }
            None if self.record.wanted && self.record.good.is_some() => {
                self.state = State::Resting;
                out.push(Action::Rest);
            }
            None => {
                self.state = State::Asleep;
                if !self.record.leaving.is_empty() {
                    out.push(Action::Rest);
                }
            }
        }
    }

    fn begin(
        &mut self,
        asked: Option<Attempt>,
        build: B,
        instead: Option<Why>,
        out: &mut Actions<B>,
    ) {
        self.record.wanted = true;
        // What is tried again by itself is tried as it was asked for last.
        if let Some(good) = self.record.good.as_mut().filter(|good| **good == build) {
            good.clone_from(&build);
        }
        self.trial = Some(Trial {
            asked,
            build: build.clone(),
            beside: 1,
            successor: None,
            end: End::Open,
            instead,
        });
        self.state = State::Admitting;
        out.push(Action::Admit { build });
    }

    fn admitted(&mut self, overlap: bool, out: &mut Actions<B>) {
        if self.state != State::Admitting {
            return;
        }
        if self.superseded() {
            return self.abandon(out);
        }
        if !overlap {
            self.trial.as_mut().expect("a trial is under way").beside = 0;
            self.send_all_away(out);
        }
        self.state = State::Clearing;
        self.prove_again(out);
        self.make_room(out);
    }

    /// Goes on once there is room for a successor, or cannot be.
    fn make_room(&mut self, out: &mut Actions<B>) {
        let beside = self.trial.as_ref().expect("a trial is under way").beside;
        if self.members().count() <= beside {
            let trial = self.trial.as_mut().expect("a trial is under way");
            let number = self.record.next;
            trial.successor = Some(number);
            let successor = Member { number, build: trial.build.clone(), ready: false };
            let over = self.members().next().cloned();
            self.record.next = number.next();
            self.record.raised |= over.is_some();
            self.record.successor = Some(successor.clone());
            self.state = State::Raising;
            out.push(Action::Raise { over, successor });
        } else if !self.some_leave() {
            self.fail(Why::NoRoom, out);
        }
    }

    fn raised(&mut self, out: &mut Actions<B>) {
        if self.state != State::Raising {
            return;
        }
        if self.superseded() {
            self.record.successor = None;
            return self.abandon(out);
        }
        self.state = State::Starting;
        out.extend(self.record.successor.clone().map(Action::Start));
    }

    fn started(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        if self.state != State::Starting || !self.is_successor(number) {
            return;
        }
        if self.superseded() {
            return self.abandon(out);
        }
        self.state = State::Warming;
        out.extend(self.record.successor.clone().map(Action::Await));
    }

    fn not_started(&mut self, number: GenerationNumber, why: Why, out: &mut Actions<B>) {
        if self.state != State::Starting || !self.is_successor(number) {
            return;
        }
        match why {
            Why::Refused | Why::Failed => self.record.successor = None,
            _ => self.discard(out),
        }
        self.answered(State::Starting, why, out);
    }

    fn ready(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        if self.state != State::Warming {
            return;
        }
        // Anyone else's health comes too late.
        if let Some(successor) = self.record.successor.as_mut().filter(|one| one.number == number) {
            successor.ready = true;
            self.state = State::Switching;
            out.push(Action::Switch(number));
        }
    }

    fn switched(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        match self.state {
            State::Switching => {
                self.linked(number);
                let Some(successor) = self.record.successor.take() else {
                    // It died on the way, and the path names it.
                    if let Some(trial) = &mut self.trial {
                        trial.end = End::Failed(Why::Died);
                    }
                    if self.record.current.is_some() {
                        self.repoint(out);
                    } else {
                        self.unlink(number, out);
                        self.fail(Why::Died, out);
                    }
                    return;
                };
                self.record.good = Some(successor.build.clone());
                if let Some(old) = self.record.current.replace(successor) {
                    out.push(Action::Settle(old.number));
                    self.record.leaving.push(Leaving { member: old, stage: Stage::Settling });
                }
                if let Some(trial) = &mut self.trial {
                    trial.end = End::Switched;
                }
                self.retire(out);
            }
            State::Repointing => {
                self.linked(number);
                if self.record.current.is_none() {
                    return self.bereft(out);
                }
                let settling = |leaving: &&Leaving<B>| leaving.stage == Stage::Settling;
                let settling = self.record.leaving.iter().filter(settling);
                out.extend(settling.map(|leaving| Action::Settle(leaving.member.number)));
                self.retire(out);
            }
            _ => {}
        }
    }

    fn switch_refused(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        match self.state {
            State::Switching if !self.is_successor(number) => self.fail(Why::Died, out),
            State::Switching if self.record.current.is_some() => {
                self.discard(out);
                self.fail(Why::Switch, out);
            }
            // There is nothing better to serve: it is kept, and the link tried again.
            State::Switching => {
                self.record.current = self.record.successor.take();
                self.record.good = self.record.current.as_ref().map(|it| it.build.clone());
                self.astray(out);
            }
            State::Repointing if self.record.current.is_none() => self.bereft(out),
            State::Repointing => self.astray(out),
            _ => {}
        }
    }

    /// The incumbent is ready, but the path does not lead to it.
    fn astray(&mut self, out: &mut Actions<B>) {
        let outcome = Outcome::NothingServes { why: Why::Switch };
        if let Some(attempt) = self.trial.take().and_then(|trial| trial.asked) {
            out.push(Action::Answer(attempt, outcome));
        }
        match self.next.take() {
            Some(next) if next.want == Want::Stop => {
                self.next = Some(next);
                return self.decide(out);
            }
            Some(next) => out.push(Action::Answer(next.attempt, outcome)),
            None => {}
        }
        self.state = State::Resting;
        out.push(Action::Rest);
    }

    fn died(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        if self.state == State::Recovering {
            self.found.retain(|found| *found != number);
            return self.looked_for(number, out);
        }
        if self.is_successor(number) {
            if matches!(self.state, State::Warming | State::Switching) {
                self.discard(out);
            }
            if self.state == State::Warming {
                self.fail(Why::Died, out);
            }
        } else if self.record.current.as_ref().is_some_and(|current| current.number == number) {
            let dead = self.record.current.take();
            self.kill(dead, out);
            match self.state {
                State::Serving => self.decide(out),
                State::Retiring => self.bereft(out),
                // It was not linked yet, and the backoff is for that.
                State::Resting => self.bereft(out),
                // Each of the others has an answer to wait for.
                _ => {}
            }
        } else if let Some(leaving) = self.leaving(number)
            && leaving.stage != Stage::Proving
        {
            leaving.stage = Stage::Proving;
            out.push(Action::Kill(number));
        }
    }

    /// The incumbent has died: the one before it takes its place again, if that still serves.
    fn bereft(&mut self, out: &mut Actions<B>) {
        if self.back_to_the_old() {
            if let Some(trial) = &mut self.trial {
                trial.end = End::Failed(Why::Died);
            }
            self.repoint(out);
        } else {
            self.send_all_away(out);
            self.retire(out);
        }
    }

    /// One that was ready and was not told to end yet takes its place again.
    fn back_to_the_old(&mut self) -> bool {
        let serves =
            |leaving: &Leaving<B>| leaving.stage == Stage::Settling && leaving.member.ready;
        let Some(at) = self.record.leaving.iter().position(serves) else { return false };
        let old = self.record.leaving.remove(at).member;
        self.record.good = Some(old.build.clone());
        self.record.current = Some(old);
        true
    }

    fn red(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        if self.state != State::Serving {
            return;
        }
        if let Some(current) = self.record.current.as_ref().filter(|one| one.number == number) {
            let build = current.build.clone();
            self.begin(None, build, None, out);
        }
    }

    fn rested(&mut self, out: &mut Actions<B>) {
        match self.state {
            State::Resting if self.record.current.is_some() => self.repoint(out),
            State::Resting => {
                if let Some(good) = self.record.good.clone() {
                    self.begin(None, good, None, out);
                }
            }
            State::Serving => {
                self.prove_again(out);
                self.retire(out);
            }
            State::Asleep => self.prove_again(out),
            _ => {}
        }
    }

    fn disowned(&mut self, out: &mut Actions<B>) {
        let outcome = Outcome::Unknown { serves: self.serves(), why: Why::Lease };
        let asked = self.trial.take().and_then(|trial| trial.asked);
        let waiting = self.next.take().map(|next| next.attempt);
        for attempt in [asked, self.stop.take(), waiting].into_iter().flatten() {
            out.push(Action::Answer(attempt, outcome));
        }
        self.state = State::Disowned;
    }

    /// A refusal in `state`, which waited for it.
    fn answered(&mut self, state: State, why: Why, out: &mut Actions<B>) {
        if self.state != state {
            return;
        }
        if self.superseded() { self.abandon(out) } else { self.fail(why, out) }
    }

    /// The attempt has failed: what is left of it goes first, then its answer.
    fn fail(&mut self, why: Why, out: &mut Actions<B>) {
        if let Some(trial) = &mut self.trial {
            trial.end = End::Failed(why);
        }
        self.retire(out);
    }

    /// The attempt gives way to the newer request.
    fn abandon(&mut self, out: &mut Actions<B>) {
        self.discard(out);
        if let Some(attempt) = self.trial.take().and_then(|trial| trial.asked) {
            out.push(Action::Answer(attempt, self.failed(Why::Superseded)));
        }
        self.decide(out);
    }

    /// Waits for those that leave, restores the parent, concludes.
    fn retire(&mut self, out: &mut Actions<B>) {
        self.state = State::Retiring;
        match &self.record.current {
            // What serves next waits for a kill, but not for a drain.
            None if self.some_are(Stage::Proving) => {}
            None => self.conclude(out),
            Some(_) if self.some_leave() => {}
            Some(current) if self.record.leaving.is_empty() && self.record.raised => {
                out.push(Action::Restore(current.clone()));
                self.state = State::Restoring;
            }
            Some(_) => self.conclude(out),
        }
    }

    fn conclude(&mut self, out: &mut Actions<B>) {
        if let Some(trial) = self.trial.take() {
            let serves = self.serves();
            let outcome = match (trial.end, serves) {
                (End::Switched, Some(serves)) => match trial.instead {
                    Some(why) => Outcome::Unchanged { serves, why },
                    None => self.done(serves),
                },
                (End::Failed(why), serves)
                    if trial.successor.is_some_and(|it| self.leaving(it).is_some()) =>
                {
                    Outcome::Unknown { serves, why }
                }
                (End::Failed(why), Some(serves)) => Outcome::Unchanged { serves, why },
                (End::Failed(why), None) => {
                    let good = self.record.good.clone().filter(|good| *good != trial.build);
                    if let (Some(good), None, None) = (good, trial.instead, &self.next) {
                        return self.begin(trial.asked, good, Some(why), out);
                    }
                    Outcome::NothingServes { why: trial.instead.unwrap_or(why) }
                }
                (End::Switched | End::Open, _) => Outcome::NothingServes { why: Why::Died },
            };
            out.extend(trial.asked.map(|attempt| Action::Answer(attempt, outcome)));
        }
        self.decide(out);
    }

    fn stop(&mut self, asked: Option<Attempt>, out: &mut Actions<B>) {
        self.record.wanted = false;
        self.stop = asked;
        self.state = State::Stopping;
        // Also one that is long gone: a switch may have been under way when the activator crashed.
        // The driver tells whose it is: another activator's must stay.
        out.push(Action::Unlink(None));
        self.record.link = None;
        self.sure = true;
        self.send_all_away(out);
        self.prove_again(out);
        self.left(out);
    }

    /// One that leaves has got on: whoever waits for that looks again.
    fn left(&mut self, out: &mut Actions<B>) {
        match self.state {
            State::Clearing => self.make_room(out),
            State::Retiring => self.retire(out),
            State::Stopping if !self.some_leave() => {
                let gone = self.record.leaving.is_empty();
                let outcome =
                    if gone { Outcome::Stopped } else { Outcome::Unproven { serves: None } };
                out.extend(self.stop.take().map(|attempt| Action::Answer(attempt, outcome)));
                self.decide(out);
            }
            State::Serving if self.record.leaving.is_empty() && self.record.raised => {
                self.retire(out);
            }
            State::Serving | State::Asleep
                if !self.some_leave() && !self.record.leaving.is_empty() =>
            {
                out.push(Action::Rest);
            }
            _ => {}
        }
    }

    fn repoint(&mut self, out: &mut Actions<B>) {
        self.state = State::Repointing;
        out.extend(self.record.current.as_ref().map(|current| Action::Switch(current.number)));
    }

    /// A recorded generation was looked for.
    fn looked_for(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        self.lost.retain(|lost| *lost != number);
        if self.lost.is_empty() {
            self.recovered(out);
        }
    }

    /// What the record says and what was found, put together.
    fn recovered(&mut self, out: &mut Actions<B>) {
        let found = std::mem::take(&mut self.found);
        let alive = |member: &Member<B>| found.contains(&member.number);
        for leaving in &mut self.record.leaving {
            if !alive(&leaving.member) {
                leaving.stage = Stage::Proving;
                out.push(Action::Kill(leaving.member.number));
            } else if leaving.stage != Stage::Settling {
                leaving.stage = Stage::Draining;
                out.push(Action::Term(leaving.member.number));
            }
        }
        if let Some(dead) = self.record.current.take_if(|current| !alive(current)) {
            self.kill(Some(dead), out);
        }
        if let Some(dead) = self.record.successor.take_if(|successor| !alive(successor)) {
            self.kill(Some(dead), out);
        }
        if !self.record.wanted {
            return self.stop(None, out);
        }
        if self.record.current.is_none()
            && let Some(ready) = self.record.successor.take_if(|successor| successor.ready)
        {
            // It may be linked already. If it is ill by now, its verdict will say so.
            self.record.good = Some(ready.build.clone());
            self.record.current = Some(ready);
        }
        if self.record.current.is_some() || self.back_to_the_old() {
            // The path may name the successor: it serves on until that is put right, and leaves then.
            if let Some(member) = self.record.successor.take() {
                self.record.leaving.push(Leaving { member, stage: Stage::Settling });
            }
            return self.repoint(out);
        }
        self.send_all_away(out);
        let Some(successor) = self.record.successor.clone() else { return self.decide(out) };
        self.trial = Some(Trial {
            asked: None,
            build: successor.build.clone(),
            beside: 1,
            successor: Some(successor.number),
            end: End::Open,
            instead: None,
        });
        if self.superseded() {
            return self.abandon(out);
        }
        self.state = State::Warming;
        out.push(Action::Await(successor));
    }

    /// The incumbent and whoever settles are told to end.
    fn send_all_away(&mut self, out: &mut Actions<B>) {
        if let Some(member) = self.record.current.take() {
            self.record.leaving.push(Leaving { member, stage: Stage::Settling });
        }
        if self.state == State::Stopping
            && let Some(member) = self.record.successor.take()
        {
            self.record.leaving.push(Leaving { member, stage: Stage::Settling });
        }
        let mut ended = Vec::new();
        for leaving in &mut self.record.leaving {
            if leaving.stage == Stage::Settling {
                let number = leaving.member.number;
                leaving.stage = Stage::Draining;
                ended.push(number);
            }
        }
        for number in ended {
            self.unlink(number, out);
            out.push(Action::Term(number));
        }
    }

    fn linked(&mut self, number: GenerationNumber) {
        self.record.link = Some(number);
        self.sure = true;
    }

    /// The canonical path must not name this one any more.
    fn unlink(&mut self, number: GenerationNumber, out: &mut Actions<B>) {
        if self.record.link == Some(number) {
            self.record.link = None;
        } else if self.sure {
            return;
        }
        out.push(Action::Unlink(Some(number)));
    }

    /// The successor, if there is one, is killed.
    fn discard(&mut self, out: &mut Actions<B>) {
        if let Some(successor) = self.record.successor.take() {
            self.unlink(successor.number, out);
            self.kill(Some(successor), out);
        }
    }

    fn kill(&mut self, member: Option<Member<B>>, out: &mut Actions<B>) {
        if let Some(member) = member {
            out.push(Action::Kill(member.number));
            self.record.leaving.push(Leaving { member, stage: Stage::Proving });
        }
    }

    fn prove_again(&mut self, out: &mut Actions<B>) {
        for leaving in &mut self.record.leaving {
            if leaving.stage == Stage::Unproven {
                leaving.stage = Stage::Proving;
                out.push(Action::Kill(leaving.member.number));
            }
        }
    }

    fn is_successor(&self, number: GenerationNumber) -> bool {
        self.record.successor.as_ref().is_some_and(|successor| successor.number == number)
    }

    fn leaving(&mut self, number: GenerationNumber) -> Option<&mut Leaving<B>> {
        self.record.leaving.iter_mut().find(|leaving| leaving.member.number == number)
    }

    fn some_are(&self, stage: Stage) -> bool {
        self.record.leaving.iter().any(|leaving| leaving.stage == stage)
    }

    /// A proof is still to come.
    fn some_leave(&self) -> bool {
        self.record.leaving.iter().any(|leaving| leaving.stage != Stage::Unproven)
    }

    fn done(&self, serves: GenerationNumber) -> Outcome {
        if self.record.leaving.is_empty() {
            Outcome::Done(serves)
        } else {
            Outcome::Unproven { serves: Some(serves) }
        }
    }

    /// How a request ends that changed nothing.
    fn failed(&self, why: Why) -> Outcome {
        match self.serves() {
            Some(serves) => Outcome::Unchanged { serves, why },
            None => Outcome::NothingServes { why },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SOURCE: &str = include_str!("swap.rs");

    /// The names on either side of an arrow of the diagram.
    fn in_the_diagram() -> BTreeSet<&'static str> {
        SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("//! "))
            .filter_map(|line| line.split_once(" --> "))
            .flat_map(|(from, to)| [from.trim(), to.split(':').next().unwrap()])
            .chain(["Disowned"].into_iter().filter(|_| SOURCE.contains("leads to `Disowned`")))
            .collect()
    }

    /// The variants of the enum, read from its own source.
    fn in_the_code() -> BTreeSet<&'static str> {
        let (_, body) = SOURCE.split_once("pub enum State {").unwrap();
        let (body, _) = body.split_once("\n}").unwrap();
        body.lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("///"))
            .filter_map(|line| line.strip_suffix(','))
            .collect()
    }

    #[test]
    fn the_diagram_and_the_code_name_the_same_states() {
        assert_eq!(in_the_code().len(), 15);
        assert_eq!(in_the_diagram(), in_the_code());
    }

    fn number(n: u64) -> GenerationNumber {
        GenerationNumber::new(n).unwrap()
    }

    fn asked(attempt: u64, want: Want<&'static str>) -> Event<&'static str> {
        Event::Asked(Request { attempt: Attempt(attempt), want })
    }

    /// A host that serves with generation 1 of the build `old`.
    fn serving() -> Swap<&'static str> {
        let mut swap = Swap::new();
        for event in [
            asked(1, Want::Wake("old")),
            Event::Admitted { overlap: true },
            Event::Raised,
            Event::Started(number(1)),
            Event::Ready(number(1)),
            Event::Switched(number(1)),
        ] {
            let _ = swap.step(event);
        }
        assert_eq!(swap.state(), State::Serving);
        assert_eq!(swap.serves(), Some(number(1)));
        swap
    }

    fn member(n: u64, build: &'static str, ready: bool) -> Member<&'static str> {
        Member { number: number(n), build, ready }
    }

    #[test]
    fn a_swap_goes_through_its_steps_in_order() {
        let mut swap = serving();
        let mut step = |event| swap.step(event);
        let (old, new) = (number(1), number(2));
        assert_eq!(step(asked(2, Want::Swap("new"))), [Action::Admit { build: "new" }]);
        assert_eq!(
            step(Event::Admitted { overlap: true }),
            [Action::Raise {
                over: Some(member(1, "old", true)),
                successor: member(2, "new", false)
            }]
        );
        assert_eq!(step(Event::Raised), [Action::Start(member(2, "new", false))]);
        assert_eq!(step(Event::Started(new)), [Action::Await(member(2, "new", false))]);
        assert_eq!(step(Event::Ready(new)), [Action::Switch(new)]);
        assert_eq!(step(Event::Switched(new)), [Action::Settle(old)]);
        assert_eq!(step(Event::Settled(old)), [Action::Term(old)]);
        assert_eq!(step(Event::Died(old)), [Action::Kill(old)]);
        assert_eq!(step(Event::Proven(old)), [Action::Restore(member(2, "new", true))]);
        assert_eq!(step(Event::Restored), [Action::Answer(Attempt(2), Outcome::Done(new))]);
        assert_eq!(swap.state(), State::Serving);
    }

    #[test]
    fn a_layout_that_refuses_changes_nothing() {
        let mut swap = serving();
        let before = swap.record().clone();
        let _ = swap.step(asked(2, Want::Swap("new")));
        let outcome = Outcome::Unchanged { serves: number(1), why: Why::Denied };
        assert_eq!(swap.step(Event::Denied), [Action::Answer(Attempt(2), outcome)]);
        assert_eq!(*swap.record(), before);
    }

    #[test]
    fn the_parent_is_restored_only_after_every_other_generation_is_proven_empty() {
        let mut swap = serving();
        for event in [
            asked(2, Want::Swap("new")),
            Event::Admitted { overlap: true },
            Event::Raised,
            Event::Started(number(2)),
            Event::Ready(number(2)),
            Event::Switched(number(2)),
            Event::Settled(number(1)),
            Event::Drained(number(1)),
        ] {
            let _ = swap.step(event);
        }
        let outcome = Outcome::Unproven { serves: Some(number(2)) };
        assert_eq!(
            swap.step(Event::Unproven(number(1))),
            [Action::Answer(Attempt(2), outcome), Action::Rest]
        );
        assert!(swap.record().raised);
        assert_eq!(swap.step(Event::Rested), [Action::Kill(number(1))]);
        assert_eq!(swap.step(Event::Proven(number(1))), [Action::Restore(member(2, "new", true))]);
    }

    #[test]
    fn health_after_the_deadline_is_nobodys() {
        let mut swap = serving();
        for event in [
            asked(2, Want::Swap("new")),
            Event::Admitted { overlap: true },
            Event::Raised,
            Event::Started(number(2)),
        ] {
            let _ = swap.step(event);
        }
        assert_eq!(swap.step(Event::Overdue(number(2))), [Action::Kill(number(2))]);
        assert_eq!(swap.step(Event::Ready(number(2))), []);
        let outcome = Outcome::Unchanged { serves: number(1), why: Why::NeverReady };
        let _ = swap.step(Event::Proven(number(2)));
        assert_eq!(swap.step(Event::Restored), [Action::Answer(Attempt(2), outcome)]);
    }

    #[test]
    fn without_the_lease_it_answers_and_does_nothing() {
        let mut swap = serving();
        let _ = swap.step(asked(2, Want::Swap("new")));
        let outcome = Outcome::Unknown { serves: Some(number(1)), why: Why::Lease };
        assert_eq!(swap.step(Event::LeaseLost), [Action::Answer(Attempt(2), outcome)]);
        assert_eq!(swap.step(Event::Admitted { overlap: true }), []);
        assert_eq!(swap.state(), State::Disowned);
    }
}
