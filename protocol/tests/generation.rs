//! How two generations are compared: each piece of evidence, their order of strength, and
//! what shows nothing.

mod examples;

use tickmark_protocol::{Evidence, Generation, LaunchToken, Relation};

fn none() -> Generation {
    Generation::default()
}

fn launch(token: &[u8]) -> Option<LaunchToken> {
    Some(LaunchToken::new(token).expect("a valid token"))
}

/// A generation that holds all evidence, each piece made from `id`.
fn all(id: u64) -> Generation {
    Generation {
        boot_id: Some([7; 16]),
        launch: launch(format!("t{id}").as_bytes()),
        mount_namespace_id: Some(id),
        root_mount_id: Some(id),
        cgroup_id: Some(id),
        mount_namespace_inode: Some(id),
        pid1_start_time: Some(id),
    }
}

const STRENGTH: [Evidence; 5] = [
    Evidence::Launch,
    Evidence::MountNamespaceId,
    Evidence::RootMountId,
    Evidence::CgroupId,
    Evidence::InodeAndStartTime,
];

fn without(mut generation: Generation, evidence: Evidence) -> Generation {
    match evidence {
        Evidence::Launch => generation.launch = None,
        Evidence::MountNamespaceId => generation.mount_namespace_id = None,
        Evidence::RootMountId => generation.root_mount_id = None,
        Evidence::CgroupId => generation.cgroup_id = None,
        Evidence::InodeAndStartTime => generation.mount_namespace_inode = None,
        Evidence::BootId => generation.boot_id = None,
    }
    generation
}

/// `to` with one piece of evidence taken from `from`.
fn with(mut to: Generation, from: &Generation, evidence: Evidence) -> Generation {
    match evidence {
        Evidence::Launch => to.launch.clone_from(&from.launch),
        Evidence::MountNamespaceId => to.mount_namespace_id = from.mount_namespace_id,
        Evidence::RootMountId => to.root_mount_id = from.root_mount_id,
        Evidence::CgroupId => to.cgroup_id = from.cgroup_id,
        Evidence::InodeAndStartTime => {
            to.mount_namespace_inode = from.mount_namespace_inode;
            to.pid1_start_time = from.pid1_start_time;
        }
        Evidence::BootId => to.boot_id = from.boot_id,
    }
    to
}

#[test]
fn each_piece_of_evidence_decides_where_both_hold_it_alone() {
    for evidence in STRENGTH {
        let own = with(none(), &all(1), evidence);
        assert_eq!(own.relation(&own), Relation::Same(evidence));
        let other = with(none(), &all(2), evidence);
        assert_eq!(own.relation(&other), Relation::Different(evidence));
    }
}

#[test]
fn the_strongest_that_both_hold_decides_alone() {
    // Take the strongest away, one after the other: the next one decides, whatever the weaker
    // ones say.
    let (mut own, mut written) = (all(1), all(2));
    for (at, strongest) in STRENGTH.into_iter().enumerate() {
        assert_eq!(own.relation(&written), Relation::Different(strongest));
        let agreeing = with(written.clone(), &own, strongest);
        assert_eq!(own.relation(&agreeing), Relation::Same(strongest));
        // On one side it is enough for it to be missing; which side alternates, but a launch
        // is missed only on the judging side.
        if at % 2 == 0 {
            own = without(own, strongest);
        } else {
            written = without(written, strongest);
        }
    }
    assert_eq!(own.relation(&written), Relation::Incomparable);
    let mut sorted = STRENGTH;
    sorted.sort();
    assert_eq!(sorted, STRENGTH, "the order of the variants is the order of strength");
}

#[test]
fn another_boot_is_another_container_whatever_agrees() {
    let own = all(1);
    let written = Generation { boot_id: Some([8; 16]), ..own.clone() };
    assert_eq!(own.relation(&written), Relation::Different(Evidence::BootId));
    // Held by one side only it says nothing, and the same boot is not the same container.
    for written in [Generation { boot_id: None, ..own.clone() }, own.clone()] {
        assert_eq!(own.relation(&written), Relation::Same(Evidence::Launch));
        assert_eq!(written.relation(&own), Relation::Same(Evidence::Launch));
    }
    let boot = Generation { boot_id: Some([7; 16]), ..none() };
    assert_eq!(boot.relation(&boot), Relation::Incomparable);
    assert!(!boot.identifies());
}

#[test]
fn a_launched_process_takes_only_its_launch() {
    let own = all(1);
    let unlaunched = without(own.clone(), Evidence::Launch);
    assert_eq!(own.relation(&unlaunched), Relation::Different(Evidence::Launch));
    // A probe that was not launched judges what was, by the next evidence.
    assert_eq!(unlaunched.relation(&own), Relation::Same(Evidence::MountNamespaceId));
    // Text carries none.
    let text = Generation {
        mount_namespace_inode: Some(1),
        pid1_start_time: Some(1),
        ..Generation::default()
    };
    assert_eq!(own.relation(&text), Relation::Different(Evidence::Launch));
}

#[test]
fn the_formula_needs_both_halves_and_neither_zero() {
    let of = |inode, start| Generation {
        mount_namespace_inode: inode,
        pid1_start_time: start,
        ..Generation::default()
    };
    let whole = of(Some(4_026_532_616), Some(12_345));
    assert!(whole.identifies());
    assert_eq!(whole.relation(&whole), Relation::Same(Evidence::InodeAndStartTime));
    for half in [
        of(None, Some(12_345)),
        of(Some(4_026_532_616), None),
        of(Some(4_026_532_616), Some(0)),
        of(Some(0), Some(12_345)),
        of(Some(0), Some(0)),
        none(),
    ] {
        assert!(!half.identifies(), "{half:?}");
        for (a, b) in [(&half, &whole), (&whole, &half), (&half, &half)] {
            assert_eq!(a.relation(b), Relation::Incomparable, "{a:?} {b:?}");
        }
    }
    // Each half tells two apart.
    for other in [of(Some(4_026_532_617), Some(12_345)), of(Some(4_026_532_616), Some(12_346))] {
        assert_eq!(whole.relation(&other), Relation::Different(Evidence::InodeAndStartTime));
    }
}

#[test]
fn nothing_shared_is_not_the_same() {
    for (at, a) in STRENGTH.into_iter().enumerate() {
        for b in STRENGTH.into_iter().skip(at + 1) {
            let (own, written) = (with(none(), &all(1), a), with(none(), &all(1), b));
            assert!(!own.relation(&written).is_same(), "{a} {b}");
            assert!(!written.relation(&own).is_same(), "{b} {a}");
            assert!(!own.shares_unique_id(&written));
        }
    }
    assert_eq!(none().relation(&none()), Relation::Incomparable);
}

#[test]
fn unique_ids_are_the_first_four() {
    for evidence in STRENGTH {
        let generation = with(none(), &all(1), evidence);
        let unique = evidence != Evidence::InodeAndStartTime;
        assert_eq!(generation.has_unique_id(), unique, "{evidence}");
        assert_eq!(generation.shares_unique_id(&all(2)), unique, "{evidence}");
        assert!(generation.identifies());
    }
}

#[test]
fn launch_tokens() {
    let longest = [b'x'; 64];
    for token in [&b"x"[..], b"7f3a-~!", &longest] {
        assert_eq!(
            LaunchToken::new(token).map(|t| t.as_str().as_bytes().to_vec()),
            Some(token.to_vec())
        );
    }
    for token in [&b""[..], &[b'x'; 65], b"a b", b"a\n", b"\0", "ä".as_bytes(), b"\xff", b"\x7f"] {
        assert_eq!(LaunchToken::new(token), None, "{token:?}");
    }
}

#[test]
fn evidence_in_words() {
    let words: Vec<String> =
        STRENGTH.into_iter().chain([Evidence::BootId]).map(|e| e.to_string()).collect();
    assert_eq!(
        words,
        [
            "launch token",
            "mount namespace id",
            "root mount id",
            "cgroup id",
            "mount namespace inode and PID 1 start time",
            "boot id",
        ]
    );
}
