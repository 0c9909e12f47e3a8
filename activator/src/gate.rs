//! The exec gate: the last question before a build runs. It is asked after all preparation, then
//! the pending record is written, then it is asked again; the last answer and the go share one
//! lock with revocation, so that what is revoked before never runs, and what is revoked after is
//! known to have run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{BoxError, Error, Kind};

/// A question that refuses by its error, which the start gives back as it is.
pub type Ask = dyn Fn() -> Result<(), BoxError> + Send + Sync;

/// Writes "this build may have run" durably; says whether it wrote.
pub type Record = dyn Fn() -> Result<bool, BoxError> + Send + Sync;

/// Why a context has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Whoever asked for it went away, or its deadline passed.
    Cancelled,
    /// A newer request took its place.
    Superseded,
    /// The lease on the state directory is lost.
    LeaseLost,
    /// A fence was set.
    Fenced,
    /// The activator is closing.
    Closing,
}

impl Ended {
    pub(crate) fn error(self) -> Error {
        match self {
            Ended::Cancelled => Error::new(Kind::Ended, "the request ended before the build ran"),
            Ended::Superseded => {
                Error::new(Kind::Superseded, "a newer request took this attempt's place")
            }
            Ended::LeaseLost => Error::new(
                Kind::LeaseLost,
                "the lease on the state directory is lost: another activator may have it",
            ),
            Ended::Fenced => Error::new(Kind::Fenced, "a fence allows no launch for this host"),
            Ended::Closing => Error::new(Kind::Ended, "the activator is closing"),
        }
    }
}

/// What a start belongs to: it can end at any time, and ending it revokes every start that has not
/// gone yet. Clones are the same context.
#[derive(Debug, Clone, Default)]
pub struct Context(Arc<Mutex<Option<Ended>>>);

impl Context {
    /// One that has not ended.
    #[must_use]
    pub fn new() -> Context {
        Context::default()
    }

    /// Ends it; the first reason stays. Waits for a go that is under way: when this returns,
    /// whatever of this context has not run never will.
    pub fn end(&self, why: Ended) {
        let _first = self.lock().get_or_insert(why);
    }

    /// Why it has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ended>> {
        // What panicked while it held the lock was a go: the reason in it is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one start must pass. Without a gate, a record and a live check it has no hook at all.
#[derive(Clone, Default)]
pub struct Gate {
    /// Locked in this order.
    contexts: Vec<Context>,
    caller: Option<Arc<Ask>>,
    live: Vec<Arc<Ask>>,
    record: Option<Arc<Record>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("contexts", &self.contexts)
            .field("caller", &self.caller.is_some())
            .field("live", &self.live.len())
            .field("record", &self.record.is_some())
            .finish()
    }
}

impl Gate {
    /// No gate: a start goes as soon as it is prepared.
    #[must_use]
    pub fn none() -> Gate {
        Gate::default()
    }

    /// The caller's own question, and the context that its starts honour.
    #[must_use]
    pub fn asking(
        context: Context,
        ask: impl Fn() -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Gate {
        Gate { contexts: vec![context], caller: Some(Arc::new(ask)), ..Gate::default() }
    }

    /// Honours `context` too, another than the one that it has: a start may belong to more than one
    /// thing that ends.
    #[must_use]
    pub fn within(mut self, context: Context) -> Gate {
        self.contexts.push(context);
        self
    }

    /// Writes the pending record between the two rounds.
    #[must_use]
    pub fn recording(
        self,
        record: impl Fn() -> Result<bool, BoxError> + Send + Sync + 'static,
    ) -> Gate {
        Gate { record: Some(Arc::new(record)), ..self }
    }

    /// Asks `live` after the caller's, in both rounds: whether the build that the live link named
    /// may still run. It answers from memory, the row and the live link, and calls nothing back.
    /// One more is asked after those that are there.
    #[must_use]
    pub fn live(mut self, live: impl Fn() -> Result<(), BoxError> + Send + Sync + 'static) -> Gate {
        self.live.push(Arc::new(live));
        self
    }

    /// What a backend runs immediately before the exec; `None` where there is nothing to ask or to
    /// write.
    #[must_use]
    pub fn hook(&self) -> Option<Hook<'_>> {
        let any = self.caller.is_some() || !self.live.is_empty() || self.record.is_some();
        any.then_some(Hook { gate: self })
    }

    /// Passes the hook, if there is one, and then goes: for a backend of any kind.
    ///
    /// # Errors
    /// [`Refused`]: nothing ran.
    pub fn pass<T>(&self, go: impl FnOnce() -> T) -> Result<T, Refused> {
        match self.hook() {
            Some(hook) => hook.pass(go),
            None => Ok(go()),
        }
    }
}

/// A start was refused immediately before its exec: nothing of it ran.
#[derive(Debug)]
pub struct Refused {
    error: BoxError,
}

impl Refused {
    /// The gate's error as it was given.
    #[must_use]
    pub fn into_inner(self) -> BoxError {
        self.error
    }

    /// As this crate's error. One of our own stays what it is, so that a lost lease is told from
    /// a fence; any other becomes the source.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self.error.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => {
                Error::because(Kind::Refused, "refused at the gate, and nothing ran", other)
            }
        }
    }
}

impl From<BoxError> for Refused {
    fn from(error: BoxError) -> Refused {
        Refused { error }
    }
}

/// See [`Gate::hook`].
#[derive(Debug)]
pub struct Hook<'g> {
    gate: &'g Gate,
}

impl Hook<'_> {
    /// Asks, writes, asks again if something was written, and goes.
    ///
    /// # Errors
    /// [`Refused`] by an answer, by the write, or by a context that has ended.
    pub fn pass<T>(self, go: impl FnOnce() -> T) -> Result<T, Refused> {
        let gate = self.gate;
        let lock = || gate.contexts.iter().map(Context::lock).collect::<Vec<_>>();
        // A start without a gate of its caller's does not honour a context: it has none.
        let honour = |locked: &[MutexGuard<'_, Option<Ended>>]| {
            let ended = locked.iter().find_map(|ended| **ended);
            match ended.filter(|_| gate.caller.is_some()) {
                Some(ended) => Err(Refused::from(BoxError::from(ended.error()))),
                None => Ok(()),
            }
        };
        let round = || -> Result<(), Refused> {
            for ask in gate.caller.iter().chain(&gate.live) {
                ask()?;
            }
            Ok(())
        };
        let Some(record) = &gate.record else {
            let locked = lock();
            honour(&locked)?;
            round()?;
            return Ok(go());
        };
        honour(&lock())?;
        round()?;
        let wrote = record()?;
        // Everything may have changed during the write. Revocation takes this lock.
        let locked = lock();
        honour(&locked)?;
        if wrote {
            round()?;
        }
        Ok(go())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default, Clone)]
    struct Trace(Arc<Mutex<Vec<&'static str>>>);

    impl Trace {
        fn say(&self, what: &'static str) {
            self.0.lock().unwrap().push(what);
        }
        fn said(&self) -> Vec<&'static str> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
        fn asks(&self, what: &'static str) -> impl Fn() -> Result<(), BoxError> + use<> {
            let trace = self.clone();
            move || {
                trace.say(what);
                Ok(())
            }
        }
        fn writes(&self, wrote: bool) -> impl Fn() -> Result<bool, BoxError> + use<> {
            let trace = self.clone();
            move || {
                trace.say("record");
                Ok(wrote)
            }
        }
    }

    #[test]
    fn the_gate_is_asked_the_record_written_and_the_gate_asked_again() {
        let trace = Trace::default();
        let gate = Gate::asking(Context::new(), trace.asks("caller"))
            .live(trace.asks("live"))
            .recording(trace.writes(true));
        gate.pass(|| trace.say("go")).unwrap();
        assert_eq!(trace.said(), ["caller", "live", "record", "caller", "live", "go"]);
    }

    #[test]
    fn only_a_record_that_was_really_written_asks_again() {
        let trace = Trace::default();
        let gate =
            Gate::asking(Context::new(), trace.asks("caller")).recording(trace.writes(false));
        gate.pass(|| trace.say("go")).unwrap();
        assert_eq!(trace.said(), ["caller", "record", "go"]);
    }

    #[test]
    fn with_no_gate_no_record_and_no_live_check_there_is_no_hook() {
        assert!(Gate::none().hook().is_none());
        assert!(Gate::none().within(Context::new()).hook().is_none());
        let trace = Trace::default();
        assert!(Gate::none().live(trace.asks("live")).hook().is_some());
        assert!(Gate::none().recording(trace.writes(true)).hook().is_some());
    }

    #[test]
    fn a_failed_write_refuses_asks_nothing_more_and_keeps_the_error_as_it_is() {
        let trace = Trace::default();
        let gate = Gate::asking(Context::new(), trace.asks("caller"))
            .recording(|| Err("disk full".into()));
        let refused = gate.pass(|| panic!("it ran")).unwrap_err();
        assert_eq!(refused.into_inner().to_string(), "disk full");
        assert_eq!(trace.said(), ["caller"]);
        let gate = Gate::none().recording(|| Err("disk full".into()));
        let refused = gate.pass(|| panic!("it ran")).unwrap_err();
        let error = refused.into_error();
        assert!(error.is_refused());
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "disk full");
    }

    #[test]
    fn what_changes_during_the_write_refuses_by_the_second_answer() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let gate =
            Gate::asking(Context::new(), move || match counted.fetch_add(1, Ordering::SeqCst) {
                0 => Ok(()),
                _ => Err("superseded".into()),
            })
            .recording(|| Ok(true));
        let refused = gate.pass(|| panic!("it ran")).unwrap_err();
        assert_eq!(refused.into_inner().to_string(), "superseded");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn what_the_caller_refuses_asks_neither_the_live_check_nor_the_record() {
        let trace = Trace::default();
        let gate = Gate::asking(Context::new(), || Err("no".into()))
            .live(trace.asks("live"))
            .recording(trace.writes(true));
        gate.pass(|| panic!("it ran")).unwrap_err();
        assert!(trace.said().is_empty());
        let gate = Gate::asking(Context::new(), trace.asks("caller"))
            .live(|| Err("failed before".into()))
            .recording(trace.writes(true));
        gate.pass(|| panic!("it ran")).unwrap_err();
        assert_eq!(trace.said(), ["caller"]);
    }

    #[test]
    fn a_gated_start_whose_context_has_ended_starts_nothing() {
        for wrote in [None, Some(false), Some(true)] {
            let context = Context::new();
            let trace = Trace::default();
            let mut gate = Gate::asking(context.clone(), trace.asks("caller"));
            if let Some(wrote) = wrote {
                let during = context.clone();
                gate = gate.recording(move || {
                    during.end(Ended::LeaseLost);
                    Ok(wrote)
                });
            } else {
                context.end(Ended::LeaseLost);
            }
            let error = gate.pass(|| panic!("it ran")).unwrap_err().into_error();
            assert!(error.is_lease_lost() && error.is_refused());
        }
    }

    /// Revoked before: nothing ran. Revoked after: `end` has waited for the go. Whichever of its
    /// contexts ends.
    #[test]
    fn revocation_and_go_share_one_lock() {
        for round in 0..2_000 {
            let contexts = [Context::new(), Context::new()];
            let gate = Gate::asking(contexts[0].clone(), || Ok(())).within(contexts[1].clone());
            let context = &contexts[round % 2];
            let ran = Arc::new(AtomicUsize::new(0));
            let going = Arc::clone(&ran);
            let starter = std::thread::spawn(move || {
                gate.pass(|| {
                    going.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    going.fetch_add(1, Ordering::SeqCst);
                })
                .is_ok()
            });
            context.end(Ended::Superseded);
            let at_return = ran.load(Ordering::SeqCst);
            let started = starter.join().unwrap();
            assert_eq!(at_return, if started { 2 } else { 0 });
            assert_eq!(ran.load(Ordering::SeqCst), at_return, "nothing runs after the revocation");
        }
    }
}
