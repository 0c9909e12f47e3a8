//! What the tests run on: the files that were built, and one temporary directory with an image store of
//! its own, gone at the end.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::Engine;
use crate::image::Image;

pub(crate) struct Site {
    directory: tempfile::TempDir,
    next: AtomicU32,
    /// What `cargo xtask image` wrote: the layout, and the archive beside it.
    pub(crate) layout: PathBuf,
    pub(crate) archive: PathBuf,
    /// This program's `xtask`, for the commands of the documents.
    pub(crate) xtask: PathBuf,
    pub(crate) demo_worker: PathBuf,
    pub(crate) lapin_worker: PathBuf,
    engine: OnceLock<Engine>,
}

/// The repository's root.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a repository")
}

/// Debian's, for somebody else's image.
pub(crate) const BUSYBOX: &str = "/bin/busybox";

impl Site {
    /// The reason, where nothing can run here.
    pub(crate) fn open() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        for tool in ["runc", "buildah", "skopeo", "containerd", "ctr"] {
            if Command::new(tool).arg("--version").output().is_err() {
                return Err(format!("needs {tool}"));
            }
        }
        if !Path::new(BUSYBOX).is_file() {
            return Err(format!("needs {BUSYBOX} (Debian: busybox-static)"));
        }
        let named = |variable: &str| {
            let path = env::var_os(variable).map(|path| repository().join(path));
            path.filter(|path| path.exists()).ok_or_else(|| {
                format!("{variable} names nothing that is there: see `cargo xtask test`")
            })
        };
        let layout = named("TICKMARK_IMAGE")?;
        Ok(Self {
            directory: tempfile::Builder::new()
                .prefix("tickmark-images.")
                .tempdir_in("/var/tmp")
                .map_err(|error| format!("needs /var/tmp: {error}"))?,
            next: AtomicU32::new(0),
            archive: layout.with_file_name("tickmark-probe-image.tar"),
            layout,
            xtask: named("TICKMARK_XTASK")?,
            demo_worker: named("TICKMARK_DEMO_WORKER")?,
            lapin_worker: named("TICKMARK_LAPIN_WORKER")?,
            engine: OnceLock::new(),
        })
    }

    /// A new directory, and its name, which no other of this machine has.
    pub(crate) fn new_directory(&self, what: &str) -> (String, PathBuf) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("tickmark-image-{}-{number}-{what}", std::process::id());
        let path = self.directory.path().join(&name);
        fs::create_dir(&path).expect("a directory");
        (name, path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The image store, with the probe's image loaded and somebody else's made.
    pub(crate) fn engine(&self) -> &Engine {
        self.engine.get_or_init(|| Engine::open(self))
    }

    /// The image that `cargo xtask image` wrote, for this machine.
    pub(crate) fn probe_image(&self) -> Image {
        Image::of_layout(&self.layout, goarch())
    }
}

/// This machine's architecture as images name it.
pub(crate) fn goarch() -> &'static str {
    match env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}
