//! The write fence: a write on behalf of one generation runs inside the fence, which says whether
//! it ran. Who holds the fence decides which generations may write; here is only the seam.

use std::sync::Arc;

use crate::name::{GenerationNumber, HostName};

/// Runs the write inside itself, or not; says whether it ran.
pub type Fence = dyn Fn(&HostName, GenerationNumber, &mut dyn FnMut()) -> bool + Send + Sync;

/// A write fence, keyed by host and generation, or none.
#[derive(Clone, Default)]
pub struct WriteFence(Option<Arc<Fence>>);

impl WriteFence {
    /// Writes go through `fence`.
    #[must_use]
    pub fn new(
        fence: impl Fn(&HostName, GenerationNumber, &mut dyn FnMut()) -> bool + Send + Sync + 'static,
    ) -> WriteFence {
        WriteFence(Some(Arc::new(fence)))
    }

    /// Runs `write` inside the fence and says whether it ran; without a fence it runs unfenced.
    pub fn run(&self, host: &HostName, number: GenerationNumber, write: impl FnOnce()) -> bool {
        let mut write = Some(write);
        let mut ran = false;
        let mut once = || {
            if let Some(write) = write.take() {
                write();
                ran = true;
            }
        };
        if let Some(fence) = &self.0 {
            // What the fence says must be what happened: the write itself knows.
            fence(host, number, &mut once);
        } else {
            once();
        }
        ran
    }
}

impl std::fmt::Debug for WriteFence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "WriteFence(set)" } else { "WriteFence(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn the_write_fence_runs_the_write_inside_itself_and_says_whether_it_ran() {
        let host = HostName::new("orders").unwrap();
        let inside = Arc::new(Mutex::new(false));
        let held = Arc::clone(&inside);
        let fence = WriteFence::new(move |_, number, write| {
            *held.lock().unwrap() = true;
            let current = number == GenerationNumber::FIRST;
            if current {
                write();
                write();
            }
            *held.lock().unwrap() = false;
            current
        });
        let mut writes = 0;
        let mut was_inside = false;
        let ran = fence.run(&host, GenerationNumber::FIRST, || {
            writes += 1;
            was_inside = *inside.lock().unwrap();
        });
        assert!(ran && was_inside && writes == 1);
        assert!(!fence.run(&host, GenerationNumber::LARGEST, || writes += 1));
        assert_eq!(writes, 1, "a fenced write does not run");
        assert!(WriteFence::default().run(&host, GenerationNumber::LARGEST, || writes += 1));
        assert_eq!(writes, 2, "without a fence it runs unfenced");
    }
}
