//! The cluster: one that was named, or one made with kind for this run alone. What is made here is
//! deleted here, and nothing else.

use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answer::{Doing as _, Stop};
use crate::images::Images;
use crate::kubectl::Kubectl;
use crate::manifest::RUN;
use crate::options::Target;

/// A namespace with this label may be used though this run did not make it.
const OURS: &str = "tickmark.verify";

pub(crate) struct Cluster {
    pub(crate) kubectl: Kubectl,
    run: String,
    load: Load,
    made_namespace: bool,
    closed: bool,
}

enum Load {
    Nothing,
    Command(String),
    Kind { name: String, _home: TempDir },
}

impl Cluster {
    pub(crate) fn open(target: &Target, run: &str) -> Result<Cluster, Stop> {
        match target {
            Target::Existing { context, namespace, load } => {
                let kubectl = Kubectl {
                    context: context.clone(),
                    namespace: namespace.clone(),
                    kubeconfig: None,
                };
                let known = Kubectl::contexts(None)?;
                if !known.contains(context) {
                    return Err(Stop::Failed(format!(
                        "there is no context {context}; the kubeconfig has {}",
                        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                    )));
                }
                let load = match load {
                    None => Load::Nothing,
                    Some(command) if command.contains("{}") => Load::Command(command.clone()),
                    Some(command) => {
                        return Err(Stop::Failed(format!(
                            "--load {command}: there is no {{}} in it"
                        )));
                    }
                };
                Cluster::with(kubectl, load, run)
            }
            Target::Kind { image } => {
                let name = format!("tickmark-verify-{run}");
                let home = tempfile::tempdir().doing("make a directory for the kubeconfig")?;
                let kubeconfig = home.path().join("kubeconfig");
                let kubectl = Kubectl {
                    context: format!("kind-{name}"),
                    namespace: "tickmark-verify".to_owned(),
                    kubeconfig: Some(kubeconfig.clone()),
                };
                let file = kubeconfig.to_string_lossy();
                let mut create = vec![
                    "create",
                    "cluster",
                    "--name",
                    &name,
                    "--kubeconfig",
                    &file,
                    "--wait",
                    "180s",
                ];
                if let Some(image) = image {
                    create.extend(["--image", image]);
                }
                let made = kind(&create);
                let load = Load::Kind { name: name.clone(), _home: home };
                // Half a cluster is deleted too.
                made.and_then(|()| Cluster::with(kubectl, load, run)).inspect_err(|_| {
                    let _said = kind(&["delete", "cluster", "--name", &name]);
                })
            }
        }
    }

    fn with(kubectl: Kubectl, load: Load, run: &str) -> Result<Cluster, Stop> {
        let namespace = kubectl.namespace.clone();
        let found =
            kubectl.run(&["get", "namespace", &namespace, "--ignore-not-found", "-o", "json"])?;
        let made_namespace = found.trim().is_empty();
        if made_namespace {
            kubectl.apply(&json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": { "name": namespace, "labels": { OURS: "true", RUN: run } },
            }))?;
        } else {
            let found: Value = serde_json::from_str(&found).doing("read the namespace")?;
            if found["metadata"]["labels"][OURS] != "true" {
                return Err(Stop::Failed(format!(
                    "the namespace {namespace} is there and is not ours: name one that is not there, \
                     or label it {OURS}=true"
                )));
            }
        }
        Ok(Cluster { kubectl, run: run.to_owned(), load, made_namespace, closed: false })
    }

    /// Brings every archive into the cluster.
    pub(crate) fn load(&self, images: &Images) -> Result<(), Stop> {
        for (archive, _) in images.archives.values() {
            match &self.load {
                Load::Nothing => {}
                Load::Command(command) => load_with(command, archive)?,
                Load::Kind { name, .. } => {
                    let archive = archive.to_string_lossy();
                    kind(&["load", "image-archive", &archive, "--name", name])?;
                }
            }
        }
        Ok(())
    }

    /// What runs here: of the first node.
    pub(crate) fn describe(&self) -> Result<Description, Stop> {
        let nodes = self.kubectl.get(&["nodes"])?;
        let info = &nodes["items"][0]["status"]["nodeInfo"];
        let text = |key: &str| info[key].as_str().unwrap_or("?").to_owned();
        Ok(Description {
            kubernetes: text("kubeletVersion"),
            kernel: text("kernelVersion"),
            runtime: text("containerRuntimeVersion"),
        })
    }

    /// Deletes what this run made. All that goes wrong is told.
    pub(crate) fn close(&mut self) -> Vec<String> {
        if std::mem::replace(&mut self.closed, true) {
            return Vec::new();
        }
        let mut wrong = Vec::new();
        if let Load::Kind { name, .. } = &self.load {
            wrong.extend(kind(&["delete", "cluster", "--name", name]).err());
        } else {
            wrong.extend(delete(&self.kubectl, &format!("{RUN}={}", self.run), true).err());
            if self.made_namespace {
                let delete = [
                    "delete",
                    "namespace",
                    &self.kubectl.namespace,
                    "--wait=true",
                    "--timeout=120s",
                ];
                wrong.extend(self.kubectl.run(&delete).err());
            }
        }
        wrong.into_iter().map(|stop| stop.to_string()).collect()
    }
}

/// Deletes all that carries a label: first what would make pods again, then the pods.
pub(crate) fn delete(kubectl: &Kubectl, label: &str, wait: bool) -> Result<(), Stop> {
    let wait = if wait { "--wait=true" } else { "--wait=false" };
    for kinds in ["deployments,daemonsets", "replicasets"] {
        kubectl.run(&["delete", kinds, "-l", label, "--cascade=orphan", "--wait=true"])?;
    }
    let now = ["delete", "pods", "-l", label, "--grace-period=1", "--timeout=120s", wait];
    kubectl.run(&now).map(drop)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for wrong in self.close() {
            eprintln!("left behind: {wrong}");
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) kubernetes: String,
    pub(crate) kernel: String,
    pub(crate) runtime: String,
}

fn kind(arguments: &[&str]) -> Result<(), Stop> {
    eprintln!("kind {}", arguments.join(" "));
    let mut command = Command::new("kind");
    command.args(arguments);
    finish(command, "kind")
}

fn load_with(command: &str, archive: &Path) -> Result<(), Stop> {
    let mut shell = Command::new("sh");
    shell.args(["-c", &command.replace("{}", "\"$1\""), "sh"]).arg(archive);
    finish(shell, command)
}

fn finish(mut command: Command, what: &str) -> Result<(), Stop> {
    // An interrupt at the terminal is for us.
    let output = command.stdin(Stdio::null()).process_group(0).output();
    let output = output.doing(format_args!("run {what}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(Stop::Failed(format!("{what}: {}: {}", output.status, String::from_utf8_lossy(&said))))
}

/// This machine's address in a network that `other` is in too.
pub(crate) fn address_beside(other: &str) -> Option<IpAddr> {
    let IpAddr::V4(other) = other.parse().ok()? else { return None };
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    interfaces
        .filter_map(|interface| {
            let address = interface.address?.as_sockaddr_in()?.ip();
            let mask = interface.netmask?.as_sockaddr_in()?.ip();
            Some((address, mask))
        })
        .find(|(address, mask)| {
            u32::from(*mask) != u32::MAX
                && address != &other
                && u32::from(*address) & u32::from(*mask) == u32::from(other) & u32::from(*mask)
        })
        .map(|(address, _)| IpAddr::V4(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_its_own_neighbour_in_its_loopback_network() {
        assert_eq!(address_beside("127.9.9.9"), Some(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(address_beside("240.0.0.1"), None);
    }

    #[test]
    fn a_load_command_gets_the_archive_as_one_word() {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("an image.tar");
        std::fs::write(&archive, "x").unwrap();
        assert_eq!(load_with("test -f {}", &archive), Ok(()));
        assert!(load_with("test -d {}", &archive).is_err());
    }
}
