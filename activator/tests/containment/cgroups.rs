//! Kill and proof: each case ends in its own documented answer, never in a hang and never in a
//! false "empty".

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tickmark_activator::cgroup::{Delegation, Evidence, Leaf, Setting, Unproven, leader_exit};
use tickmark_activator::process::{Exit, Process};
use tickmark_activator::stub;
use tickmark_activator::{HostName, LeafName};

use crate::site::{Site, generation, rounds, soon, until};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    Vec::from(cases![Cgroup:
        a_fork_bomb_that_double_forks_with_setsid_is_empty_after_the_kill
        a_zombie_whose_parent_is_outside_does_not_populate
        a_frozen_cgroup_is_killed_and_proven
        a_child_that_the_worker_made_is_killed_and_removed_depth_first
        a_cgroup_removed_underneath_is_proven_by_the_descriptor_held_since_before
        a_masked_kill_is_unproven_and_falls_back_to_the_leader_only_where_asked_for_empty
        a_kill_mounted_from_another_cgroup_is_not_taken_for_its_own
        no_delegation_is_unproven_and_falls_back_to_the_leader_only_where_asked_for_empty
        a_threaded_cgroup_is_unproven_while_its_host_can_be_killed
        a_cgroup_that_took_the_kill_is_not_spawned_into_again
        a_host_that_took_the_kill_is_made_afresh_or_refuses
        a_clean_stop_leaves_no_mark
        an_absent_cgroup_is_empty
        a_leaf_that_lives_is_not_made_afresh
        a_leader_that_left_its_cgroup_makes_an_empty_one_prove_nothing
        a_deadline_that_has_passed_never_proves_what_lives
        many_kills_lose_no_wake
        a_cgroup_that_another_user_may_write_is_refused
        names_that_are_not_ours_are_left_alone
    ])
}

fn a_fork_bomb_that_double_forks_with_setsid_is_empty_after_the_kill(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "hop", &[]);
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Code(0)), "its leader has left");
    assert!(leaf.populated().unwrap());
    let start = Instant::now();
    let empty = site.host.kill(&[&process], soon()).expect("empty");
    eprintln!("a fork bomb of 16 chains: killed and proven in {} µs", start.elapsed().as_micros());
    assert_eq!(empty.evidence(), Evidence::Unpopulated);
    let members = fs::read_to_string(site.leaf_path(leaf.name()).join("cgroup.procs")).unwrap();
    // Zombies that their parent has not waited for are listed and are none: ask each.
    for pid in members.lines() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
    assert!(!leaf.populated().unwrap());
}

fn a_zombie_whose_parent_is_outside_does_not_populate(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    // Nobody waits for it: this process is its parent.
    let empty = leaf.kill(&[], soon()).expect("empty");
    assert_eq!(empty.evidence(), Evidence::Unpopulated);
    until("a zombie", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        stat.contains(") Z ")
    });
    assert!(!leaf.populated().unwrap());
    assert!(site.host.fresh_leaf(leaf.name()).is_ok(), "nor does it keep its cgroup");
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
}

fn a_frozen_cgroup_is_killed_and_proven(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    fs::write(site.leaf_path(leaf.name()).join("cgroup.freeze"), "1").unwrap();
    until("it is frozen", || leaf.frozen().unwrap());
    let start = Instant::now();
    let empty = leaf.kill(&[&process], soon()).expect("empty");
    eprintln!("a frozen cgroup: killed and proven in {} µs", start.elapsed().as_micros());
    assert_eq!(empty.evidence(), Evidence::Unpopulated);
    // The next one is not frozen.
    let leaf = site.fresh(1);
    site.run(&leaf, "wait", &[]);
}

fn a_child_that_the_worker_made_is_killed_and_removed_depth_first(site: &Site) {
    let leaf = site.fresh(1);
    let path = site.leaf_path(leaf.name());
    let process = site.run(&leaf, "nest", &[path.to_str().unwrap()]);
    assert!(path.join("a/b/c").is_dir());
    let error = site.host.fresh_leaf(leaf.name()).unwrap_err();
    assert!(error.is_populated(), "{error}");
    leaf.kill(&[&process], soon()).expect("empty");
    assert!(path.join("a/b/c").is_dir(), "a killed cgroup is kept");
    let fresh = site.host.fresh_leaf(leaf.name()).expect("made afresh");
    assert_ne!(fresh.id(), leaf.id());
    assert!(!path.join("a").exists());
}

fn a_cgroup_removed_underneath_is_proven_by_the_descriptor_held_since_before(site: &Site) {
    let leaf = site.fresh(1);
    let path = site.leaf_path(leaf.name());
    fs::remove_dir(&path).unwrap();
    for empty in [leaf.kill(&[], soon()), leaf.empty(&[], soon())] {
        assert_eq!(empty.expect("empty").evidence(), Evidence::Removed);
    }
    assert!(!leaf.populated().unwrap());
    // Another of the same name is another: what lives there is not touched.
    let other = site.fresh(1);
    let process = site.run(&other, "wait", &[]);
    assert_eq!(leaf.kill(&[], soon()).expect("empty").evidence(), Evidence::Removed);
    assert_eq!(process.exited().unwrap(), None);
    // While the kill is under way, too.
    let leaf = site.fresh(2);
    let path = site.leaf_path(leaf.name());
    let process = site.run(&leaf, "wait", &[]);
    let remover = std::thread::spawn(move || {
        while fs::remove_dir(&path).is_err() {
            std::thread::yield_now();
        }
    });
    leaf.kill(&[&process], soon()).expect("empty");
    remover.join().unwrap();
}

/// In this test's own mount namespace.
pub(crate) fn mount_over(source: &str, target: &Path) {
    let status = Command::new("mount").arg("--bind").arg(source).arg(target).status();
    assert!(status.expect("mount runs").success());
}

pub(crate) fn unmount(target: &Path) {
    let status = Command::new("umount").arg(target).status();
    assert!(status.expect("umount runs").success());
}

fn a_masked_kill_is_unproven_and_falls_back_to_the_leader_only_where_asked_for_empty(site: &Site) {
    for source in ["/dev/null", "/etc/hostname"] {
        let leaf = site.fresh(1);
        let process = site.run(&leaf, "wait", &[]);
        let masked = site.leaf_path(leaf.name()).join("cgroup.kill");
        mount_over(source, &masked);
        let unproven = leaf.kill(&[&process], soon()).unwrap_err();
        assert!(matches!(unproven, Unproven::NoKill(_)), "{unproven}");
        assert!(unproven.is_no_kill() && unproven.is_no_delegation());
        assert_eq!(process.exited().unwrap(), None, "nothing was killed");
        // Without a leader there is nothing to fall back to.
        let unproven = leaf.empty(&[], soon()).unwrap_err();
        assert!(unproven.is_no_kill(), "{unproven}");
        let empty = leaf.empty(&[&process], soon()).expect("the leader's exit");
        assert_eq!(empty.evidence(), Evidence::LeaderExit);
        assert_eq!(process.exited().unwrap(), Some(Exit::Signal(9)));
        // Empty by its own sign, it needs no kill.
        assert_eq!(leaf.empty(&[], soon()).expect("empty").evidence(), Evidence::Unpopulated);
        // A kill that was not sent leaves no mark.
        let launch = site.files.worker("end", &[]);
        stub::spawn(&launch, Some(&leaf), soon()).expect("not marked");
        unmount(&masked);
    }
}

fn a_kill_mounted_from_another_cgroup_is_not_taken_for_its_own(site: &Site) {
    let victim = site.fresh(2);
    let bystander = site.run(&victim, "wait", &[]);
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    let masked = site.leaf_path(leaf.name()).join("cgroup.kill");
    let other = site.leaf_path(victim.name()).join("cgroup.kill");
    mount_over(other.to_str().unwrap(), &masked);
    let unproven = leaf.kill(&[&process], soon()).unwrap_err();
    assert!(unproven.is_no_kill(), "{unproven}");
    assert_eq!(bystander.exited().unwrap(), None);
    unmount(&masked);
}

fn no_delegation_is_unproven_and_falls_back_to_the_leader_only_where_asked_for_empty(site: &Site) {
    assert!(Delegation::find(&Setting::None).unwrap().is_none());
    let start = || {
        let waiting = stub::spawn(&site.files.worker("wait", &[]), None, soon()).unwrap();
        assert_eq!(waiting.identity().cgroup_id, None);
        waiting.go(soon()).unwrap()
    };
    let process = start();
    let unproven = leader_exit(&[], Unproven::NoDelegation, soon()).unwrap_err();
    assert!(unproven.is_no_delegation() && !unproven.is_no_kill(), "{unproven}");
    let empty = leader_exit(&[&process], Unproven::NoDelegation, soon()).unwrap();
    assert_eq!(empty.evidence(), Evidence::LeaderExit);
    // One that has left by itself.
    let process = start();
    process.signal(Signal::TERM).unwrap();
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(15)));
    leader_exit(&[&process], Unproven::NoDelegation, soon()).unwrap();
    // Not for what is no want of containment.
    let process = start();
    let other = Unproven::Threaded("/x".into());
    assert!(matches!(leader_exit(&[&process], other, soon()), Err(Unproven::Threaded(_))));
    assert_eq!(process.exited().unwrap(), None);
    process.signal(Signal::KILL).unwrap();
    process.wait(soon()).unwrap();
}

/// A leaf that was made threaded, and a process that was put into it.
pub(crate) fn threaded(site: &Site) -> (Leaf, Process) {
    let leaf = site.fresh(1);
    let path = site.leaf_path(leaf.name());
    fs::write(path.join("cgroup.type"), "threaded").unwrap();
    let waiting = stub::spawn(&site.files.worker("wait", &[]), None, soon()).unwrap();
    let pid = waiting.identity().pid;
    let error = leaf.place(pid).unwrap_err();
    assert!(error.to_string().contains("is threaded"), "{error}");
    let process = waiting.go(soon()).unwrap();
    fs::write(path.join("cgroup.procs"), pid.to_string()).unwrap();
    (leaf, process)
}

fn a_threaded_cgroup_is_unproven_while_its_host_can_be_killed(site: &Site) {
    let (leaf, process) = threaded(site);
    let unproven = leaf.kill(&[&process], soon()).unwrap_err();
    assert!(matches!(unproven, Unproven::Threaded(_)), "{unproven}");
    assert_eq!(process.exited().unwrap(), None);
    let empty = site.host.kill(&[&process], soon()).expect("empty");
    assert_eq!(empty.evidence(), Evidence::Unpopulated);
    // Threaded and empty is empty.
    assert!(leaf.kill(&[&process], soon()).is_ok());
}

fn a_cgroup_that_took_the_kill_is_not_spawned_into_again(site: &Site) {
    let leaf = site.fresh(1);
    leaf.kill(&[], soon()).expect("empty");
    let launch = site.files.worker("wait", &[]);
    let error = stub::spawn(&launch, Some(&leaf), soon()).unwrap_err();
    assert!(error.is_killed(), "{error}");
    assert!(!leaf.populated().unwrap());
    // The mark is the cgroup's: an activator that starts again sees it.
    let setting = Setting::Path(site.delegation.path().to_owned());
    let again = Delegation::find(&setting).unwrap().unwrap().host(&site.name).unwrap();
    let found = again.open_leaf(leaf.name()).unwrap().expect("a killed cgroup is kept");
    assert_eq!(found.id(), leaf.id());
    assert!(stub::spawn(&launch, Some(&found), soon()).unwrap_err().is_killed());
    let fresh = again.fresh_leaf(leaf.name()).unwrap();
    assert_ne!(fresh.id(), leaf.id());
    stub::spawn(&launch, Some(&fresh), soon()).expect("a fresh one is spawned into");
}

fn a_host_that_took_the_kill_is_made_afresh_or_refuses(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    site.delegation.kill_host(&site.name, &[&process], soon()).expect("empty");
    let launch = site.files.worker("wait", &[]);
    assert!(site.host.fresh_leaf(generation(2)).unwrap_err().is_killed());
    assert!(stub::spawn(&launch, Some(&leaf), soon()).unwrap_err().is_killed(), "all of it is");
    let afresh = site.delegation.host(&site.name).expect("made afresh");
    let leaf = afresh.fresh_leaf(generation(2)).unwrap();
    let waiting = stub::spawn(&launch, Some(&leaf), soon()).unwrap();
    // Somebody puts a process into a killed host: it is not thrown away with it.
    afresh.kill(&[], soon()).expect("empty");
    drop(waiting);
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(site.leaf_path(leaf.name()).join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    let error = site.delegation.host(&site.name).unwrap_err();
    assert!(error.is_populated(), "{error}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    site.delegation.host(&site.name).expect("made afresh");
}

fn a_clean_stop_leaves_no_mark(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    process.signal(Signal::TERM).unwrap();
    process.wait(soon()).unwrap();
    let empty = leaf.empty(&[&process], soon()).expect("empty");
    assert_eq!(empty.evidence(), Evidence::Unpopulated);
    site.delegation.empty_host(&site.name, &[&process], soon()).expect("empty");
    let process = site.run(&leaf, "wait", &[]);
    // What is left is killed, and that leaves a mark.
    leaf.empty(&[&process], soon()).expect("empty");
    assert!(leaf.place(std::process::id()).unwrap_err().is_killed());
}

fn an_absent_cgroup_is_empty(site: &Site) {
    let other = HostName::new("another").unwrap();
    for empty in [
        site.delegation.kill_host(&other, &[], soon()),
        site.delegation.empty_host(&other, &[], soon()),
        site.host.kill_leaf(LeafName::Sidecar, &[], soon()),
    ] {
        assert_eq!(empty.expect("empty").evidence(), Evidence::Absent);
    }
    assert!(site.delegation.open_host(&other).unwrap().is_none(), "asking makes none");
    assert!(site.host.open_leaf(generation(1)).unwrap().is_none());
    assert!(!site.host.remove_leaf(generation(1)).unwrap());
    // But not where its leader lives elsewhere.
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    let unproven = site.host.kill_leaf(LeafName::Sidecar, &[&process], soon()).unwrap_err();
    assert!(matches!(unproven, Unproven::Escaped { .. }), "{unproven}");
}

fn a_leaf_that_lives_is_not_made_afresh(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    let error = site.host.fresh_leaf(leaf.name()).unwrap_err();
    assert!(error.is_populated(), "{error}");
    assert!(site.host.remove_leaf(leaf.name()).unwrap_err().is_populated());
    assert!(site.delegation.remove_host(&site.name).unwrap_err().is_populated());
    assert_eq!(process.exited().unwrap(), None);
    leaf.kill(&[&process], soon()).expect("empty");
    assert!(site.host.remove_leaf(leaf.name()).unwrap());
    assert!(site.delegation.remove_host(&site.name).unwrap());
    assert!(site.delegation.hosts().unwrap().is_empty());
    // By a handle of before the removal, what lives in the next one is not absent.
    let again = site.delegation.host(&site.name).unwrap();
    let leaf = again.fresh_leaf(generation(1)).unwrap();
    let process = site.run(&leaf, "wait", &[]);
    assert!(site.host.open_leaf(leaf.name()).unwrap().is_some());
    site.host.kill_leaf(leaf.name(), &[], soon()).expect("empty");
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
}

fn a_leader_that_left_its_cgroup_makes_an_empty_one_prove_nothing(site: &Site) {
    let other = site.delegation.host(&HostName::new("other").unwrap()).unwrap();
    other.fresh_leaf(generation(7)).unwrap();
    let refuge = site.delegation.path().join("host-other/generation-7-0");
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "move", &[refuge.to_str().unwrap()]);
    assert!(!leaf.populated().unwrap());
    let start = Instant::now();
    for answer in [leaf.empty(&[&process], soon()), leaf.kill(&[&process], soon())] {
        let unproven = answer.unwrap_err();
        let Unproven::Escaped { pid, found, .. } = &unproven else { panic!("{unproven}") };
        assert_eq!(*pid, process.pid());
        assert!(found.as_deref().unwrap().ends_with("/host-other/generation-7-0"), "{found:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "it is seen, not waited for");
    assert_eq!(process.exited().unwrap(), None);
    other.kill(&[&process], soon()).expect("empty");
}

fn a_deadline_that_has_passed_never_proves_what_lives(site: &Site) {
    for number in 1..=u64::from(rounds(20)) {
        let leaf = site.fresh(number);
        site.run(&leaf, "hop", &[]).wait(soon()).unwrap();
        match leaf.kill(&[], Instant::now()) {
            Ok(_) => {}
            Err(Unproven::Deadline { .. }) => {
                leaf.kill(&[], soon()).expect("empty, given the time");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(!leaf.populated().unwrap());
    }
}

fn many_kills_lose_no_wake(site: &Site) {
    let mut times = Vec::new();
    let rounds = rounds(200);
    for _ in 0..rounds {
        let leaf = site.fresh(1);
        let launch = site.files.worker("wait", &[]);
        let process = stub::spawn(&launch, Some(&leaf), soon()).unwrap().go(soon()).unwrap();
        let start = Instant::now();
        leaf.kill(&[&process], soon()).expect("empty");
        times.push(start.elapsed());
    }
    times.sort();
    let longest = times[times.len() - 1];
    eprintln!(
        "{rounds} kills and proofs: median {} µs, longest {} µs",
        times[times.len() / 2].as_micros(),
        longest.as_micros()
    );
    // A lost wake would be found by the next look, a second later.
    let slow = times.iter().filter(|time| **time >= Duration::from_millis(900)).count();
    assert!(slow == 0, "{slow} took as long as a lost wake, the longest {longest:?}");
}

fn a_cgroup_that_another_user_may_write_is_refused(site: &Site) {
    let path = site.delegation.path().join("given");
    fs::create_dir(&path).unwrap();
    let find = || Delegation::find(&Setting::Path(path.clone()));
    let members = path.join("cgroup.procs");
    assert!(find().is_ok());
    fs::set_permissions(&members, fs::Permissions::from_mode(0o666)).unwrap();
    let error = find().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("mode 666"), "{error}");
    fs::set_permissions(&members, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(&members, Some(65_534), None).unwrap();
    let error = find().unwrap_err();
    assert!(error.to_string().contains("user 65534"), "{error}");
}

fn names_that_are_not_ours_are_left_alone(site: &Site) {
    fs::create_dir(site.delegation.path().join("init")).unwrap();
    fs::create_dir(site.delegation.path().join("host-not.ours")).unwrap();
    fs::create_dir(site.host_path().join("generation-01-0")).unwrap();
    site.fresh(3);
    site.fresh(2);
    assert_eq!(site.delegation.hosts().unwrap(), std::slice::from_ref(&site.name));
    assert_eq!(site.host.leaves().unwrap(), [generation(2), generation(3)]);
}
