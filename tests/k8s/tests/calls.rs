//! What is called, and with what: kind and kubectl are stand-ins here, scripts that write down how they
//! were called and answer just enough. That the calls do what they should is shown on a real cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const KIND: &str = "#!/bin/sh\necho \"kind $*\" >>\"$CALLS\"\n";

/// It knows two contexts; the namespaces and the pods are what the test says.
const KUBECTL: &str = r#"#!/bin/sh
echo "kubectl $*" >>"$CALLS"
case "$*" in
  *"config get-contexts"*) printf 'mine\nother\n' ;;
  *"get namespace"*) printf '%s' "$NAMESPACE" ;;
  *"get -o json nodes"*) echo '{"items": [{"status": {"nodeInfo": {"kubeletVersion": "v9"}}}]}' ;;
  *--watch*) exec sleep 60 ;;
  *"apply -f -"*) cat >/dev/null; exit "${APPLY:-0}" ;;
esac
"#;

struct Site {
    home: TempDir,
}

impl Site {
    fn new() -> Site {
        let home = tempfile::tempdir().unwrap();
        for (name, script) in [("kind", KIND), ("kubectl", KUBECTL)] {
            let path = home.path().join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(home.path().join("images")).unwrap();
        for name in ["node", "lapin-worker"] {
            archive(&home.path().join(format!("images/{name}.tar")), name);
        }
        Site { home }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let path = format!("{}:{}", self.home.path().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tickmark-verify"));
        command
            .args(["--images", &self.home.path().join("images").to_string_lossy()])
            .args(arguments)
            .env("PATH", path)
            .env("CALLS", self.calls_file())
            .stdin(Stdio::null());
        command
    }

    fn calls_file(&self) -> PathBuf {
        self.home.path().join("calls")
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.calls_file()).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }
}

fn archive(path: &Path, name: &str) {
    let index = format!(
        "{{\"manifests\": [{{\"annotations\": {{\"io.containerd.image.name\": \"localhost/{name}:1\"}}}}]}}"
    );
    let mut archive = tar::Builder::new(fs::File::create(path).unwrap());
    let mut header = tar::Header::new_ustar();
    header.set_size(index.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "index.json", index.as_bytes()).unwrap();
    archive.finish().unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn kind_makes_a_cluster_of_its_own_and_deletes_it_whatever_happens() {
    let site = Site::new();
    // The cluster comes up, and then nothing can be made in it.
    let output = site
        .command(&["--kind", "--kind-image", "kindest/node:v1.34.0", "1"])
        .env("APPLY", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let calls = site.calls();
    let name = calls[0]
        .strip_prefix("kind create cluster --name ")
        .and_then(|rest| rest.split(' ').next())
        .unwrap()
        .to_owned();
    assert!(name.starts_with("tickmark-verify-"), "{name}");
    assert!(calls[0].ends_with("--wait 180s --image kindest/node:v1.34.0"), "{}", calls[0]);
    assert!(calls[0].contains(" --kubeconfig /"), "the person's own kubeconfig: {}", calls[0]);
    assert_eq!(calls.last().unwrap(), &format!("kind delete cluster --name {name}"));
    // Never the context that happens to be current.
    for call in calls.iter().filter(|call| call.starts_with("kubectl ")) {
        let begin = "kubectl --kubeconfig /";
        let named = format!(" --context kind-{name} --namespace tickmark-verify ");
        assert!(call.starts_with(begin) && call.contains(&named), "{call}");
    }
}

#[test]
fn images_are_loaded_into_kind_and_an_interrupt_deletes_it() {
    let site = Site::new();
    let mut run = site.command(&["--kind", "1"]).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    // It waits for a pod that never runs.
    while !site.calls().iter().any(|call| call.contains("--watch")) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", site.calls());
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1));
    let calls = site.calls();
    let loads: Vec<&String> =
        calls.iter().filter(|call| call.starts_with("kind load image-archive ")).collect();
    assert_eq!(loads.len(), 2, "{calls:?}");
    for (load, file) in loads.iter().zip(["lapin-worker.tar", "node.tar"]) {
        assert!(load.contains(&format!("/images/{file} --name tickmark-verify-")), "{load}");
    }
    assert!(calls.last().unwrap().starts_with("kind delete cluster --name tickmark-verify-"));
}

#[test]
fn a_context_that_is_not_there_is_refused_before_anything_else() {
    let site = Site::new();
    let output = site.command(&["--context", "theirs", "--namespace", "n"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("there is no context theirs; the kubeconfig has mine, other"));
    assert_eq!(site.calls(), ["kubectl config get-contexts -o name"]);
}

#[test]
fn without_a_name_nothing_is_called() {
    let site = Site::new();
    for arguments in [&["1"][..], &["--namespace", "n"], &["--context", "mine"]] {
        let output = site.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
    assert_eq!(site.calls(), [""; 0]);
}

#[test]
fn a_namespace_of_somebody_else_is_left_alone() {
    let site = Site::new();
    let output = site
        .command(&["--context", "mine", "--namespace", "theirs"])
        .env("NAMESPACE", r#"{"metadata": {"labels": {"owner": "somebody"}}}"#)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("theirs is there and is not ours"), "{}", said(&output));
    let calls = site.calls();
    assert!(!calls.iter().any(|call| call.contains(" delete ") || call.contains(" apply ")));
}

#[test]
fn every_call_names_context_and_namespace_and_only_what_was_made_is_deleted() {
    let site = Site::new();
    let output = site
        .command(&["--context", "mine", "--namespace", "ours"])
        .env("NAMESPACE", r#"{"metadata": {"labels": {"tickmark.verify": "true"}}}"#)
        .env("APPLY", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let calls = site.calls();
    for call in &calls[1..] {
        assert!(call.starts_with("kubectl --context mine --namespace ours "), "{call}");
    }
    let deleted: Vec<&String> = calls.iter().filter(|call| call.contains(" delete ")).collect();
    assert_eq!(deleted.len(), 3, "{calls:?}");
    for call in deleted {
        assert!(call.contains(" -l tickmark.verify/run="), "{call}");
    }
}
