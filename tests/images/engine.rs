//! `buildah`, on a store that is the tests' own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::image::Image;
use crate::site::{BUSYBOX, Site, goarch, repository};

/// Somebody else's image; the name that the documents give it.
pub(crate) const BASE: &str = "localhost/your-base-image";

pub(crate) struct Engine {
    root: PathBuf,
    /// A build's context, laid out like the repository after `cargo xtask probe` and a worker's build.
    context: PathBuf,
    built: AtomicU32,
}

impl Engine {
    pub(crate) fn open(site: &Site) -> Self {
        let (_, root) = site.new_directory("store");
        let (_, context) = site.new_directory("context");
        let engine = Self { root, context, built: AtomicU32::new(0) };
        let dist = engine.context.join("dist");
        fs::create_dir(&dist).expect("dist/");
        for architecture in ["x86_64", "aarch64"] {
            let name = format!("tickmark-probe-{architecture}");
            let probe = site.layout.with_file_name(&name);
            fs::copy(&probe, dist.join(&name))
                .unwrap_or_else(|e| panic!("{}: {e}", probe.display()));
        }
        for triple in ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"] {
            let release = engine.context.join("target").join(triple).join("release");
            fs::create_dir_all(&release).expect("target/");
            fs::copy(&site.demo_worker, release.join("tickmark-demo-worker")).expect("a worker");
            fs::copy(&site.lapin_worker, release.join("tickmark-lapin-worker")).expect("a worker");
        }
        fs::copy(&site.demo_worker, engine.context.join("your-static-worker")).expect("a worker");
        // As `podman load` takes it: the name is in the archive.
        run(engine.buildah("pull").arg(format!("docker-archive:{}", site.archive.display())));
        engine.import_base(site);
        engine
    }

    fn buildah(&self, subcommand: &str) -> Command {
        let mut command = Command::new("buildah");
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(self.root.join("root"))
            .arg("--runroot")
            .arg(self.root.join("run"))
            .arg(subcommand);
        command
    }

    /// From a tar of a few files that are not ours: a shell, its names, and a file with a mode and an
    /// owner of its own.
    fn import_base(&self, site: &Site) {
        let (_, directory) = site.new_directory("base");
        let tar = directory.join("base.tar");
        let mut builder = tar::Builder::new(fs::File::create(&tar).expect("a tar"));
        let mut append = |name: &str, mode, owner, content: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_mode(mode);
            header.set_uid(owner);
            header.set_gid(owner);
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, content).expect("an entry");
        };
        append("bin/busybox", 0o755, 0, &fs::read(BUSYBOX).expect("busybox"));
        append("etc/theirs", 0o640, 1234, b"not ours\n");
        for name in ["sh", "kill", "cat"] {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_mode(0o777);
            header.set_size(0);
            let path = format!("bin/{name}");
            builder.append_link(&mut header, path, "busybox").expect("a link");
        }
        builder.finish().expect("a tar");
        let container = run(self.buildah("from").arg("scratch"));
        let container = container.trim();
        run(self.buildah("add").args(["--quiet", container]).arg(&tar).arg("/"));
        run(self.buildah("config").args([
            "--label",
            "theirs=kept",
            "--env",
            "PATH=/bin",
            container,
        ]));
        run(self.buildah("commit").args(["--quiet", "--rm", container, BASE]));
    }

    /// Builds `containerfile` in the context and returns the image.
    pub(crate) fn build(&self, containerfile: &Path, arguments: &[&str]) -> Image {
        // Two cases may build the same at once.
        let image = format!("localhost/built:{}", self.built.fetch_add(1, Ordering::Relaxed));
        // Only its own label would differ from an image that no engine made.
        run(self
            .buildah("build")
            .args(["--quiet", "--pull-never", "--identity-label=false", "--tag", &image])
            .args(arguments)
            .arg("--file")
            .arg(repository().join(containerfile))
            .arg(&self.context));
        self.pushed(&image)
    }

    /// An image of the store, as a registry would get it.
    fn pushed(&self, image: &str) -> Image {
        let out = tempfile::tempdir_in(&self.root).expect("a directory");
        run(self
            .buildah("push")
            .args(["--quiet", "--format", "oci", image])
            .arg(format!("oci:{}:pushed", out.path().display())));
        Image::of_layout(out.path(), goarch())
    }

    /// Somebody else's image as it is without the probe.
    pub(crate) fn base(&self) -> Image {
        self.pushed(BASE)
    }
}

/// Its standard output; a panic with its standard error where it fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
