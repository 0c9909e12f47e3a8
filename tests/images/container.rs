//! A container from an image, run with `runc` as a hardened pod would be: a read-only root, no
//! capability, and a memory volume for the marks.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::image::Image;
use crate::site::Site;

/// As whom it runs and with which variables.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) uid: u32,
    pub(crate) environment: Vec<String>,
}

impl Running {
    /// What docs/KUBERNETES.md sets, with a tick that a test can wait for.
    pub(crate) fn as_documented() -> Self {
        Self::as_uid(1000)
    }

    pub(crate) fn as_uid(uid: u32) -> Self {
        let environment =
            ["PATH=/bin", "TICKMARK_DIR=/run/tickmark", "TICKMARK_TICK=1", "TICKMARK_MAX_AGE=30"];
        Self { uid, environment: environment.map(str::to_owned).to_vec() }
    }
}

/// What a process that ended said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Option<i32>,
    pub(crate) said: String,
}

/// A container that is deleted when this is dropped.
pub(crate) struct Container {
    site: Arc<Site>,
    name: String,
    bundle: PathBuf,
    running: Running,
}

impl Container {
    /// Starts `arguments` in the image and leaves it running.
    pub(crate) fn start(
        site: &Arc<Site>,
        image: &Image,
        running: Running,
        arguments: &[String],
    ) -> Self {
        let container = Self::prepare(site, image, running, arguments);
        let log = File::create(container.bundle.join("log")).expect("a log");
        let status = container
            .runc()
            .args(["run", "--detach", "--bundle"])
            .arg(&container.bundle)
            .arg(&container.name)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .status()
            .expect("runc");
        assert!(status.success(), "runc run {arguments:?}: {status}\n{}", container.log());
        container
    }

    /// Runs `arguments` as the container's only process.
    pub(crate) fn once(
        site: &Arc<Site>,
        image: &Image,
        running: Running,
        arguments: &[String],
    ) -> Answer {
        let container = Self::prepare(site, image, running, arguments);
        let mut run = container.runc();
        answer(run.args(["run", "--bundle"]).arg(&container.bundle).arg(&container.name))
    }

    fn prepare(site: &Arc<Site>, image: &Image, running: Running, arguments: &[String]) -> Self {
        let (name, bundle) = site.new_directory("bundle");
        let rootfs = bundle.join("rootfs");
        fs::create_dir(&rootfs).expect("a rootfs");
        image.unpack(&rootfs);
        let process = process(&running, arguments);
        fs::write(bundle.join("config.json"), config(&name, &process).to_string())
            .expect("config.json");
        Self { site: Arc::clone(site), name, bundle, running }
    }

    fn runc(&self) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.site.path("runc"));
        runc
    }

    /// What the main process wrote so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.bundle.join("log")).unwrap_or_default()
    }

    /// Runs a program beside the main process, with its credentials and environment, as a kubelet does.
    pub(crate) fn exec(&self, arguments: &[String]) -> Answer {
        let description = tempfile::NamedTempFile::new_in(&self.bundle).expect("a file");
        let process = process(&self.running, arguments);
        fs::write(description.path(), process.to_string()).expect("a process");
        let mut exec = self.runc();
        answer(exec.args(["exec", "--process"]).arg(description.path()).arg(&self.name))
    }

    /// Asks until the answer is exit 0, for 30 s at most, and gives the last answer.
    pub(crate) fn exec_until_success(&self, arguments: &[String]) -> Answer {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.exec(arguments);
            if answer.status == Some(0) || Instant::now() > deadline {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        let output = self.runc().args(["state", &self.name]).output().expect("runc");
        let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        state["status"] == "running"
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // One that ran to its end is gone already.
        let _gone = self.runc().args(["delete", "--force", &self.name]).output();
    }
}

fn answer(command: &mut Command) -> Answer {
    let output = command.stdin(Stdio::null()).output().expect("runc");
    let said = [output.stdout, output.stderr].concat();
    Answer { status: output.status.code(), said: String::from_utf8_lossy(&said).into_owned() }
}

fn process(running: &Running, arguments: &[String]) -> Value {
    json!({
        "terminal": false,
        "user": { "uid": running.uid, "gid": running.uid },
        "args": arguments,
        "env": running.environment,
        "cwd": "/",
        "noNewPrivileges": true,
    })
}

fn config(name: &str, process: &Value) -> Value {
    let namespaces = ["mount", "ipc", "uts", "network", "pid"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "process": process,
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "mode=755", "size=65536k"] },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
              "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] },
            // As the kubelet mounts an emptyDir with `medium: Memory` and `sizeLimit: 1Mi`.
            { "destination": "/run/tickmark", "type": "tmpfs", "source": "tmpfs",
              "options": ["mode=0777", "size=1m"] },
        ],
        "linux": {
            "cgroupsPath": format!("/{name}"),
            "namespaces": namespaces,
        },
    })
}
