//! kubectl, told context and namespace in each call. Nothing here can be called without both, and
//! nothing reads or changes which context is current.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::answer::{Doing as _, Stop};

#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    pub(crate) context: String,
    pub(crate) namespace: String,
    /// Else what KUBECONFIG says, or the file in the home directory.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// What a program in a container said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Kubectl {
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        if let Some(file) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(file);
        }
        command
            .args(["--context", &self.context, "--namespace", &self.namespace])
            .args(arguments)
            .stdin(Stdio::null())
            // An interrupt at the terminal is for us: cleaning up needs kubectl.
            .process_group(0);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String, Stop> {
        let output = self.command(arguments).output().doing("run kubectl")?;
        said(&output, &arguments.join(" "))
    }

    pub(crate) fn get(&self, arguments: &[&str]) -> Result<Value, Stop> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).doing(format_args!("read kubectl get {}", arguments.join(" ")))
    }

    pub(crate) fn apply(&self, object: &Value) -> Result<(), Stop> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let mut child = self
            .command(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .doing("run kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(object.to_string().as_bytes()).doing("write to kubectl apply")?;
        }
        let output = child.wait_with_output().doing("wait for kubectl")?;
        said(&output, &format!("apply of {name}")).map(drop)
    }

    /// Runs a program in a container. What it ended with is kubectl's own status.
    pub(crate) fn exec(
        &self,
        pod: &str,
        container: &str,
        arguments: &[&str],
    ) -> Result<Said, Stop> {
        let fixed = ["exec", pod, "-c", container, "--"];
        let output = self.command(&[&fixed, arguments].concat()).output().doing("run kubectl")?;
        Ok(Said {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
            err: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        })
    }

    /// The contexts that are there, for an error and for a refusal.
    pub(crate) fn contexts(kubeconfig: Option<&PathBuf>) -> Result<Vec<String>, Stop> {
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(file) = kubeconfig {
            arguments.extend(["--kubeconfig".into(), file.into()]);
        }
        arguments.extend(["config", "get-contexts", "-o", "name"].map(OsString::from));
        let output = Command::new("kubectl")
            .args(arguments)
            .stdin(Stdio::null())
            .process_group(0)
            .output()
            .doing("run kubectl (is it installed?)")?;
        Ok(said(&output, "config get-contexts")?.lines().map(str::to_owned).collect())
    }
}

fn said(output: &Output, what: &str) -> Result<String, Stop> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let err = String::from_utf8_lossy(&output.stderr);
    Err(Stop::Failed(format!("kubectl {what}: {}: {}", output.status, err.trim_end())))
}
