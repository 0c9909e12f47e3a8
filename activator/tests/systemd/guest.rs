//! Inside the guest: a bus and a service manager of this test's own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const SYSTEMD: &str = "/lib/systemd/systemd";
pub(crate) const DBUS: &str = "/usr/bin/dbus-daemon";

/// Given to the program inside.
pub(crate) const SETTING: &str = "TICKMARK_SYSTEMD_GUEST=1";

pub(crate) const RUNTIME: &str = "/run/user/0";
const CGROUP: &str = "/sys/fs/cgroup/manager";

pub(crate) fn is_this() -> bool {
    env::var_os("TICKMARK_SYSTEMD_GUEST").is_some()
}

/// Waits until `condition`, looking often.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The bus and the manager on it; both end with the guest.
pub(crate) fn start_manager() -> [Child; 2] {
    fs::create_dir_all(units()).expect("a directory for units");
    let address = format!("unix:path={RUNTIME}/bus");
    // This process's own environment is where zbus looks for its bus; nothing else runs yet.
    if env::var_os("DBUS_SESSION_BUS_ADDRESS").is_none() {
        let mut again = Command::new(env::current_exe().expect("this program has a path"));
        again.args(env::args_os().skip(1)).env("DBUS_SESSION_BUS_ADDRESS", &address);
        again.env("XDG_RUNTIME_DIR", RUNTIME);
        let failed = std::os::unix::process::CommandExt::exec(&mut again);
        panic!("cannot run this program again: {failed}");
    }
    let bus = Command::new(DBUS)
        .args(["--session", "--nofork", "--nopidfile", "--address", &address])
        .stderr(Stdio::null())
        .spawn()
        .expect("a bus");
    until("a bus", || Path::new(RUNTIME).join("bus").exists());
    // By which a user's manager knows that the machine was booted with systemd.
    fs::create_dir_all("/run/systemd/system").expect("a sign of systemd");
    fs::create_dir("/run/home").expect("a home");
    fs::create_dir(CGROUP).expect("a cgroup for the manager");
    let manager = Command::new("/bin/sh")
        .args(["-c", &format!("echo $$ >{CGROUP}/cgroup.procs; exec {SYSTEMD} --user")])
        // The guest's own is read-only.
        .env("HOME", "/run/home")
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a manager");
    until("a manager that runs", || {
        let state = Command::new("systemctl").args(["--user", "is-system-running"]).output();
        let state = state.expect("systemctl runs").stdout;
        [&b"running\n"[..], b"degraded\n"].contains(&&state[..])
    });
    let _first = MANAGER.set(manager.id());
    [bus, manager]
}

static MANAGER: OnceLock<u32> = OnceLock::new();

/// What does nothing until this is dropped.
pub(crate) struct Frozen(Vec<Pid>);

/// The manager may have started a bus of its own, and put it in the place of the first.
pub(crate) fn freeze_bus() -> Frozen {
    let processes = fs::read_dir("/proc").expect("procfs").flatten();
    let buses = processes.filter_map(|process| {
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        (name.trim() == "dbus-daemon").then(|| process.file_name().to_str()?.parse().ok())?
    });
    freeze(buses.collect())
}

pub(crate) fn freeze_manager() -> Frozen {
    freeze(vec![*MANAGER.get().expect("it runs")])
}

fn freeze(pids: Vec<u32>) -> Frozen {
    assert!(!pids.is_empty());
    let frozen = Frozen(
        pids.iter()
            .map(|pid| Pid::from_raw((*pid).try_into().expect("a pid")).expect("a pid"))
            .collect(),
    );
    for pid in &frozen.0 {
        kill_process(*pid, Signal::STOP).expect("it runs");
        let stat = format!("/proc/{}/stat", pid.as_raw_pid());
        until("it is stopped", || fs::read_to_string(&stat).expect("it runs").contains(") T "));
    }
    frozen
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _runs = kill_process(*pid, Signal::CONT);
        }
    }
}

/// Where this program is, and beside it the others.
pub(crate) fn programs() -> PathBuf {
    let own = env::current_exe().expect("this program has a path");
    own.parent().expect("in a directory").to_owned()
}

/// Where units are looked for that go with the boot.
pub(crate) fn units() -> PathBuf {
    Path::new(RUNTIME).join("systemd/user")
}

/// Writes a unit and has the manager read it.
pub(crate) fn install(name: &str, text: &str) {
    fs::write(units().join(name), text).expect("the unit is written");
    systemctl(&["daemon-reload"]);
}

pub(crate) fn systemctl(arguments: &[&str]) {
    let output = Command::new("systemctl").arg("--user").args(arguments).output();
    let output = output.expect("systemctl runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "systemctl {arguments:?}: {errors}");
}
