//! One running container: made, looked into and deleted with `runc`.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use crate::marks::Marks;
use crate::site::{Site, WORKER};
use crate::spec::{self, Credentials, PidNamespace, Shape};

pub(crate) type Environment = Vec<(String, String)>;

/// A container that is deleted when this is dropped.
pub(crate) struct Container {
    site: Arc<Site>,
    name: String,
    bundle: PathBuf,
    credentials: Credentials,
    environment: Environment,
}

/// What a process that ended said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Option<i32>,
    pub(crate) line: String,
}

impl Container {
    pub(crate) fn start(
        site: &Arc<Site>,
        marks: &Marks,
        shape: &Shape,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let (name, bundle) = site.new_directory("bundle").expect("a bundle");
        let environment: Environment = [("TICKMARK_DIR", "/marks")]
            .iter()
            .chain(environment)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let process = spec::process(shape.credentials, &arguments, &environment);
        let config = spec::config(
            &name,
            &site.rootfs().to_string_lossy(),
            &marks.path().to_string_lossy(),
            shape,
            &process,
        );
        fs::write(bundle.join("config.json"), config.to_string()).expect("a config.json");
        let container = Self {
            site: Arc::clone(site),
            name,
            bundle,
            credentials: shape.credentials,
            environment,
        };
        // The main process inherits these, so they must be files: a pipe would keep a reader
        // waiting for as long as the container lives.
        let log = File::create(container.bundle.join("log")).expect("a log");
        let status = container
            .runc()
            .args(["run", "--detach", "--bundle"])
            .arg(&container.bundle)
            .arg("--pid-file")
            .arg(container.bundle.join("pid"))
            .arg(&container.name)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .status()
            .expect("runc");
        assert!(status.success(), "runc run: {status}\n{}", container.log());
        container
    }

    /// A pod's pause container: nothing but a PID 1 that outlives the others.
    pub(crate) fn pause(site: &Arc<Site>, marks: &Marks, credentials: Credentials) -> Self {
        let shape = Shape {
            credentials,
            pid: PidNamespace::Private,
            cgroup_namespace: site.unified_cgroup,
            read_only: true,
        };
        Self::start(site, marks, &shape, &[WORKER, "pause"], &[])
    }

    fn runc(&self) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.site.runc_state());
        runc
    }

    /// The main process's pid on the host.
    pub(crate) fn pid(&self) -> u32 {
        let pid = fs::read_to_string(self.bundle.join("pid")).expect("a pid file");
        pid.trim().parse().expect("a pid")
    }

    /// As the host sees it.
    pub(crate) fn mount_namespace(&self) -> String {
        let link = fs::read_link(format!("/proc/{}/ns/mnt", self.pid()));
        link.expect("a mount namespace").to_string_lossy().into_owned()
    }

    /// What the main process and its children logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.bundle.join("log")).unwrap_or_default()
    }

    /// Runs a program in the container with the main process's credentials and environment,
    /// as a kubelet runs an exec probe; `changes` win over that environment.
    pub(crate) fn exec(&self, arguments: &[&str], changes: &[(&str, &str)]) -> Answer {
        self.exec_as(self.credentials, arguments, changes)
    }

    /// The same with credentials of its own.
    pub(crate) fn exec_as(
        &self,
        credentials: Credentials,
        arguments: &[&str],
        changes: &[(&str, &str)],
    ) -> Answer {
        let environment: Environment = self
            .environment
            .iter()
            .filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name))
            .cloned()
            .chain(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
            .collect();
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let process = spec::process(credentials, &arguments, &environment);
        let output = self.exec_process(&process.to_string()).expect("runc exec");
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        Answer {
            status: output.status.code(),
            line: String::from_utf8_lossy(&said).trim_end().to_owned(),
        }
    }

    fn exec_process(&self, process: &str) -> io::Result<Output> {
        let description = tempfile::NamedTempFile::new_in(&self.bundle)?;
        fs::write(description.path(), process)?;
        self.runc()
            .args(["exec", "--process"])
            .arg(description.path())
            .arg(&self.name)
            .stdin(Stdio::null())
            .output()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = self.runc().args(["kill", &self.name, signal]).status();
        assert!(status.is_ok_and(|status| status.success()), "runc kill {signal}");
    }

    pub(crate) fn is_running(&self) -> bool {
        let output = self.runc().args(["state", &self.name]).output();
        let state: serde_json::Value =
            serde_json::from_slice(&output.expect("runc").stdout).unwrap_or_default();
        state["status"] == "running"
    }

    /// Ends it as a kubelet ends a container that is over its grace.
    pub(crate) fn delete(self) {
        drop(self);
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let deleted = self.runc().args(["delete", "--force", &self.name]).output();
        match deleted {
            Ok(output) if output.status.success() => {}
            other => eprintln!("container tests: cannot delete {}: {other:?}", self.name),
        }
    }
}
