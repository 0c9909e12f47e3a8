//! What may be wrong with a slot, and what stands where its mark should be.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, StatVfsMountFlags, makedev, mknodat, statvfs};
use tickmark::protocol::Mark;

use crate::answer::{Answer, DAMAGED, NEWER, ONE_HEALTHY, answers};
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("marks::newer", Need::Nothing, newer),
    case("marks::of_another_slot_or_kind", Need::Nothing, misplaced),
    case("marks::that_are_no_regular_files", Need::Nothing, not_regular),
    case("marks::that_are_devices", Need::Root, devices),
    case("marks::stale", Need::Nothing, stale),
    case("marks::from_the_future", Need::Nothing, future),
    case("marks::many_problems", Need::Nothing, many),
];

fn newer(site: &Site) {
    let marks = Marks::healthy(site, 2);
    let mut mark = marks.read("worker-1");
    mark[3] = 2;
    for newer in [&mark[..], &mark[..5], &[&mark[..], &[7; 9000]].concat()] {
        marks.write("worker-1", newer);
        answers(site, &marks, 1, format_args!("worker-1 {NEWER}"));
    }
    mark[3] = 255;
    marks.write("worker-1", mark);
    answers(site, &marks, 1, "worker-1 written by a newer tickmark (format 255)");
}

fn misplaced(site: &Site) {
    let marks = Marks::healthy(site, 2);
    for other in ["worker-1", "expected"] {
        fs::copy(marks.file(other), marks.file("worker-0")).expect("a copy");
        answers(site, &marks, 1, DAMAGED);
    }
    marks.remove("worker-0");
    answers(site, &marks, 1, "worker-0 missing");
}

fn not_regular(site: &Site) {
    let marks = Marks::healthy(site, 2);
    let unreadable = |why: &str| format!("worker-0 unreadable ({why})");
    let planted = marks.file("worker-0");
    fs::rename(&planted, marks.file("healthy")).expect("another name");

    for target in ["healthy", "nowhere", "worker-0"] {
        symlink(target, &planted).expect("a link");
        answers(site, &marks, 1, unreadable("ELOOP"));
        marks.remove("worker-0");
    }
    mknodat(CWD, &planted, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
    answers(site, &marks, 1, unreadable("not a regular file"));
    marks.remove("worker-0");
    fs::create_dir(&planted).expect("a directory");
    answers(site, &marks, 1, unreadable("not a regular file"));
    fs::remove_dir(&planted).expect("to remove it");
    // That it is a socket shows when it is opened already.
    let socket = UnixListener::bind(&planted).expect("a socket");
    answers(site, &marks, 1, unreadable("ENXIO"));
    drop(socket);
    marks.remove("worker-0");

    fs::hard_link(marks.file("healthy"), &planted).expect("a second name");
    answers(site, &marks, 0, "2 process(es) healthy");
    marks.set_mode("worker-0", 0o000);
    Answer::of(&mut site.unprivileged_probe(&marks)).is(1, unreadable("EACCES"));
}

fn devices(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let nodev =
        statvfs(marks.path()).expect("its file system").f_flag.contains(StatVfsMountFlags::NODEV);
    let line = if nodev { "EACCES" } else { "not a regular file" };
    let line = format!("worker-0 unreadable ({line})");
    for (device, minor) in [("null", 3), ("zero", 5)] {
        marks.remove("worker-0");
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, marks.file("worker-0"), FileType::CharacterDevice, mode, makedev(1, minor))
            .expect(device);
        answers(site, &marks, 1, &line);
    }
}

/// Ages lie a little below a whole second, so that a slow machine does not reach the next.
fn stale(site: &Site) {
    let marks = Marks::healthy(site, 2);
    let aged = |milliseconds: u64| {
        let mark = marks.mark(1);
        let monotonic_ns = mark.monotonic_ns.saturating_sub(milliseconds * 1_000_000);
        Mark { monotonic_ns, ..mark }
    };
    let aged_says = |milliseconds, max_age, status, line: &str| {
        marks.put(&aged(milliseconds));
        let mut command = site.probe(&marks);
        command.args(["--max-age", max_age]);
        Answer::of(&mut command).is(status, line);
    };
    aged_says(9_100, "5", 1, "worker-1 stale 10s > 5s");
    // Rounded up: never `stale 9s > 9s`.
    aged_says(9_100, "9", 1, "worker-1 stale 10s > 9s");
    aged_says(9_100, "10", 0, "2 process(es) healthy");

    let age = Duration::from_millis(119_100);
    marks.put(&marks.mark_by_mtime(1));
    marks.modified_ago("worker-1", age);
    answers(site, &marks, 1, "worker-1 stale 120s > 45s");
    marks.put(&Mark { monotonic_ns: 0, time_namespace: 1, ..marks.mark(1) });
    answers(site, &marks, 0, "2 process(es) healthy");
    // In one time namespace the mtime says nothing.
    marks.put(&marks.mark(1));
    marks.modified_ago("worker-1", age);
    answers(site, &marks, 0, "2 process(es) healthy");
}

fn future(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let mark = marks.mark(0);
    for ahead_s in [60, 1_000_000] {
        let monotonic_ns = mark.monotonic_ns + ahead_s * 1_000_000_000;
        marks.put(&Mark { monotonic_ns, ..mark.clone() });
        answers(site, &marks, 1, "worker-0 from the future");
    }
    marks.put(&Mark { monotonic_ns: u64::MAX, ..mark });
    answers(site, &marks, 1, "worker-0 from the future");

    marks.put(&marks.mark_by_mtime(0));
    marks.modified("worker-0", SystemTime::now() + Duration::from_millis(119_900));
    answers(site, &marks, 1, "worker-0 from the future 120s");
    marks.modified("worker-0", SystemTime::now() + Duration::from_secs(44));
    answers(site, &marks, 0, ONE_HEALTHY);
}

fn many(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let first: Vec<String> = (0..16).map(|slot| format!("worker-{slot} missing")).collect();
    let first = first.join("; ");
    marks.remove("worker-0");
    for (declared, rest) in [(16, ""), (17, "; … and 1 more"), (4096, "; … and 4080 more")] {
        marks.write("expected", declared.to_string());
        answers(site, &marks, 1, format_args!("{first}{rest}"));
    }
    // Healthy ones between them are not counted, and each says what is wrong with itself.
    marks.fill(20);
    for slot in 0..17 {
        marks.write(&format!("worker-{slot}"), "");
    }
    marks.remove("worker-0");
    marks.remove("worker-19");
    let damaged: Vec<String> =
        (1..16).map(|slot| format!("worker-{slot} unreadable (damaged)")).collect();
    let line = format!("worker-0 missing; {}; … and 2 more", damaged.join("; "));
    answers(site, &marks, 1, line);
}
