//! Limits that the kernel enforces, and those that are not ours to set.

use std::fs;
use std::num::{NonZeroU32, NonZeroU64};
use std::process::Command;

use tickmark_activator::HostName;
use tickmark_activator::cgroup::Limit;
use tickmark_activator::process::Exit;

use crate::site::{Site, soon};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::from(cases![Cgroup:
        a_controller_that_is_not_delegated_is_named
        a_cgroup_that_none_of_ours_made_keeps_its_limits
    ]);
    cases.extend(cases![Controllers:
        a_limit_is_raised_and_restored_on_the_host
        the_cgroup_that_was_delegated_keeps_its_own_limits
        memory_beyond_the_tier_ends_the_generation_and_not_its_neighbour
        processes_beyond_the_tier_are_not_made
        a_leaf_is_limited_alone
    ]);
    cases
}

fn limit(memory: u64, pids: u32) -> Limit {
    Limit { memory: NonZeroU64::new(memory), pids: NonZeroU32::new(pids), cpu: None }
}

fn a_controller_that_is_not_delegated_is_named(site: &Site) {
    // Without any there is nothing to take away.
    site.host.limit(&Limit::UNLIMITED).expect("nothing is asked for");
    assert_eq!(site.host.limit_in_force().unwrap(), Limit::UNLIMITED);
    if site.has_controllers() {
        return;
    }
    let error = site.host.limit(&limit(1 << 28, 64)).unwrap_err();
    assert!(error.is_no_controller() && error.to_string().contains("memory"), "{error}");
}

fn a_cgroup_that_none_of_ours_made_keeps_its_limits(site: &Site) {
    let name = HostName::new("foreign").unwrap();
    let path = site.delegation.path().join("host-foreign");
    // Empty it is nobody's, and made afresh.
    fs::create_dir(&path).unwrap();
    site.delegation.host(&name).unwrap().limit(&Limit::UNLIMITED).expect("ours");
    fs::remove_dir(&path).unwrap();
    // With a process in it, somebody's.
    fs::create_dir(&path).unwrap();
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(path.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    let error = site.delegation.host(&name).unwrap().limit(&Limit::UNLIMITED).unwrap_err();
    assert!(error.is_not_ours(), "{error}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

fn a_limit_is_raised_and_restored_on_the_host(site: &Site) {
    let tier = Limit { cpu: NonZeroU32::new(500), ..limit(64 << 20, 32) };
    for limit in [tier, Limit::overlap(&tier, &tier), tier, Limit::UNLIMITED, tier] {
        site.host.limit(&limit).expect("set");
        assert_eq!(site.host.limit_in_force().unwrap(), limit);
    }
    let text = fs::read_to_string(site.host_path().join("cpu.max")).unwrap();
    assert_eq!(text, "50000 100000\n");
    // A host made afresh begins unlimited: what it may use is said again.
    site.host.kill(&[], soon()).expect("empty");
    let afresh = site.delegation.host(&site.name).unwrap();
    assert_eq!(afresh.limit_in_force().unwrap(), Limit::UNLIMITED);
}

fn the_cgroup_that_was_delegated_keeps_its_own_limits(site: &Site) {
    let delegated = site.delegation.path();
    let write = |file: &str, limit: &str| fs::write(delegated.join(file), limit).unwrap();
    let read = |file: &str| fs::read_to_string(delegated.join(file)).unwrap();
    // As whoever delegates it may have limited it.
    let own = [("memory.max", "1073741824"), ("pids.max", "500")];
    for (file, limit) in own {
        write(file, limit);
    }
    let tier = limit(64 << 20, 32);
    for limit in [tier, Limit::overlap(&tier, &tier), Limit::UNLIMITED, tier] {
        site.host.limit(&limit).expect("set");
        site.fresh(1).limit(&limit).expect("set");
        for (file, limit) in own {
            assert_eq!(read(file).trim(), limit, "{file}");
        }
    }
}

fn memory_beyond_the_tier_ends_the_generation_and_not_its_neighbour(site: &Site) {
    let neighbour = site.fresh(1);
    let incumbent = site.run(&neighbour, "wait", &[]);
    let leaf = site.fresh(2);
    leaf.limit(&limit(32 << 20, 64)).expect("set");
    let process = site.run(&leaf, "eat", &[&(256 << 20).to_string()]);
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
    let events = fs::read_to_string(site.leaf_path(leaf.name()).join("memory.events")).unwrap();
    assert!(events.lines().any(|line| line.starts_with("oom_kill ") && line != "oom_kill 0"));
    assert!(!site.files.logged().contains("has eaten"));
    assert!(!leaf.populated().unwrap());
    assert_eq!(incumbent.exited().unwrap(), None);
    // Within the tier it is left alone.
    let leaf = site.fresh(3);
    leaf.limit(&limit(64 << 20, 64)).expect("set");
    let process = site.run(&leaf, "eat", &[&(8 << 20).to_string()]);
    crate::site::until("it has eaten", || site.files.logged().contains("has eaten"));
    assert_eq!(process.exited().unwrap(), None);
}

fn processes_beyond_the_tier_are_not_made(site: &Site) {
    site.host.limit(&limit(256 << 20, 16)).expect("set");
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "count", &[]);
    assert!(site.files.logged().contains("15 children"), "{}", site.files.logged());
    // A full one can still be killed.
    leaf.kill(&[&process], soon()).expect("empty");
    // A bomb too, and it stays in its bounds.
    let leaf = site.fresh(1);
    site.run(&leaf, "hop", &[]);
    leaf.kill(&[], soon()).expect("empty");
}

fn a_leaf_is_limited_alone(site: &Site) {
    let leaf = site.fresh(1);
    leaf.limit(&limit(256 << 20, 4)).expect("set");
    site.run(&leaf, "count", &[]);
    assert!(site.files.logged().contains("3 children"), "{}", site.files.logged());
    assert_eq!(site.host.limit_in_force().unwrap(), Limit::UNLIMITED);
}
