//! What is being chosen: between a build's capture and its host's hands, and between its staging and
//! its capture, no state names it yet. Prune removes nothing then.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of all hosts of an activator: they may share a directory of builds.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// Held while builds are removed.
    removing: Mutex<()>,
    /// How often something was chosen; changed while `removing` is held.
    chosen: AtomicU64,
    deploying: Mutex<Vec<PathBuf>>,
}

impl Choices {
    /// A build is captured next. Waits for what is being removed.
    pub(crate) fn choose(&self) {
        let _none_goes = lock(&self.removing);
        self.chosen.fetch_add(1, Ordering::SeqCst);
    }

    /// The build at `path` stays while the answer does. Waits for what is being removed.
    pub(crate) fn deploy(self: &Arc<Choices>, path: PathBuf) -> Deploying {
        let _none_goes = lock(&self.removing);
        lock(&self.deploying).push(path.clone());
        Deploying { choices: Arc::clone(self), path }
    }

    /// What [`Choices::unless_chosen_since`] is given, once it is known what each host has.
    pub(crate) fn chosen(&self) -> u64 {
        self.chosen.load(Ordering::SeqCst)
    }

    /// Removes, with what is being deployed, while nothing can be chosen; `None`, and nothing is done,
    /// where something was meanwhile.
    pub(crate) fn unless_chosen_since<T>(
        &self,
        chosen: u64,
        remove: impl FnOnce(Vec<PathBuf>) -> T,
    ) -> Option<T> {
        let _none_is_chosen = lock(&self.removing);
        (self.chosen() == chosen).then(|| remove(lock(&self.deploying).clone()))
    }
}

/// A build that is being deployed.
#[derive(Debug)]
pub(crate) struct Deploying {
    choices: Arc<Choices>,
    path: PathBuf,
}

impl Drop for Deploying {
    fn drop(&mut self) {
        let mut deploying = lock(&self.choices.deploying);
        if let Some(at) = deploying.iter().position(|path| *path == self.path) {
            deploying.swap_remove(at);
        }
    }
}

/// Nothing is half done where a panic let go of one of these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
