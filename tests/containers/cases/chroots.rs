//! The counter-example: PID 1 and the worker in the same mount namespace, chrooted into
//! different directories. Neither sees a mount of the other's, and yet nothing is unsafe.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Case;
use crate::site::{PROBE_HIDE, Site, WORKER_HIDE, patience};

use super::case;
use super::states::UNIQUE;

/// Makes both roots, each a mount of its own with a procfs in it, and becomes PID 1 in one.
const PID1: &str = r#"
set -e
for root in one other; do
    mount -t tmpfs -o mode=0755 "$root" "$1/$root"
    mkdir "$1/$root/proc" "$1/$root/marks"
    mount -t proc proc "$1/$root/proc"
    cp "$2" "$1/$root/worker"
    cp "$3" "$1/$root/probe"
    chmod 0777 "$1/$root/marks"
done
: >"$1/ready"
exec chroot "$1/one" /worker pause
"#;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for uid in [0, 1000] {
        for (name, hide) in [
            ("with all evidence", ""),
            ("with nothing unique", UNIQUE),
            (
                "with nothing unique and PID 1's namespace unreadable",
                "launch,mntns-id,root-mount,cgroup,pid1-ns",
            ),
        ] {
            for strict in [false, true] {
                let mode = if strict { "strict" } else { "auto" };
                let name = format!("two chroots, uid {uid}, {mode}, {name}");
                cases.push(case(&name, true, move |site| {
                    never_unsafe(site, uid, hide, mode);
                }));
            }
        }
    }
    cases
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn never_unsafe(site: &Arc<Site>, uid: u32, hide: &str, mode: &str) {
    let (_, directory) = site.new_directory("chroots").expect("a directory");
    for name in ["one", "other"] {
        fs::create_dir(directory.join(name)).expect("a root");
    }
    let unshare = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"])
        .args(["sh", "-c", PID1, "sh"])
        .arg(&directory)
        .arg(site.in_rootfs(WORKER_HIDE))
        .arg(site.in_rootfs(PROBE_HIDE))
        .spawn()
        .map(Killed)
        .expect("unshare");
    let pid1 = wait_for_pid1(&directory, unshare.0.id());
    let log_path = directory.join("log");
    let log = File::create(&log_path).expect("a log");

    let inside = |program: &str| {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &pid1.to_string(), "--mount", "--pid"])
            .arg("chroot")
            .arg(format!("--userspec={uid}:{uid}"))
            .arg(directory.join("other"))
            .arg(program)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("TICKMARK_DIR", "/marks")
            .env("TICKMARK_TICK", "1")
            .env("TICKMARK_MAX_AGE", "30")
            .env("TICKMARK_TOPOLOGY", mode)
            .env("TICKMARK_TEST_HIDE", hide)
            .stdin(Stdio::null());
        command
    };
    let worker = inside("/worker").stdout(Stdio::null()).stderr(log).spawn();
    let _worker = Killed(worker.expect("nsenter"));

    let started = Instant::now();
    let mut line = String::new();
    while line != "1 process(es) healthy" {
        let output = inside("/probe").output().expect("nsenter");
        line = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        let log = fs::read_to_string(&log_path).unwrap_or_default();
        assert!(!line.contains("unsupported"), "{line}\n{log}");
        assert!(started.elapsed() < patience(), "{output:?}\n{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = fs::read_to_string(&log_path).unwrap_or_default();
    assert!(!log.contains("ERROR"), "{log}");
    let verdict = format!("/proc/{pid1}/root/../other/marks/topology-unsafe");
    assert!(!Path::new(&verdict).exists());
}

/// The pid on the host of the child that `unshare` forked, once it is in its root.
fn wait_for_pid1(directory: &Path, unshare: u32) -> u32 {
    let started = Instant::now();
    loop {
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"));
        let child = children.unwrap_or_default().trim().parse().ok();
        let in_its_root = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("worker"))
        };
        if let Some(pid) = child.filter(|pid| directory.join("ready").exists() && in_its_root(pid))
        {
            return pid;
        }
        assert!(started.elapsed() < patience(), "no PID 1");
        std::thread::sleep(Duration::from_millis(10));
    }
}
