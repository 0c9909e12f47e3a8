//! The activator's own two units, as they are shipped: only their programs are this test's.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

use crate::guest::{install, systemctl, until};

const STATE: &str = "/run/activator-state";
const HOSTS: &str = include_str!("../../systemd/tickmark-hosts.service");
const ACTIVATOR: &str = include_str!("../../systemd/tickmark-activator.service");

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("a_restart_of_the_activator_leaves_its_hosts_serving", || {
        std::panic::catch_unwind(restarted).map_err(|_| {
            fs::read_to_string(Path::new(STATE).join("daemon.log")).unwrap_or_default().into()
        })
    })]
}

fn restarted() {
    fs::create_dir_all(STATE).unwrap();
    let program = env::current_exe().unwrap();
    let line = "ExecStart=/usr/bin/tickmark-activator run --config /etc/tickmark/activator.toml";
    assert!(ACTIVATOR.contains(line), "the unit's program is where this test replaces it");
    let own = format!(
        "ExecStart={} daemon {STATE}\nStandardError=append:{STATE}/daemon.log",
        program.display()
    );
    install("tickmark-hosts.service", HOSTS);
    install("tickmark-activator.service", &ACTIVATOR.replace(line, &own));
    systemctl(&["start", "tickmark-activator.service"]);
    let host = serving();
    assert!(runs(&host));
    let daemon = main_pid();

    // The host is in the other unit's cgroup, under a limit of ours.
    let cgroup = fs::read_to_string(format!("/proc/{host}/cgroup")).unwrap();
    let cgroup = cgroup.trim().strip_prefix("0::").unwrap();
    assert!(cgroup.ends_with("/tickmark-hosts.service/host-orders/generation-1-0"), "{cgroup}");
    let above = Path::new("/sys/fs/cgroup").join(cgroup.trim_start_matches('/'));
    let limit = above.parent().unwrap().join("pids.max");
    assert_eq!(fs::read_to_string(limit).unwrap(), "8\n");

    for _ in 0..3 {
        fs::remove_file(Path::new(STATE).join("serving")).unwrap();
        systemctl(&["restart", "tickmark-activator.service"]);
        assert_eq!(serving(), host, "the same process");
        assert!(runs(&host));
    }
    assert_ne!(main_pid(), daemon, "another activator");

    // Killed, and started again by its unit.
    fs::remove_file(Path::new(STATE).join("serving")).unwrap();
    let killed = main_pid();
    systemctl(&["kill", "--signal=KILL", "tickmark-activator.service"]);
    until("it is started again", || Path::new(STATE).join("serving").exists());
    until("another activator", || main_pid() != killed && main_pid() != "0");
    assert_eq!(serving(), host);

    // Read again by the manager, which leaves a delegated cgroup alone.
    systemctl(&["daemon-reload"]);
    assert!(runs(&host));
    assert!(above.exists());

    // Stopped, it leaves its hosts; the other unit takes both.
    systemctl(&["stop", "tickmark-activator.service"]);
    assert!(runs(&host));
    fs::remove_file(Path::new(STATE).join("serving")).unwrap();
    systemctl(&["start", "tickmark-activator.service"]);
    assert_eq!(serving(), host);
    systemctl(&["stop", "tickmark-hosts.service"]);
    assert!(!runs(&host));
    assert_eq!(main_pid(), "0");

    // And from nothing.
    fs::remove_file(Path::new(STATE).join("serving")).unwrap();
    systemctl(&["start", "tickmark-activator.service"]);
    assert_ne!(serving(), host);
    systemctl(&["stop", "tickmark-hosts.service"]);
}

/// The host's process, as the activator says once it is ready.
fn serving() -> String {
    fs::read_to_string(Path::new(STATE).join("serving")).expect("it is ready")
}

fn runs(pid: &str) -> bool {
    // A zombie has no command line any more.
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("sleep"))
}

fn main_pid() -> String {
    let output = Command::new("systemctl")
        .args(["--user", "show", "--property=MainPID", "--value", "tickmark-activator.service"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
