//! Processes started, ended, adopted and switched: what blocks, off the runtime's threads.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::{EXEC, Input, KILL, Shared};
use crate::backend::{Proc, Start, StartError};
use crate::cgroup::Limit;
use crate::error::{BoxError, Error};
use crate::gate::{Gate, Refused};
use crate::generation::Gen;
use crate::layout::no_generation_path;
use crate::link;
use crate::name::{GenerationNumber, LeafName};
use crate::process::{Exit, Process};
use crate::staged::Staged;
use crate::state::{HostState, Ran, RanGeneration};
use crate::swap::Member;

/// The generation of a member, before its start fills in where it is reached.
pub(super) fn generation(member: &Member<Staged>) -> Gen {
    let Staged { name, program, digest, tier, live: _ } = member.build.clone();
    Gen {
        build: Some(name),
        staged: Some(program),
        digest: Some(digest),
        tier,
        ..Gen::cold(member.number)
    }
}

pub(super) fn times(tier: &Limit, slots: u32) -> Limit {
    (1..slots).fold(*tier, |sum, _| Limit::overlap(&sum, tier))
}

/// Starts every slot, each gated by itself. Where one fails, those before it are ended.
pub(super) fn start_all(
    shared: &Arc<Shared>,
    generation: &Gen,
    gate: &Gate,
    deadline: Instant,
) -> Result<(Gen, Vec<Proc>), StartError> {
    let mut procs: Vec<Proc> = Vec::new();
    let mut bound = generation.clone();
    for slot in 0..shared.route().slots {
        match start_one(shared, generation, slot, gate, deadline) {
            Ok((filled, proc)) => {
                bound = filled;
                procs.push(proc);
            }
            Err(error) => {
                let ended = all(procs.iter().map(|proc| end_one(shared, generation.number, proc)));
                return Err(match ended {
                    Ok(()) => error,
                    Err(unproven) => StartError::KillUnproven(None, unproven),
                });
            }
        }
    }
    Ok((bound, procs))
}

pub(super) fn start_one(
    shared: &Arc<Shared>,
    generation: &Gen,
    slot: u32,
    gate: &Gate,
    deadline: Instant,
) -> Result<(Gen, Proc), StartError> {
    let number = generation.number;
    let sockets = shared.backend.gen_paths(shared.route(), number);
    let planned = generation.clone().bound_to(sockets);
    let note = |ran: Ran| {
        let change = |state: &mut HostState| {
            let fresh = || RanGeneration { generation: planned.clone(), slots: Vec::new() };
            let known = state.ran.entry(number).or_insert_with(fresh);
            known.slots.retain(|other| other.slot != slot);
            known.slots.push(ran);
        };
        shared.change(change).map_err(BoxError::from)
    };
    let recorder = Arc::clone(shared);
    // The pending record: from here on, this build may have run.
    let gate = gate.clone().recording(move || {
        recorder.change(|state| {
            let slots = state.ran.get_mut(&number).map(|known| known.slots.iter_mut());
            for ran in slots.into_iter().flatten().filter(|ran| ran.slot == slot) {
                ran.may_have_run = true;
            }
        })?;
        Ok(true)
    });
    let start = Start { route: shared.route(), slot, gate: &gate, note: &note, deadline };
    shared.generations()?.start_staged(&start, generation.clone())
}

pub(super) fn end_one(shared: &Shared, number: GenerationNumber, proc: &Proc) -> Result<(), Error> {
    end_leaf(shared, LeafName::Generation(number, proc.slot), Some(&proc.process))
}

/// A leaf is ended by its name: without the lease, what is in it may be another activator's.
fn end_leaf(shared: &Shared, leaf: LeafName, leader: Option<&Process>) -> Result<(), Error> {
    shared.lease.check()?;
    let deadline = Instant::now() + KILL;
    shared.generations()?.end(shared.route(), leaf, leader, deadline).map(|_| ())
}

/// Ends whatever is left of a generation, in hand or only recorded, and proves it.
pub(super) fn end_all(
    shared: &Shared,
    number: GenerationNumber,
    procs: &[Arc<Proc>],
) -> Result<(), Error> {
    let backend = shared.generations()?;
    let route = shared.route();
    let mut ended = vec![all(procs.iter().map(|proc| end_one(shared, number, proc)))];
    let recorded = shared.store().ran.get(&number).cloned();
    for ran in recorded.iter().flat_map(|recorded| &recorded.slots) {
        let in_hand = |proc: &Arc<Proc>| proc.launched == ran.launched;
        if procs.iter().any(in_hand) {
            continue;
        }
        let leaf = LeafName::Generation(number, ran.slot);
        ended.push(
            backend
                .adopt(route, leaf, ran)
                .and_then(|found| end_leaf(shared, leaf, found.as_ref().map(|proc| &proc.process))),
        );
    }
    // One that was made and never recorded: a stub that did not come to its go.
    let recorded = |slot| {
        procs.iter().any(|proc| proc.slot == slot)
            || recorded.iter().flat_map(|known| &known.slots).any(|ran| ran.slot == slot)
    };
    for leaf in backend.leaves(route)? {
        if let LeafName::Generation(of, slot) = leaf
            && of == number
            && !recorded(slot)
        {
            ended.push(end_leaf(shared, leaf, None));
        }
    }
    all(ended)
}

/// Every error of a teardown, in one.
pub(super) fn all(results: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
    let mut errors = results.into_iter().filter_map(Result::err);
    let Some(first) = errors.next() else { return Ok(()) };
    let rest: Vec<String> = errors.map(|error| error.to_string()).collect();
    if rest.is_empty() {
        return Err(first);
    }
    Err(Error::because(first.kind(), rest.join("; "), first))
}

/// Ends what is left of a slot, and starts it again; where it may not start, nothing is ended.
pub(super) fn respawn(
    shared: &Arc<Shared>,
    old: &Proc,
    build: &Staged,
    generation: &Gen,
    gate: &Gate,
) -> Result<Proc, Error> {
    let may_start = shared.may_launch().and_then(|()| shared.may_run(build));
    may_start.map_err(|error| Refused::from(error).into_error())?;
    end_one(shared, generation.number, old)?;
    old.launched.forget();
    start_one(shared, generation, old.slot, gate, Instant::now() + EXEC)
        .map(|(_, proc)| proc)
        .map_err(|error| error.into_parts().1)
}

/// The switch, under the one lock.
pub(super) fn switch(shared: &Shared, generation: &Gen) -> Result<(), Error> {
    let route = shared.route();
    let mut current = shared.current();
    match (&route.socket, &generation.socket) {
        // It binds the canonical path itself, or there is none: nothing names it.
        (Some(canonical), Some(socket)) if canonical == socket => {}
        (None, _) => {}
        (Some(_), None) => return Err(no_generation_path(route)),
        (Some(canonical), Some(_)) => {
            link::check_ours(canonical, route.nested.as_deref(), |number| {
                let store = shared.store();
                store.ran.contains_key(&number) || store.swap.link == Some(number)
            })?;
            shared.generations()?.gen_switched(route, generation)?;
        }
    }
    *current = Some(generation.clone());
    drop(current);
    if let Some(build) = &generation.build {
        shared.store().has_served(build);
        if let Err(error) = shared.directory.repoint_live(&route.builds, build) {
            tracing::warn!(host = %route.host, %error, "a cold wake would start an older build");
        }
    }
    Ok(())
}

/// What is left of a recorded generation, taken in hand again; `None` where a leader of it is gone
/// or nothing of it can have run.
pub(super) fn adopt_all(
    shared: &Shared,
    member: &Member<Staged>,
) -> Result<Option<(Gen, Vec<Proc>)>, Error> {
    let known = shared.store().ran.get(&member.number).cloned();
    let Some(RanGeneration { generation, slots }) = known else { return Ok(None) };
    if slots.is_empty() || slots.len() < shared.route().slots as usize {
        return Ok(None);
    }
    let backend = shared.generations()?;
    let mut procs = Vec::new();
    for ran in &slots {
        if !ran.may_have_run {
            return Ok(None);
        }
        let leaf = LeafName::Generation(member.number, ran.slot);
        match backend.adopt(shared.route(), leaf, ran)? {
            Some(proc) => procs.push(proc),
            None => return Ok(None),
        }
    }
    Ok(Some((generation, procs)))
}

/// Tells the host's task when a process has ended.
pub(super) fn watch_exit(
    inbox: &mpsc::UnboundedSender<Input>,
    number: GenerationNumber,
    proc: Arc<Proc>,
) {
    let inbox = inbox.clone();
    tokio::spawn(async move {
        let exit = exit_of(&proc).await;
        let token = proc.launched.token.clone();
        let _closed = inbox.send(Input::Exited { number, token, exit });
    });
}

/// Waits for the end of a process.
pub(crate) async fn exit_of(proc: &Proc) -> Exit {
    let watched = proc.process.as_fd().try_clone_to_owned().and_then(crate::descriptor::watch);
    loop {
        if let Ok(watched) = &watched
            && let Ok(mut readable) = watched.readable().await
        {
            if let Ok(Some(exit)) = proc.process.exited() {
                return exit;
            }
            readable.clear_ready();
            continue;
        }
        // No descriptor is left to watch it by.
        if let Ok(Some(exit)) = proc.process.exited() {
            return exit;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
