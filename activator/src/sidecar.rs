//! A host's sidecar: the serving generation's captured build, run beside it with arguments of its
//! own. It never reads the live link; a repoint between two reads changes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::watch;

use crate::backend::{Proc, Sidecars, Start};
use crate::error::{BoxError, Error, Kind};
use crate::gate::Gate;
use crate::generation::Gen;
use crate::host::{Shared, blocking, exit_of};
use crate::name::{GenerationNumber, LeafName};
use crate::state::Ran;

/// How long it may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// How long its kill may take until it counts as unproven.
const KILL: Duration = Duration::from_secs(10);

/// How long the preparation of its start and its exec may take.
const EXEC: Duration = Duration::from_secs(10);

/// Whose sidecar is to run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// Not known yet: what an earlier activator left is neither ended nor started again.
    Undecided,
    /// Nobody's.
    Nothing,
    /// This generation's.
    Of(Gen),
}

impl Wanted {
    fn is_of(&self, number: GenerationNumber) -> bool {
        matches!(self, Wanted::Of(generation) if generation.number == number)
    }
}

/// Keeps the sidecar of the wanted generation running, with backoff, until the channel closes or
/// the lease is lost. The answer is `true` while none runs and none is wanted.
pub(crate) fn spawn(shared: Arc<Shared>, wanted: watch::Receiver<Wanted>) -> watch::Receiver<bool> {
    // What an earlier activator left may run, also where the host is to have none any more.
    let none = shared.route().sidecar.is_none() && shared.store().sidecar.is_none();
    let (left, watched) = watch::channel(none);
    if !none {
        tokio::spawn(keep(shared, wanted, left));
    }
    watched
}

async fn keep(shared: Arc<Shared>, mut wanted: watch::Receiver<Wanted>, left: watch::Sender<bool>) {
    let restart = shared.settings.restart;
    let mut running = adopt(&shared).await;
    if wanted.wait_for(|wanted| *wanted != Wanted::Undecided).await.is_err() {
        return;
    }
    // What an earlier activator left, and cannot be taken in hand, is ended before a start.
    let mut clean = running.is_some();
    let mut backoff = restart.min;
    loop {
        let want = match wanted.borrow_and_update().clone() {
            Wanted::Of(_) if shared.route().sidecar.is_none() => Wanted::Nothing,
            want => want,
        };
        if !clean || running.as_ref().is_some_and(|(number, _)| !want.is_of(*number)) {
            let old = running.take();
            if let Err(error) = end(&shared, old.clone().map(|(_, proc)| proc)).await {
                tracing::warn!(host = %shared.route().host, %error, "the sidecar is not proven gone");
                running = old;
                // What runs under this name may be another activator's from now on.
                if error.is_lease_lost() || pause(&mut wanted, backoff).await.is_err() {
                    return;
                }
                backoff = (backoff * 2).min(restart.max);
                continue;
            }
            clean = true;
        }
        left.send_replace(running.is_none() && want == Wanted::Nothing);
        let Wanted::Of(generation) = want else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        if running.is_none() {
            match start(&shared, &generation).await {
                Ok(proc) => {
                    tracing::info!(
                        host = %shared.route().host, generation = %generation.number,
                        pid = proc.process.pid(), "the sidecar runs"
                    );
                    running = Some((generation.number, Arc::new(proc)));
                }
                Err(error) => {
                    tracing::warn!(host = %shared.route().host, %error, "the sidecar does not start");
                    clean = false;
                    if error.is_lease_lost() || pause(&mut wanted, backoff).await.is_err() {
                        return;
                    }
                    backoff = (backoff * 2).min(restart.max);
                    continue;
                }
            }
        }
        let Some((_, proc)) = running.clone() else { continue };
        let begun = Instant::now();
        tokio::select! {
            exit = exit_of(&proc) => {
                tracing::warn!(host = %shared.route().host, %exit, "the sidecar ended");
                if begun.elapsed() >= restart.reset {
                    backoff = restart.min;
                }
                // What it forked goes with it.
                clean = false;
                if pause(&mut wanted, backoff).await.is_err() {
                    return;
                }
                backoff = (backoff * 2).min(restart.max);
            }
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                backoff = restart.min;
            }
        }
    }
}

/// Waits for the backoff, or for another generation; an error where the host is closed.
async fn pause(
    wanted: &mut watch::Receiver<Wanted>,
    wait: Duration,
) -> Result<(), watch::error::RecvError> {
    match tokio::time::timeout(wait, wanted.changed()).await {
        Ok(changed) => changed,
        Err(_elapsed) => Ok(()),
    }
}

fn sidecars(shared: &Shared) -> Result<&dyn Sidecars, Error> {
    shared.backend.sidecars().ok_or_else(|| {
        Error::new(
            Kind::NoGenerations,
            format!("{}: this backend runs no sidecars", shared.route().host),
        )
    })
}

async fn adopt(shared: &Arc<Shared>) -> Option<(GenerationNumber, Arc<Proc>)> {
    let (number, ran) = shared.store().sidecar.clone()?;
    let shared = Arc::clone(shared);
    let found = blocking(move || {
        if !ran.may_have_run {
            return Ok(None);
        }
        shared.generations()?.adopt(shared.route(), LeafName::Sidecar, &ran)
    });
    match found.await {
        Ok(found) => found.map(|proc| (number, Arc::new(proc))),
        Err(error) => {
            tracing::warn!(%error, "the sidecar cannot be looked for");
            None
        }
    }
}

async fn start(shared: &Arc<Shared>, generation: &Gen) -> Result<Proc, Error> {
    let (shared, generation) = (Arc::clone(shared), generation.clone());
    blocking(move || {
        let number = generation.number;
        let (asking, recorder) = (Arc::clone(&shared), Arc::clone(&shared));
        let gate =
            Gate::asking(shared.launches(), move || asking.may_launch()).recording(move || {
                recorder.change(|state| {
                    if let Some((_, ran)) = &mut state.sidecar {
                        ran.may_have_run = true;
                    }
                })?;
                Ok(true)
            });
        let note = |ran: Ran| {
            shared.change(|state| state.sidecar = Some((number, ran))).map_err(BoxError::from)
        };
        let start = Start {
            route: shared.route(),
            slot: 0,
            gate: &gate,
            note: &note,
            deadline: Instant::now() + EXEC,
        };
        sidecars(&shared)?
            .start_sidecar_gen(&start, &generation)
            .map_err(|error| error.into_parts().1)
    })
    .await
}

/// SIGTERM, a grace, the kill and its proof.
async fn end(shared: &Arc<Shared>, proc: Option<Arc<Proc>>) -> Result<(), Error> {
    shared.lease.check()?;
    if let Some(proc) = &proc {
        let alive = proc.process.signal(Signal::TERM).unwrap_or(true);
        if alive {
            let _ended_or_not = tokio::time::timeout(GRACE, exit_of(proc)).await;
        }
    }
    let shared = Arc::clone(shared);
    blocking(move || {
        // It was lost during the grace.
        shared.lease.check()?;
        let leader = proc.as_ref().map(|proc| &proc.process);
        match sidecars(&shared)?.kill_sidecar(shared.route(), leader, Instant::now() + KILL) {
            // Without a cgroup of its own its leader is gone, and the proof on the host covers it.
            Err(error) if error.is_no_containment() => {}
            // With one that cannot be killed: as a generation, it is empty or its leader's exit
            // has to do.
            Err(error) if error.is_no_kill() => {
                let deadline = Instant::now() + KILL;
                shared.generations()?.end(shared.route(), LeafName::Sidecar, leader, deadline)?;
            }
            other => other?,
        }
        if let Some(proc) = &proc {
            proc.launched.forget();
        }
        shared.change(|state| state.sidecar = None)
    })
    .await
}
