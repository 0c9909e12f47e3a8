//! The worker's image, from its Containerfile: two static files and nothing else, run by runc as the
//! image says, with its probe beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::broker::Broker;
use crate::worker::{LATE, Site, TICK, until};

/// Why the image cannot be made or run here.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    for tool in ["buildah", "runc"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Some(format!("{tool} is not installed"));
        }
    }
    files().err()
}

/// The static builds that go into it.
fn files() -> Result<[PathBuf; 2], String> {
    let named = |variable: &str| {
        let file = std::env::var_os(variable)
            .map(|file| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file));
        file.filter(|file| file.is_file()).ok_or_else(|| {
            format!("{variable} names no static build (`cargo xtask test` makes one)")
        })
    };
    Ok([named("TICKMARK_PROBE")?, named("TICKMARK_LAPIN_WORKER")?])
}

pub(crate) fn the_image() {
    let broker = Broker::shared();
    let image = Image::build();
    let mut inside: Vec<String> = fs::read_dir(image.rootfs())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    inside.sort();
    assert_eq!(inside, ["tickmark-probe", "worker"]);

    let site = Site::new();
    // Any user may leave marks there, as in a pod without fsGroup.
    fs::set_permissions(site.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let container = Container::start(&image, &site, &broker.uri());
    until(Duration::from_secs(30), "healthy", || container.probe().0);
    assert_eq!(container.probe().1, "1 process(es) healthy\n", "{}", container.log());
    let explained = container.exec(&["/tickmark-probe", "--explain"]);
    assert!(explained.contains("2 of 2"), "{explained}");
    assert_eq!(broker.queue(&site.queues[0]), Some((1, 0)));

    // The only way in: there is no shell. The worker is process 1.
    container.exec(&["/worker", "switch", "stop-consumer"]);
    let stopped = format!("{} stopped", site.queues[0]);
    until(TICK + LATE, "a cancelled consumer", || container.log().contains(&stopped));
    until(site.pace.max_age + LATE, "red", || !container.probe().0);
    container.runc(&["kill", &container.name, "TERM"]);
    until(Duration::from_secs(5), "drained", || container.log().contains("drained"));
}

/// Built by buildah in a store of its own, and unpacked.
struct Image {
    home: TempDir,
    config: Value,
}

impl Image {
    fn build() -> Image {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        for name in ["context", "rootfs", "bundle"] {
            fs::create_dir(path(name)).unwrap();
        }
        let [probe, worker] = files().unwrap();
        fs::copy(probe, path("context/probe")).unwrap();
        fs::copy(worker, path("context/worker")).unwrap();
        let buildah = || {
            let mut buildah = Command::new("buildah");
            buildah.arg("--root").arg(path("store")).arg("--runroot").arg(path("run"));
            buildah.args(["--storage-driver", "vfs"]);
            buildah
        };
        let containerfile =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/lapin-worker/Containerfile");
        checked(
            buildah()
                .args(["bud", "--quiet", "--isolation", "chroot", "--pull-never", "--file"])
                .arg(containerfile)
                .args(["--build-arg", "PROBE=probe", "--build-arg", "WORKER=worker"])
                .args(["--tag", "lapin-worker"])
                .arg(path("context")),
        );
        let layout = format!("oci:{}:1", path("layout").display());
        checked(buildah().args([
            "push",
            "--quiet",
            "--disable-compression",
            "lapin-worker",
            &layout,
        ]));

        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
            path("layout/blobs").join(digest)
        };
        let read =
            |file: PathBuf| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
        let index = read(path("layout/index.json"));
        let manifest = read(blob(&index["manifests"][0]));
        for layer in manifest["layers"].as_array().unwrap() {
            checked(Command::new("tar").arg("-xf").arg(blob(layer)).arg("-C").arg(path("rootfs")));
        }
        let config = read(blob(&manifest["config"]))["config"].clone();
        Image { home, config }
    }

    fn rootfs(&self) -> PathBuf {
        self.home.path().join("rootfs")
    }
}

/// Deleted when this is dropped.
struct Container<'a> {
    image: &'a Image,
    name: String,
    variables: Vec<String>,
}

impl Container<'_> {
    fn start<'a>(image: &'a Image, site: &Site, uri: &str) -> Container<'a> {
        let variables = vec![
            "TICKMARK_DIR=/marks".to_owned(),
            format!("TICKMARK_MAX_AGE={}", site.pace.max_age.as_secs()),
            format!("TICKMARK_TICK={}", site.pace.tick.as_secs()),
            format!("DEMO_URI={uri}"),
            format!("DEMO_QUEUES={}", site.queues.join(",")),
        ];
        let name = format!("tickmark-lapin-{}", std::process::id());
        let container = Container { image, name, variables };
        // Of the host's network, which is where the broker is: on its loopback device.
        let config = json!({
            "ociVersion": "1.0.2",
            "process": container.process(image.config["Entrypoint"].clone()),
            "root": { "path": image.rootfs(), "readonly": true },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/marks", "type": "bind", "source": site.dir(),
                  "options": ["rbind", "rw"] },
            ],
            "linux": {
                "cgroupsPath": format!("/{}", container.name),
                "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "ipc" }],
            },
        });
        let bundle = image.home.path().join("bundle");
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let log = fs::File::create(bundle.join("log")).unwrap();
        let started = container
            .command()
            .args(["run", "--detach", "--bundle"])
            .arg(&bundle)
            .arg(&container.name)
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status();
        assert!(started.unwrap().success(), "runc run: {}", container.log());
        container
    }

    /// As the image says, and without any capability.
    fn process(&self, arguments: Value) -> Value {
        let user: u32 = self.image.config["User"].as_str().unwrap().parse().unwrap();
        json!({
            "user": { "uid": user, "gid": user },
            "args": arguments,
            "env": self.variables,
            "cwd": "/",
            "noNewPrivileges": true,
        })
    }

    fn command(&self) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.image.home.path().join("runc"));
        runc
    }

    fn runc(&self, arguments: &[&str]) {
        checked(self.command().args(arguments));
    }

    fn exec_output(&self, arguments: &[&str]) -> Output {
        let process = self.image.home.path().join("bundle/exec.json");
        fs::write(&process, self.process(json!(arguments)).to_string()).unwrap();
        self.command().args(["exec", "--process"]).arg(process).arg(&self.name).output().unwrap()
    }

    fn exec(&self, arguments: &[&str]) -> String {
        let output = self.exec_output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn probe(&self) -> (bool, String) {
        let output = self.exec_output(&["/tickmark-probe"]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.image.home.path().join("bundle/log")).unwrap_or_default()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // It complains of cgroups that are busy for a moment, and tries again.
        let deleted = self.command().args(["delete", "--force", &self.name]).output();
        match deleted {
            Ok(output) if output.status.success() => {}
            other => eprintln!("broker tests: cannot delete {}: {other:?}", self.name),
        }
    }
}

fn checked(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
}
