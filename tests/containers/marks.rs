//! A marks directory like a pod's `emptyDir` with `medium: Memory`: a tmpfs on the host that
//! outlives the containers it is mounted into.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::site::Site;

pub(crate) struct Marks {
    path: PathBuf,
}

impl Marks {
    pub(crate) fn new(site: &Site) -> Self {
        let (_, path) = site.new_directory("marks").expect("a marks directory");
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), c"mode=0777,size=1m")
            .expect("a tmpfs for the marks");
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// Every file by name, to say in a failure what was there.
    pub(crate) fn listing(&self) -> BTreeMap<String, u64> {
        fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let length = entry.metadata().ok()?.len();
                Some((entry.file_name().to_string_lossy().into_owned(), length))
            })
            .collect()
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        if let Err(failure) = unmount(&self.path, UnmountFlags::DETACH) {
            eprintln!("container tests: cannot unmount {:?}: {failure}", self.path);
        }
    }
}
