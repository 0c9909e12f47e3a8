//! The swap's own machine against an adversary that crashes it, kills its generations, is late,
//! refuses and asks for several things at once: every order of it, within the bounds of [`Bounds`].
//!
//! What the adversary may break: it kills the generation that the canonical path names (then the
//! path names nothing that listens until the next switch, which follows if anything ready is left),
//! and it refuses the link (then the machine rests and tries again). Nothing else.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stateright::{Checker, Model, Property};
use tickmark_activator::GenerationNumber as Number;
use tickmark_activator::swap::{
    Action, Attempt, Event, Outcome, Record, Request, State, Swap, Want,
};

/// A build is a letter here.
type Build = char;

/// How often the adversary may do what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Bounds {
    requests: u8,
    deaths: u8,
    crashes: u8,
    /// Refusals, failures, deadlines, unproven kills.
    faults: u8,
    /// Healths that come although nobody waits for them any more.
    late: u8,
    /// Backoffs that end, and red verdicts.
    rests: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    number: Number,
    /// Its leader has not ended.
    leads: bool,
    /// It has become healthy, and listens until it is told to end.
    ready: bool,
    told: bool,
    /// The machine was told of its leader's end, or cannot be.
    reported: bool,
}

impl Process {
    fn listens(&self) -> bool {
        self.leads && self.ready && !self.told
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    swap: Swap<Build>,
    /// What the driver has on its hands, in any order.
    todo: Vec<Action<Build>>,
    /// Every generation of which anything is left.
    processes: Vec<Process>,
    link: Option<Number>,
    /// The adversary killed what the path names, and no switch has followed yet.
    broken: bool,
    /// The parent's limit, in generations.
    parent: usize,
    /// The last number that was started.
    last: Option<Number>,
    asked: u8,
    /// Requests without an answer; one whose activator crashed gets none.
    open: Vec<Attempt>,
    left: Bounds,
    /// The first rule that was broken.
    breach: Option<&'static str>,
}

/// What the adversary does next.
#[derive(Clone, Debug, PartialEq)]
enum Move {
    Ask(Want<Build>),
    /// The action at this place is done, and ends so.
    Does(usize, Ends),
    /// The same, and the activator crashes before it hears of it.
    DoesUnseen(usize),
    Dies(Number),
    /// The machine learns of a leader's end.
    Tell(Number),
    LateHealth(Number),
    Red(Number),
    Crash,
    LoseLease,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Well,
    /// Refused, overdue, unproven, or whatever else is the action's other end.
    Refused,
    /// It failed, and nothing ran.
    Failed,
    /// Nothing says whether it ran; it did.
    Ran,
    /// Nothing says whether it ran; it did not.
    DidNotRun,
    /// Its leader was killed, the rest is not proven gone.
    Killed,
}

/// A mistake that is put into the machine, to see that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    TakesUnprovenForProven,
    RestoresAtTheSwitch,
    SwitchesByBelief,
    MissesTheSuccessorsDeath,
    ForgetsWhatItStarted,
    SwallowsAnAnswer,
    TermsBeforeTheSwitch,
    ActsWithoutTheLease,
}

/// Pairs of states that one step led from and to.
type Edges = BTreeSet<(String, String)>;

struct Adversary {
    bounds: Bounds,
    overlap: bool,
    /// It serves already at the start.
    serving: bool,
    mistake: Option<Mistake>,
    edges: Arc<Mutex<Edges>>,
}

impl Adversary {
    /// One event into the machine.
    fn tell(&self, world: &mut World, event: Event<Build>) {
        let event = match (self.mistake, event) {
            (Some(Mistake::TakesUnprovenForProven), Event::Unproven(n)) => Event::Proven(n),
            (Some(Mistake::MissesTheSuccessorsDeath), Event::Died(n))
                if world.swap.record().successor.as_ref().is_some_and(|s| s.number == n) =>
            {
                return;
            }
            (_, event) => event,
        };
        let before = world.swap.state();
        let mut actions = world.swap.step(event.clone());
        self.walked(before, world.swap.state());
        let current = world.swap.record().current.clone();
        match (self.mistake, event, current) {
            (Some(Mistake::RestoresAtTheSwitch), Event::Switched(_), Some(current)) => {
                actions.push(Action::Restore(current));
            }
            (Some(Mistake::TermsBeforeTheSwitch), Event::Ready(_), Some(current)) => {
                actions.insert(0, Action::Term(current.number));
            }
            _ => {}
        }
        self.take(world, actions);
    }

    fn walked(&self, before: State, after: State) {
        if before != after {
            let edge = (format!("{before:?}"), format!("{after:?}"));
            self.edges.lock().unwrap().insert(edge);
        }
    }

    /// What is instant is done at once, in order; the rest is on the driver's hands.
    fn take(&self, world: &mut World, actions: Vec<Action<Build>>) {
        for action in actions {
            match action {
                Action::Unlink(n) => {
                    if n.is_none() || world.link == n {
                        let stops = world.swap.state() == State::Stopping || !self.overlap;
                        if world.link.is_some_and(|n| world.listens(n)) && !stops {
                            world.breach("unlinked what serves");
                        }
                        world.link = None;
                    }
                }
                Action::Term(n) => {
                    world.ends(n);
                    if let Some(process) = world.process(n) {
                        process.told = true;
                    }
                    world.todo.push(Action::Term(n));
                }
                Action::Answer(attempt, outcome) => self.answer(world, attempt, outcome),
                Action::Rest => {
                    world.todo.retain(|action| *action != Action::Rest);
                    world.todo.push(Action::Rest);
                }
                Action::Switch(n) if self.mistake == Some(Mistake::SwitchesByBelief) => {
                    self.tell(world, Event::Switched(n));
                }
                action => world.todo.push(action),
            }
        }
        // Nobody waits for health outside of this state.
        let warming = world.swap.state() == State::Warming;
        world.todo.retain(|action| warming || !matches!(action, Action::Await(_)));
    }

    fn answer(&self, world: &mut World, attempt: Attempt, outcome: Outcome) {
        if self.mistake == Some(Mistake::SwallowsAnAnswer)
            && matches!(outcome, Outcome::Unchanged { .. })
        {
            return;
        }
        let Some(at) = world.open.iter().position(|open| *open == attempt) else {
            return world.breach("answered twice, or what nobody asked");
        };
        world.open.remove(at);
        let serves = |n| world.link == Some(n) && (world.broken || world.listens(n));
        if outcome.serves().is_some_and(|n| !serves(n)) {
            world.breach("the answer names what does not serve");
        }
        match outcome {
            Outcome::Done(_) if world.processes.len() > 1 => {
                world.breach("done, and an older generation is left");
            }
            Outcome::Stopped if !world.processes.is_empty() => {
                world.breach("stopped, and something is left");
            }
            Outcome::Stopped if world.link.is_some() => world.breach("stopped, and linked"),
            _ => {}
        }
    }

    /// The activator is gone with everything in its memory; the next one reads the record.
    fn crash(&self, world: &mut World) {
        let mut record = world.swap.record().clone();
        if self.mistake == Some(Mistake::ForgetsWhatItStarted) {
            record = Record { successor: None, ..record };
        }
        world.todo.clear();
        world.open.clear();
        for process in &mut world.processes {
            process.reported = true;
        }
        let (swap, actions) = Swap::recover(record);
        world.swap = swap;
        self.walked(State::Recovering, world.swap.state());
        self.take(world, actions);
    }

    /// What an action does in the world, and what the machine would hear of it.
    fn act(&self, world: &mut World, action: &Action<Build>, ends: Ends) -> Option<Event<Build>> {
        let well = ends == Ends::Well;
        Some(match action {
            Action::Admit { .. } if well => Event::Admitted { overlap: self.overlap },
            Action::Admit { .. } => Event::Denied,
            Action::Raise { over, .. } if well => {
                world.parent = usize::from(over.is_some()) + 1;
                Event::Raised
            }
            Action::Raise { .. } => Event::RaiseRefused,
            Action::Restore(_) if well => {
                world.parent = 1;
                Event::Restored
            }
            Action::Restore(_) => Event::RestoreRefused,
            Action::Start(member) => {
                let n = member.number;
                if world.last >= Some(n) {
                    world.breach("a number was given twice");
                }
                world.last = Some(n);
                if matches!(ends, Ends::Well | Ends::Ran | Ends::Killed) {
                    world.processes.push(Process {
                        number: n,
                        leads: ends != Ends::Killed,
                        ready: false,
                        told: false,
                        reported: ends != Ends::Well,
                    });
                }
                match ends {
                    Ends::Well => Event::Started(n),
                    Ends::Refused => Event::Refused(n),
                    Ends::Failed => Event::Failed(n),
                    Ends::Ran | Ends::DidNotRun => Event::MayHaveRun(n),
                    Ends::Killed => Event::KillUnproven(n),
                }
            }
            Action::Await(member) if well => {
                world.process(member.number)?.ready = true;
                Event::Ready(member.number)
            }
            Action::Await(member) => Event::Overdue(member.number),
            Action::Switch(n) if well => {
                let n = *n;
                match world.process(n).cloned() {
                    Some(process) if !process.ready => world.breach("linked what never was ready"),
                    Some(process) if process.leads && process.told => {
                        world.breach("linked what was told to end");
                    }
                    Some(process) => world.broken = !process.leads,
                    // It died, and the machine does not know yet; then this is put right.
                    None => world.broken = true,
                }
                world.link = Some(n);
                Event::Switched(n)
            }
            Action::Switch(n) => Event::SwitchRefused(*n),
            Action::Settle(n) => Event::Settled(*n),
            // It ended in time, or its time is over.
            Action::Term(n) if well => {
                let process = world.process(*n)?;
                process.leads = false;
                process.reported = true;
                Event::Died(*n)
            }
            Action::Term(n) => Event::Drained(*n),
            Action::Kill(n) if well => {
                world.ends(*n);
                world.processes.retain(|process| process.number != *n);
                Event::Proven(*n)
            }
            Action::Kill(n) => {
                world.ends(*n);
                if let Some(process) = world.process(*n) {
                    process.leads = false;
                    process.reported = true;
                }
                Event::Unproven(*n)
            }
            Action::Rest => Event::Rested,
            Action::Adopt(member) => match world.process(member.number) {
                Some(process) if process.leads => {
                    process.reported = false;
                    Event::Adopted(member.number)
                }
                _ => Event::Died(member.number),
            },
            Action::Unlink(_) | Action::Answer(..) => return None,
        })
    }
}

impl World {
    fn process(&mut self, number: Number) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.number == number)
    }

    fn listens(&self, number: Number) -> bool {
        self.processes.iter().any(|process| process.number == number && process.listens())
    }

    fn leads(&self, number: Number) -> bool {
        self.processes.iter().any(|process| process.number == number && process.leads)
    }

    fn breach(&mut self, rule: &'static str) {
        self.breach.get_or_insert(rule);
    }

    /// The machine ends this one: not while the path names it.
    fn ends(&mut self, number: Number) {
        if self.link == Some(number) && self.listens(number) {
            self.breach("ended what the path names");
        }
    }

    /// Nothing more happens unless someone asks, something breaks, or a backoff ends.
    fn quiet(&self) -> bool {
        self.todo.iter().all(|action| *action == Action::Rest)
            && self.processes.iter().all(|process| process.leads || process.reported)
    }
}

impl Model for Adversary {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            swap: Swap::new(),
            todo: Vec::new(),
            processes: Vec::new(),
            link: None,
            broken: false,
            parent: 1,
            last: None,
            asked: 0,
            open: Vec::new(),
            left: self.bounds,
            breach: None,
        };
        if self.serving {
            world.asked = 1;
            world.open.push(Attempt(1));
            let request = Request { attempt: Attempt(1), want: Want::Wake('a') };
            self.tell(&mut world, Event::Asked(request));
            while world.swap.state() != State::Serving {
                let action = world.todo.pop().expect("it is on its way");
                let event = self.act(&mut world, &action, Ends::Well);
                self.tell(&mut world, event.expect("each of these answers"));
            }
        }
        vec![world]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.breach.is_some() {
            return;
        }
        let left = world.left;
        for (at, action) in world.todo.iter().enumerate() {
            let well = match action {
                Action::Rest => left.rests > 0,
                Action::Await(member) => world.leads(member.number),
                Action::Term(n) => world.leads(*n),
                _ => true,
            };
            if well {
                moves.push(Move::Does(at, Ends::Well));
                let unseen = matches!(
                    action,
                    Action::Raise { .. }
                        | Action::Restore(_)
                        | Action::Start(_)
                        | Action::Switch(_)
                        | Action::Kill(_)
                );
                if unseen && left.crashes > 0 {
                    moves.push(Move::DoesUnseen(at));
                }
            }
            // Where the gate sees a newer request it refuses; the start may be quicker.
            let superseded = matches!(action, Action::Start(_)) && world.swap.superseded();
            // A drain may always take too long.
            let free = superseded || matches!(action, Action::Term(_));
            let others: &[Ends] = match action {
                Action::Start(_) if left.faults > 0 => {
                    &[Ends::Refused, Ends::Failed, Ends::Ran, Ends::DidNotRun, Ends::Killed]
                }
                Action::Rest | Action::Settle(_) | Action::Adopt(_) => &[],
                _ if free || left.faults > 0 => &[Ends::Refused],
                _ => &[],
            };
            moves.extend(others.iter().map(|ends| Move::Does(at, *ends)));
        }
        for process in &world.processes {
            if !process.leads && !process.reported {
                moves.push(Move::Tell(process.number));
            }
            if process.leads && left.deaths > 0 {
                moves.push(Move::Dies(process.number));
            }
            if left.late > 0 && !process.ready {
                moves.push(Move::LateHealth(process.number));
            }
            let serves =
                world.swap.state() == State::Serving && world.swap.serves() == Some(process.number);
            if serves && left.rests > 0 && process.leads {
                moves.push(Move::Red(process.number));
            }
        }
        if left.requests > 0 {
            moves.extend([Want::Swap('b'), Want::Wake('a'), Want::Stop].map(Move::Ask));
        }
        if left.crashes > 0 {
            moves.push(Move::Crash);
            moves.push(Move::LoseLease);
        }
    }

    fn next_state(&self, world: &World, action: Move) -> Option<World> {
        let mut world = world.clone();
        match action {
            Move::Ask(want) => {
                world.left.requests -= 1;
                world.asked += 1;
                let attempt = Attempt(u64::from(world.asked));
                world.open.push(attempt);
                self.tell(&mut world, Event::Asked(Request { attempt, want }));
            }
            Move::Does(at, ends) => {
                let action = world.todo.remove(at);
                match (ends, &action) {
                    (Ends::Well, Action::Rest) => world.left.rests -= 1,
                    (Ends::Well, _) | (Ends::Refused, Action::Term(_)) => {}
                    (Ends::Refused, Action::Start(_)) if world.swap.superseded() => {}
                    _ => world.left.faults -= 1,
                }
                if let Some(event) = self.act(&mut world, &action, ends) {
                    self.tell(&mut world, event);
                }
            }
            Move::DoesUnseen(at) => {
                world.left.crashes -= 1;
                let action = world.todo.remove(at);
                self.act(&mut world, &action, Ends::Well);
                self.crash(&mut world);
            }
            Move::Dies(n) => {
                world.left.deaths -= 1;
                world.broken |= world.link == Some(n);
                world.process(n)?.leads = false;
            }
            Move::Tell(n) => {
                world.process(n)?.reported = true;
                self.tell(&mut world, Event::Died(n));
            }
            Move::LateHealth(n) => {
                // While it is waited for, its health is not late.
                if world.todo.iter().any(|action| matches!(action, Action::Await(_))) {
                    return None;
                }
                world.left.late -= 1;
                self.tell(&mut world, Event::Ready(n));
            }
            Move::Red(n) => {
                world.left.rests -= 1;
                self.tell(&mut world, Event::Red(n));
            }
            Move::Crash => {
                world.left.crashes -= 1;
                self.crash(&mut world);
            }
            Move::LoseLease => {
                world.left.crashes -= 1;
                let mut actions = world.swap.step(Event::LeaseLost);
                if self.mistake == Some(Mistake::ActsWithoutTheLease)
                    && let Some(current) = &world.swap.record().current
                {
                    actions.push(Action::Kill(current.number));
                }
                if !actions.iter().all(|action| matches!(action, Action::Answer(..))) {
                    world.breach("acted without the lease");
                }
                self.take(&mut world, actions);
                if !world.open.is_empty() {
                    world.breach("lost the lease and did not say so");
                }
                self.crash(&mut world);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Adversary>> {
        vec![
            Property::always(TWO, |_, world: &World| world.processes.len() <= 2),
            Property::always(KNOWN, |_, world: &World| {
                world.processes.iter().all(|process| {
                    world.swap.members().any(|member| member.number == process.number)
                })
            }),
            Property::always(PARENT, |_, world: &World| world.processes.len() <= world.parent),
            Property::always(PATH, |_, world: &World| {
                world.broken || world.link.is_none_or(|n| world.listens(n))
            }),
            Property::always(RESTORED, |_, world: &World| {
                // Where the machine rests it will try again.
                !world.quiet()
                    || world.todo.contains(&Action::Rest)
                    || !world.processes.iter().any(Process::listens)
                    || world.link.is_some_and(|n| world.listens(n))
            }),
            Property::always(ANSWER, |_, world: &World| !world.quiet() || world.open.is_empty()),
            Property::always(RULES, |_, world: &World| world.breach.is_none()),
        ]
    }
}

const TWO: &str = "at most two generations are alive";
const KNOWN: &str = "every generation that is alive is known";
const PARENT: &str = "the parent carries every generation that is not proven gone";
const PATH: &str = "the path names a generation that listens";
const RESTORED: &str = "a broken path is put right if anything is ready";
const ANSWER: &str = "every operation ends with an answer";
const RULES: &str = "no rule is broken";

/// Explores all of it; fails with the shortest way to a property that does not hold.
fn check(name: &str, model: Adversary) {
    let started = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    eprintln!(
        "{name}: {} states, {} deep, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64()
    );
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        let steps: Vec<String> = path
            .into_vec()
            .into_iter()
            .map(|(world, step)| format!("{:?} {:?}\n  {step:?}", world.swap, world.todo))
            .collect();
        panic!("{name}: {property}\n{}", steps.join("\n"));
    }
}

fn models(edges: &Arc<Mutex<Edges>>) -> Vec<(&'static str, Adversary)> {
    let model = |serving, overlap, bounds| Adversary {
        bounds,
        overlap,
        serving,
        mistake: None,
        edges: Arc::clone(edges),
    };
    let bounds = Bounds::default();
    vec![
        (
            "two requests, and something goes wrong",
            model(
                true,
                true,
                Bounds { requests: 2, deaths: 1, faults: 1, late: 1, rests: 1, ..bounds },
            ),
        ),
        ("three requests", model(true, true, Bounds { requests: 3, late: 1, ..bounds })),
        (
            "one request, and everything goes wrong",
            model(
                true,
                true,
                Bounds { requests: 1, deaths: 1, crashes: 1, faults: 1, late: 1, rests: 1 },
            ),
        ),
        (
            "two crashes",
            model(true, true, Bounds { requests: 1, deaths: 1, crashes: 2, faults: 1, ..bounds }),
        ),
        (
            "two deaths, two faults",
            model(true, true, Bounds { requests: 1, deaths: 2, faults: 2, rests: 1, ..bounds }),
        ),
        (
            "from asleep",
            model(
                false,
                true,
                Bounds { requests: 2, deaths: 1, crashes: 1, faults: 1, rests: 1, ..bounds },
            ),
        ),
        (
            "stop, then start",
            model(
                true,
                false,
                Bounds { requests: 2, deaths: 1, faults: 1, late: 1, rests: 2, ..bounds },
            ),
        ),
        (
            "stop, crash, start",
            model(
                true,
                false,
                Bounds { requests: 2, deaths: 1, crashes: 1, faults: 1, rests: 1, ..bounds },
            ),
        ),
        (
            "nothing can be proven",
            model(false, false, Bounds { requests: 2, faults: 4, rests: 1, ..bounds }),
        ),
    ]
}

#[test]
fn every_order_of_it_keeps_the_rules() {
    let edges = Arc::default();
    for (name, model) in models(&edges) {
        check(name, model);
    }
    let walked = edges.lock().unwrap().clone();
    let drawn: Edges = include_str!("../src/swap.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! ")?.split_once(" --> "))
        .map(|(from, to)| {
            let (to, _) = to.split_once(':').expect("an arrow says when");
            (from.trim().to_owned(), to.to_owned())
        })
        .collect();
    let missing: Vec<_> = walked.difference(&drawn).collect();
    let invented: Vec<_> = drawn.difference(&walked).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "missing {missing:#?}\ninvented {invented:#?}"
    );
}

/// What each mistake breaks.
const MISTAKES: [(Mistake, &str); 8] = [
    (Mistake::TakesUnprovenForProven, KNOWN),
    (Mistake::RestoresAtTheSwitch, PARENT),
    (Mistake::SwitchesByBelief, RULES),
    (Mistake::MissesTheSuccessorsDeath, RESTORED),
    (Mistake::ForgetsWhatItStarted, KNOWN),
    (Mistake::SwallowsAnAnswer, ANSWER),
    (Mistake::TermsBeforeTheSwitch, RULES),
    (Mistake::ActsWithoutTheLease, RULES),
];

/// The check can fail: each mistake is found, by the property that it breaks.
#[test]
fn every_mistake_is_found() {
    for (mistake, property) in MISTAKES {
        let model = Adversary {
            bounds: Bounds { requests: 1, deaths: 1, crashes: 1, faults: 1, late: 0, rests: 0 },
            overlap: true,
            serving: true,
            mistake: Some(mistake),
            edges: Arc::default(),
        };
        let found = model.checker().spawn_bfs().join().discoveries();
        assert!(found.contains_key(property), "{mistake:?}: found {:?}", found.keys());
    }
}

/// With bounds no way leads back to where it was, so each ends; and where it ends, all is answered
/// ([`ANSWER`]). Every operation makes progress, then.
#[test]
fn no_way_leads_in_a_circle() {
    let bounds = Bounds { requests: 1, deaths: 1, crashes: 0, faults: 1, late: 0, rests: 1 };
    for overlap in [true, false] {
        let model =
            Adversary { bounds, overlap, serving: true, mistake: None, edges: Arc::default() };
        let start = model.init_states().remove(0);
        // What is on the way here is `true`; what was left again is `false`.
        let mut seen = HashMap::from([(start.clone(), true)]);
        let mut way = vec![(model.next_states(&start), start)];
        while let Some((ahead, here)) = way.last_mut() {
            match ahead.pop() {
                None => {
                    seen.insert(here.clone(), false);
                    way.pop();
                }
                Some(next) => match seen.get(&next) {
                    // A move that changes nothing is none.
                    Some(true) => assert_eq!(next, *here, "a circle"),
                    Some(false) => {}
                    None => {
                        seen.insert(next.clone(), true);
                        way.push((model.next_states(&next), next));
                    }
                },
            }
        }
        assert!(seen.len() > 1000, "{}", seen.len());
    }
}
