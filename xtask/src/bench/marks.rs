//! Marks directories to measure the probe with: as a healthy worker leaves them, on a tmpfs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tickmark::protocol::{
    Encoding, Expected, Generation, Mark, MarkFile, Record as _, Slot, SlotCount,
};
use tickmark::{marks::mark_now, procfs};

use crate::outcome::{Doing as _, Failure};

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct MarksDirectory {
    path: PathBuf,
    slots: u32,
    generation: Option<Generation>,
}

impl MarksDirectory {
    pub(crate) fn fresh(slots: u32) -> Result<Self, Failure> {
        let shared_memory = Path::new("/dev/shm");
        let parent =
            if shared_memory.is_dir() { shared_memory.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("tickmark-bench-{}-{slots}", std::process::id()));
        fs::create_dir(&path).doing(format_args!("make {}", path.display()))?;
        let generation = procfs::inspect(Encoding::Binary, false, None).generation;
        let directory = Self { path, slots, generation };
        directory.refresh()?;
        Ok(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the probe is started with.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        vec!["--dir".into(), self.path.clone().into()]
    }

    /// One tick of every slot.
    pub(crate) fn refresh(&self) -> Result<(), Failure> {
        let processes = self.slots;
        self.write("expected", &Expected { processes }.encode())?;
        if let Some(generation) = &self.generation {
            self.write("generation", &generation.encode())?;
        }
        let slots = SlotCount::new(processes).doing("the number of slots")?;
        for slot in slots.slots() {
            self.write(&format!("worker-{slot}"), &MarkFile::encode(&self.mark(slot)))?;
        }
        Ok(())
    }

    fn mark(&self, slot: Slot) -> Mark {
        Mark {
            consumers_subscribed: 2,
            consumers_expected: 2,
            consumer_states: b"orders consuming; mails consuming"[..].try_into().expect("short"),
            ..mark_now(slot, self.generation.clone())
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let path = self.path.join(name);
        fs::write(&path, content).doing(format_args!("write {}", path.display()))
    }
}

impl Drop for MarksDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("left behind: {}: {error}", self.path.display());
        }
    }
}
