//! Unit rows: what is asked of the manager, and what it answers.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tickmark_activator::unit::{Bus, Manager, UnitName};

use crate::guest::{install, until};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($rule:ident)*) => {
            vec![$(Trial::test(stringify!($rule), || { with_manager($rule); Ok(()) })),*]
        };
    }
    trials![
        a_unit_starts_and_stops_and_its_state_is_told
        replacing_stops_the_old_before_the_new_starts
        a_unit_that_fails_says_so
        a_unit_that_is_not_there_is_unknown_to_start_and_stopped_already
        a_start_that_takes_longer_may_have_run
        what_a_stop_leaves_behind_is_unproven
    ]
}

fn with_manager(test: impl AsyncFnOnce(&Manager)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let manager = Manager::connect(Bus::Session).await.expect("a manager");
        test(&manager).await;
    });
}

fn service(name: &str, text: &str) -> UnitName {
    let name = format!("{name}.service");
    install(&name, &format!("[Service]\n{text}\n"));
    name.parse().unwrap()
}

async fn a_unit_starts_and_stops_and_its_state_is_told(manager: &Manager) {
    let unit = service("plain", "ExecStart=/bin/sleep 1000");
    assert_eq!(manager.state(&unit).await.unwrap().active, "inactive");
    manager.start(&unit, PATIENCE).await.unwrap();
    let state = manager.state(&unit).await.unwrap();
    assert_eq!((state.active.as_str(), state.sub.as_str()), ("active", "running"));
    let pid = state.main_pid.expect("it runs");
    assert!(state.cgroup.expect("in a cgroup").ends_with("/plain.service"));
    // Again: it is left as it is.
    manager.start(&unit, PATIENCE).await.unwrap();
    assert_eq!(manager.state(&unit).await.unwrap().main_pid, Some(pid));
    manager.stop(&unit, PATIENCE).await.unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(manager.state(&unit).await.unwrap().main_pid, None);
    manager.stop(&unit, PATIENCE).await.unwrap();
}

async fn replacing_stops_the_old_before_the_new_starts(manager: &Manager) {
    let unit = service("build", "ExecStart=/run/build/live 1000");
    fs::create_dir_all("/run/build").unwrap();
    let link = Path::new("/run/build/live");
    std::os::unix::fs::symlink("/bin/sleep", link).unwrap();
    manager.start(&unit, PATIENCE).await.unwrap();
    let old = manager.state(&unit).await.unwrap().main_pid.unwrap();
    let mut between = false;
    manager
        .replace(&unit, PATIENCE, || {
            assert!(!Path::new(&format!("/proc/{old}")).exists(), "the old is gone");
            fs::remove_file(link).unwrap();
            std::os::unix::fs::symlink("/usr/bin/sleep", link).unwrap();
            between = true;
            Ok(())
        })
        .await
        .unwrap();
    assert!(between);
    let new = manager.state(&unit).await.unwrap().main_pid.unwrap();
    assert_ne!(old, new);
    manager.stop(&unit, PATIENCE).await.unwrap();
}

async fn a_unit_that_fails_says_so(manager: &Manager) {
    let unit = service("fails", "Type=oneshot\nExecStart=/bin/false");
    let error = manager.start(&unit, PATIENCE).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("fails.service") && said.contains("exit-code"), "{said}");
    assert!(!error.may_have_run() && !error.is_unknown());
}

async fn a_unit_that_is_not_there_is_unknown_to_start_and_stopped_already(manager: &Manager) {
    let unit: UnitName = "missing.service".parse().unwrap();
    let error = manager.start(&unit, PATIENCE).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(manager.state(&unit).await.unwrap_err().is_unknown());
    manager.stop(&unit, PATIENCE).await.unwrap();
}

async fn a_start_that_takes_longer_may_have_run(manager: &Manager) {
    let unit = service("slow", "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 1000");
    let asked = Instant::now();
    let error = manager.start(&unit, Duration::from_millis(500)).await.unwrap_err();
    assert!(error.may_have_run(), "{error}");
    assert!(asked.elapsed() < PATIENCE);
    assert_eq!(manager.state(&unit).await.unwrap().active, "activating");
    // A stop takes the start's place.
    manager.stop(&unit, PATIENCE).await.unwrap();
}

async fn what_a_stop_leaves_behind_is_unproven(manager: &Manager) {
    let unit = service(
        "leaves",
        "KillMode=process\nExecStart=/bin/sh -c 'sleep 1000 & echo $! >/run/left; exec sleep 1001'",
    );
    manager.start(&unit, PATIENCE).await.unwrap();
    until("its child", || fs::read_to_string("/run/left").is_ok_and(|text| text.ends_with('\n')));
    let error = manager.stop(&unit, PATIENCE).await.unwrap_err();
    assert!(error.is_unproven() && error.to_string().contains("KillMode"), "{error}");
    let left: i32 = fs::read_to_string("/run/left").unwrap().trim().parse().unwrap();
    let left = rustix::process::Pid::from_raw(left).unwrap();
    rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
    until("an empty cgroup", || !Path::new(&format!("/proc/{}", left.as_raw_pid())).exists());
    manager.stop(&unit, PATIENCE).await.unwrap();
}
