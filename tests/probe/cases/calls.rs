//! The system calls of a healthy run: how many, and that they write, fork and leave nothing.

use std::collections::BTreeSet;

use crate::site::Site;
use crate::trace::{healthy, lines};
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("calls::within_the_budget", Need::Strace, budget),
    case("calls::write_and_fork_nothing", Need::Strace, harmless),
    case("calls::close_what_they_open", Need::Strace, closed),
    case("calls::open_only_once_the_timer_runs", Need::Strace, timer_first),
];

fn budget(site: &Site) {
    for slots in [1, 4, 32] {
        let calls = healthy(site, slots);
        let limit = 25 + 3 * (slots as usize - 1);
        assert!(calls.len() <= limit, "{} calls, {limit} allowed\n{}", calls.len(), lines(&calls));
    }
}

/// Every call that changes a file, makes a process or talks to one.
const HARMFUL: &[&str] = &[
    "fork",
    "vfork",
    "clone",
    "execveat",
    "creat",
    "mkdir",
    "mknod",
    "unlink",
    "rmdir",
    "rename",
    "link",
    "symlink",
    "truncate",
    "ftruncate",
    "fallocate",
    "chmod",
    "fchmod",
    "chown",
    "fchown",
    "lchown",
    "utime",
    "futimesat",
    "setxattr",
    "fsetxattr",
    "pwrite",
    "writev",
    "sendfile",
    "splice",
    "copy_file_range",
    "socket",
    "connect",
    "kill",
    "tkill",
    "tgkill",
    "mount",
    "flock",
];

fn harmless(site: &Site) {
    let calls = healthy(site, 4);
    let all = lines(&calls);
    assert_eq!(calls.iter().filter(|call| call.name() == "execve").count(), 1, "{all}");
    for call in &calls {
        let name = call.name();
        assert!(!HARMFUL.iter().any(|harmful| name.starts_with(harmful)), "{name} in\n{all}");
        if name == "write" {
            assert!(call.contains("write(1, "), "another output than 1 in\n{all}");
        }
        if name.starts_with("open") {
            let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE"];
            assert!(!writes.iter().any(|flag| call.contains(flag)), "opened for writing\n{all}");
            assert!(call.contains("O_CLOEXEC"), "an open without O_CLOEXEC\n{all}");
            // Of the marks directory, whoever planted what there.
            if ["\"expected\"", "\"generation\"", "\"worker-"]
                .iter()
                .any(|file| call.contains(file))
            {
                let careful = call.contains("O_NOFOLLOW") && call.contains("O_NONBLOCK");
                assert!(careful, "an open that follows or waits\n{all}");
            }
        }
    }
    assert_eq!(calls.iter().filter(|call| call.name() == "write").count(), 1, "{all}");
}

/// More slots than the probe may hold descriptors back for.
fn closed(site: &Site) {
    let calls = healthy(site, 200);
    let all = lines(&calls);
    let mut open = BTreeSet::new();
    for call in &calls {
        match (call.name(), call.returned(), &call.numbers()[..]) {
            (name, Some(descriptor), _) if name.starts_with("open") => {
                assert!(open.insert(descriptor), "{descriptor} twice in\n{all}");
            }
            ("close", Some(0), [descriptor]) => {
                assert!(open.remove(descriptor), "{descriptor} was not open in\n{all}");
            }
            ("close_range", Some(0), [first, last, ..]) => {
                for descriptor in *first..=*last {
                    assert!(open.remove(&descriptor), "{descriptor} was not open in\n{all}");
                }
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} left open by\n{all}");
}

fn timer_first(site: &Site) {
    let calls = healthy(site, 1);
    let at = |names: &[&str]| calls.iter().position(|call| names.contains(&call.name()));
    let timer = at(&["alarm", "setitimer", "timer_settime"]).expect("a timer");
    let open = at(&["open", "openat", "openat2"]).expect("an open");
    assert!(timer < open, "{}", lines(&calls));
}
