//! The mark of a kill: written before the kill, and what fails on the way leaves it unproven.

use std::path::Path;
use std::sync::mpsc;

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use tickmark_activator::cgroup::Unproven;
use tickmark_activator::process::Exit;

use crate::cgroups::threaded;
use crate::site::{Site, soon};
use crate::{Case, cases, failing_close};

pub(crate) fn cases() -> Vec<Case> {
    Vec::from(cases![Cgroup:
        a_kill_that_the_kernel_refuses_has_left_its_mark
        a_mark_that_cannot_be_written_keeps_the_kill_from_being_sent
        a_kill_whose_close_fails_is_unproven
    ])
}

fn is_marked(cgroup: &Path) -> bool {
    let mut text = [0; 16];
    let length = getxattr(cgroup, "user.tickmark", &mut text[..]).expect("it was made by us");
    match &text[..length] {
        b"made" => false,
        b"killed" => true,
        other => panic!("{other:?}"),
    }
}

/// The kill comes after the mark, so that one which does not get through is marked all the same.
fn a_kill_that_the_kernel_refuses_has_left_its_mark(site: &Site) {
    let (leaf, process) = threaded(site);
    let path = site.leaf_path(leaf.name());
    assert!(!is_marked(&path));
    let unproven = leaf.kill(&[&process], soon()).unwrap_err();
    assert!(matches!(unproven, Unproven::Threaded(_)), "{unproven}");
    assert_eq!(process.exited().unwrap(), None);
    assert!(is_marked(&path));
}

/// Attributes until not a byte more is taken: a cgroup has 128 KiB for them.
fn fill(cgroup: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut size = 1 << 15;
    while size > 0 {
        let name = format!("user.filler-{}", names.len());
        match setxattr(cgroup, &*name, &vec![b'x'; size], XattrFlags::CREATE) {
            Ok(()) => names.push(name),
            Err(Errno::NOSPC) => size /= 2,
            Err(error) => panic!("{name}: {error}"),
        }
    }
    names
}

fn a_mark_that_cannot_be_written_keeps_the_kill_from_being_sent(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    let path = site.leaf_path(leaf.name());
    let fillers = fill(&path);
    for unproven in [leaf.kill(&[&process], soon()), leaf.empty(&[&process], soon())] {
        let unproven = unproven.unwrap_err();
        assert!(unproven.to_string().starts_with("cannot mark "), "{unproven}");
        assert!(!unproven.is_no_delegation(), "its leader's exit has not to do");
    }
    assert!(leaf.populated().unwrap() && !is_marked(&path));
    assert_eq!(process.exited().unwrap(), None);
    for filler in fillers {
        removexattr(&path, &*filler).unwrap();
    }
    leaf.kill(&[&process], soon()).expect("empty");
    assert!(is_marked(&path));
}

fn a_kill_whose_close_fails_is_unproven(site: &Site) {
    let leaf = site.fresh(1);
    let process = site.run(&leaf, "wait", &[]);
    let (answer, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let killed = failing_close::from_now_on().map(|()| leaf.kill(&[&process], soon()));
            answer.send(killed).unwrap();
        });
    });
    let unproven = answered.recv().unwrap().expect("a seccomp filter").unwrap_err();
    assert!(unproven.to_string().starts_with("cannot close cgroup.kill of "), "{unproven}");
    // It was sent, which is proven by one whose close succeeds.
    leaf.kill(&[&process], soon()).expect("empty");
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
}
