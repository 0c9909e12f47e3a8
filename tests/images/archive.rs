//! Those that take the archive: skopeo by both of its formats, and a containerd of the tests' own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine::run;
use crate::image::Image;
use crate::site::Site;

/// The image for `architecture`, taken by skopeo from `source`.
pub(crate) fn taken_by_skopeo(site: &Site, source: &str, architecture: &str) -> Image {
    let (_, out) = site.new_directory("skopeo");
    run(Command::new("skopeo")
        .args(["copy", "--quiet", "--override-arch", architecture, source])
        .arg(format!("oci:{}:taken", out.display())));
    Image::of_layout(&out, architecture)
}

/// A containerd that ends when this is dropped.
pub(crate) struct Containerd {
    daemon: Child,
    socket: PathBuf,
}

impl Containerd {
    pub(crate) fn start(site: &Site) -> Self {
        let (_, directory) = site.new_directory("containerd");
        let socket = directory.join("sock");
        let config = directory.join("config.toml");
        fs::write(&config, "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n")
            .expect("a configuration");
        let log = fs::File::create(directory.join("log")).expect("a log");
        let daemon = Command::new("containerd")
            .arg("--config")
            .arg(&config)
            .arg("--root")
            .arg(directory.join("root"))
            .arg("--state")
            .arg(directory.join("state"))
            .arg("--address")
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd");
        let containerd = Self { daemon, socket };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !containerd.ctr().arg("version").output().is_ok_and(|output| output.status.success())
        {
            let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "containerd does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
        containerd
    }

    pub(crate) fn ctr(&self) -> Command {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(&self.socket);
        ctr
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ended = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}
