//! Every row of the topology table, for binary and text, `auto` and `strict`, and the details
//! that messages give.

mod examples;

use tickmark_protocol::{
    Detail, Encoding, Errno, Generation, Pid1, State, Topology, UNSUPPORTED_TOPOLOGY, Witness,
    classify,
};

const ELSEWHERE: Pid1 = Pid1::Elsewhere(Detail::Mounts(Witness::Cgroup));
const UNKNOWN: Pid1 = Pid1::Unknown(Detail::CannotRead("/proc/1/ns/mnt", Errno::ACCESS));
const MISSING: Detail = Detail::StartTimeZero;

fn unique() -> Generation {
    Generation { mount_namespace_id: Some(4304), ..Generation::default() }
}

fn formula() -> Generation {
    Generation {
        mount_namespace_inode: Some(4_026_532_616),
        pid1_start_time: Some(12_345),
        ..Generation::default()
    }
}

fn both() -> Generation {
    Generation { mount_namespace_id: Some(4304), ..formula() }
}

fn nothing() -> Generation {
    // A boot id identifies no container.
    Generation { boot_id: Some([7; 16]), ..Generation::default() }
}

#[test]
fn every_row() {
    use Encoding::{Binary, Text};
    use State::{Unavailable, Unsafe, Unverifiable, Verified, VerifiedByUniqueId};

    let here = Pid1::Here;
    for (pid1, evidence, encoding, strict, state) in [
        // PID 1 is in our mount namespace.
        (here, both(), Binary, false, Verified),
        (here, both(), Binary, true, Verified),
        (here, unique(), Binary, false, Verified),
        (here, formula(), Binary, false, Verified),
        (here, formula(), Text, false, Verified),
        (here, both(), Text, true, Verified),
        (here, nothing(), Binary, false, Unavailable),
        (here, nothing(), Binary, true, Unavailable),
        // The unique id does not count for text.
        (here, unique(), Text, false, Unavailable),
        // It is elsewhere.
        (ELSEWHERE, both(), Binary, false, VerifiedByUniqueId),
        (ELSEWHERE, unique(), Binary, false, VerifiedByUniqueId),
        (ELSEWHERE, unique(), Binary, true, Unsafe),
        (ELSEWHERE, both(), Binary, true, Unsafe),
        (ELSEWHERE, formula(), Binary, false, Unsafe),
        (ELSEWHERE, nothing(), Binary, false, Unsafe),
        (ELSEWHERE, both(), Text, false, Unsafe),
        (ELSEWHERE, unique(), Text, false, Unsafe),
        (ELSEWHERE, nothing(), Text, true, Unsafe),
        // It could not be compared.
        (UNKNOWN, both(), Binary, false, VerifiedByUniqueId),
        (UNKNOWN, unique(), Binary, true, VerifiedByUniqueId),
        (UNKNOWN, formula(), Binary, false, Unverifiable),
        (UNKNOWN, formula(), Binary, true, Unverifiable),
        (UNKNOWN, both(), Text, false, Unverifiable),
        (UNKNOWN, unique(), Text, false, Unavailable),
        (UNKNOWN, nothing(), Binary, false, Unavailable),
    ] {
        let detail = match (state, pid1) {
            (Verified, _) => Detail::None,
            (Unavailable, _) => MISSING,
            (_, Pid1::Elsewhere(detail) | Pid1::Unknown(detail)) => detail,
            (_, Pid1::Here) => unreachable!("no such row"),
        };
        let said = classify(pid1, &evidence, encoding, strict, MISSING);
        let row = format!("{pid1:?} {evidence:?} {encoding:?} strict={strict}");
        assert_eq!(said, Topology { state, pid1, detail }, "{row}");
    }
}

#[test]
fn a_zero_start_time_is_data_that_identifies_nothing() {
    let zero = Generation { pid1_start_time: Some(0), ..formula() };
    let said = classify(Pid1::Here, &zero, Encoding::Binary, false, MISSING);
    assert_eq!(said.state, State::Unavailable);
    assert_eq!(
        said.detail.to_string(),
        "PID 1 start time is zero; possible hostPID or virtualized procfs"
    );
}

#[test]
fn words() {
    assert_eq!(
        UNSUPPORTED_TOPOLOGY,
        "unsupported PID topology: pod must not set shareProcessNamespace or hostPID"
    );
    let detail = |detail: Detail| detail.to_string();
    assert_eq!(detail(Detail::None), "");
    assert_eq!(
        detail(Detail::CannotRead("/proc/1/ns/mnt", Errno::ACCESS)),
        "cannot read /proc/1/ns/mnt (EACCES)"
    );
    assert_eq!(detail(Detail::CannotParse("/proc/1/stat")), "cannot parse /proc/1/stat");
    assert_eq!(
        detail(Detail::Namespaces { pid1: 1, own: 2 }),
        "PID 1 is in mnt:[1], this process in mnt:[2]"
    );
    for (witness, words) in [
        (Witness::WholeNamespace, "this process sees every mount of its namespace"),
        (Witness::Cgroup, "PID 1's cgroup is outside this container's"),
        (Witness::InitialPidNamespace, "this is the node's PID namespace"),
    ] {
        let line = format!("PID 1 and this process share no mount, and {words}");
        assert_eq!(detail(Detail::Mounts(witness)), line);
    }
    let states: Vec<String> = [
        State::Verified,
        State::VerifiedByUniqueId,
        State::Unsafe,
        State::Unverifiable,
        State::Unavailable,
        State::NonLinux,
    ]
    .map(|state| state.to_string())
    .into();
    assert_eq!(
        states,
        ["verified", "verified by unique id", "unsafe", "unverifiable", "unavailable", "non-Linux"]
    );
    let details = [
        Detail::Mounts(Witness::WholeNamespace),
        Detail::Mounts(Witness::InitialPidNamespace),
        Detail::Namespaces { pid1: u64::MAX, own: u64::MAX },
    ];
    for detail in details {
        // What a worker publishes in `topology-unsafe`.
        assert!(detail.to_string().len() <= 256);
    }
}
