//! Marks directories: as healthy workers leave them, and then spoiled by a case.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tickmark::marks::mark_now;
use tickmark::protocol::{
    Expected, Generation, Mark, MarkFile, Record as _, Slot, SlotCount, encode_expected,
    encode_generation, encode_mark,
};

use crate::site::Site;

/// Removed with the site.
pub(crate) struct Marks {
    path: PathBuf,
    generation: Option<Generation>,
}

impl Marks {
    /// A directory of which no file exists yet.
    pub(crate) fn empty(site: &Site) -> Self {
        Self::named(site, OsStr::new("marks"))
    }

    /// As [`Marks::empty`]; its name ends so.
    pub(crate) fn named(site: &Site, name: &OsStr) -> Self {
        let marks = Self::absent(site, name);
        fs::create_dir(&marks.path).expect("a directory for marks");
        fs::set_permissions(&marks.path, Permissions::from_mode(0o755)).expect("its mode");
        marks
    }

    /// The name of a directory that is not there.
    pub(crate) fn absent(site: &Site, name: &OsStr) -> Self {
        Self { path: site.fresh(name), generation: site.generation.clone() }
    }

    pub(crate) fn healthy(site: &Site, slots: u32) -> Self {
        let marks = Self::empty(site);
        marks.fill(slots);
        marks
    }

    /// One tick of so many healthy slots.
    pub(crate) fn fill(&self, slots: u32) {
        self.write("expected", Expected { processes: slots }.encode());
        if let Some(generation) = &self.generation {
            self.write("generation", generation.encode());
        }
        for slot in SlotCount::new(slots).expect("a number of slots").slots() {
            self.put(&self.mark(slot.get()));
        }
    }

    /// The same as text, as a Ruby worker leaves it.
    pub(crate) fn healthy_text(site: &Site, slots: u32) -> Self {
        let mut marks = Self::empty(site);
        marks.generation = site.text_generation();
        marks.write("expected", encode_expected(&Expected { processes: slots }));
        if let Some(text) = marks.generation.as_ref().and_then(encode_generation) {
            marks.write("generation", text);
        }
        for slot in 0..slots {
            marks.write(&format!("worker-{slot}"), encode_mark(&marks.mark(slot)));
        }
        marks
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory as the probe shows it, where its name is plain ASCII.
    pub(crate) fn shown(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// A healthy mark of now.
    pub(crate) fn mark(&self, slot: u32) -> Mark {
        let slot = Slot::new(slot).expect("a slot");
        Mark {
            sequence: 300,
            consumers_subscribed: 2,
            consumers_expected: 2,
            consumer_states: b"orders consuming; mails consuming"[..].try_into().expect("short"),
            ..mark_now(slot, self.generation.clone())
        }
    }

    /// One that its file's mtime decides about, whatever this machine's uptime is: it was left on
    /// another time namespace's clock, which is far ahead.
    pub(crate) fn mark_by_mtime(&self, slot: u32) -> Mark {
        Mark { monotonic_ns: 1 << 60, time_namespace: 1, ..self.mark(slot) }
    }

    pub(crate) fn put(&self, mark: &Mark) {
        self.write(&format!("worker-{}", mark.slot), MarkFile::encode(mark));
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        fs::write(self.file(name), contents).expect("a file of the marks directory");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).expect("a file of the marks directory")
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).expect("a file to remove");
    }

    pub(crate) fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.file(name), Permissions::from_mode(mode)).expect("a file's mode");
    }

    pub(crate) fn modified(&self, name: &str, at: SystemTime) {
        let file = File::options().write(true).open(self.file(name)).expect("a file");
        file.set_modified(at).expect("its mtime");
    }

    pub(crate) fn modified_ago(&self, name: &str, age: Duration) {
        self.modified(name, SystemTime::now() - age);
    }
}
