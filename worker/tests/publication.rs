//! Publication against readers at full speed, restarts, a second process of the slot, and things
//! planted where files should be. Nothing here starts a process: one between its fork and its
//! exec would hold the locks of its parent's slots.

mod capture;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use capture::{
    Switch, Worker, assert_one_error, builder, capture, directory, errors, healthy, mark,
};
use tickmark::marks::{FileName, Publisher};
use tickmark::protocol::{AnyMark, MarkFile, Phase, Slot};
use tickmark::{ConsumerState, Encoding};

/// The names in `dir`, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn two_million_reads_beside_a_writer_at_full_speed() {
    const READERS: u64 = 2;
    const READS: u64 = 2_000_000 / READERS;

    let dir = directory().unwrap();
    let (worker, _registered) = healthy(builder(dir.path()));
    let template = mark(dir.path());
    drop(worker);
    let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let mut publisher = Publisher::new(path, Slot::FIRST, Encoding::Binary);
    let session = publisher.begin().unwrap();
    let done = AtomicBool::new(false);
    let write = || {
        let mut mark = template.clone();
        while !done.load(Ordering::Relaxed) {
            mark.sequence += 1;
            mark.wall_ms = mark.sequence ^ 0x5555;
            session.mark(&mark).unwrap();
        }
        mark.sequence
    };
    let file = dir.path().join("worker-0");
    let read = || {
        let (mut last, mut seen, mut bytes) = (template.sequence, 0, [0; 1024]);
        for _ in 0..READS {
            // Nothing is read twice here: a rename leaves nothing to be seen half done.
            let length = File::open(&file).unwrap().read(&mut bytes).unwrap();
            let Ok(AnyMark::Binary(mark)) = MarkFile::decode(Slot::FIRST, &bytes[..length]) else {
                panic!("torn: {:?}", &bytes[..length]);
            };
            assert!(mark.sequence >= last, "{} after {last}", mark.sequence);
            assert!(mark.sequence == template.sequence || mark.wall_ms == mark.sequence ^ 0x5555);
            seen += u64::from(mark.sequence > last);
            last = mark.sequence;
        }
        seen
    };
    let (written, seen) = thread::scope(|scope| {
        let writer = scope.spawn(write);
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        let seen: Vec<u64> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), seen)
    });
    assert!(seen.iter().all(|&seen| seen > 1_000), "{seen:?} of {written} marks");
}

#[test]
fn a_removed_directory_is_there_again_after_one_tick() {
    let parent = directory().unwrap();
    let dir = parent.path().join("a/b/marks");
    let (mut worker, _registered) = healthy(builder(&dir));
    let before = names(&dir);
    fs::remove_dir_all(parent.path().join("a")).unwrap();
    worker.tick_after(10);
    assert_eq!(names(&dir), before);
    assert_eq!(mark(&dir).monotonic_ns, worker.now_ns);
}

#[test]
fn ten_thousand_restarts_leave_little() {
    let dir = directory().unwrap();
    for restart in 0..10_000u64 {
        if restart % 3 == 0 {
            // Killed between the new file and its rename.
            fs::write(dir.path().join(".new-0"), "half").unwrap();
        }
        let start = capture::START + restart * capture::SECOND;
        let mut worker = Worker::start_at(builder(dir.path()).consumers(1), start);
        if restart % 2 == 1 {
            let _registered = worker.register("orders", &Switch::new(ConsumerState::Consuming));
            worker.tick_after(0);
        }
    }
    assert_eq!(names(dir.path()), [".lock-0", "expected", "generation", "worker-0"]);
    let pages: u64 = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512)
        .sum();
    assert!(pages < 16 * 1024, "{pages}");
}

#[test]
fn an_unpublished_file_of_a_killed_process_is_removed_by_its_own_slot() {
    let dir = directory().unwrap();
    for slot in 0..2 {
        fs::write(dir.path().join(format!(".new-{slot}")), "half").unwrap();
    }
    let publisher = |slot| {
        let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
        Publisher::new(path, Slot::new(slot).unwrap(), Encoding::Binary)
    };
    let mut first = publisher(0);
    first.begin().unwrap();
    assert_eq!(names(dir.path()), [".lock-0", ".new-1"]);
    let mut second = publisher(1);
    let session = second.begin().unwrap();
    assert_eq!(names(dir.path()), [".lock-0", ".lock-1"]);
    assert!(!session.directory().exists(FileName::Unpublished(Slot::FIRST)));
}

#[test]
fn the_second_process_of_a_slot_waits_for_it() {
    let dir = directory().unwrap();
    let (mut first, _registered) = healthy(builder(dir.path()));
    let (lines, _capturing) = capture();
    let (mut second, _registered) = healthy(builder(dir.path()));
    // Longer than the startup grace: it is not overdue, for nothing is wrong with its consumers.
    for _ in 0..10 {
        first.tick_after(10);
        second.tick_after(10);
        assert_eq!(mark(dir.path()).monotonic_ns, first.now_ns);
        assert_eq!(
            mark(dir.path()).sequence,
            (first.now_ns - capture::START) / (10 * capture::SECOND)
        );
    }
    let said = lines.take();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[0].contains("started: ") || said[1].contains("started: "), "{said:?}");
    assert!(said.iter().any(|line| line.contains("slot 0 is held by another process")), "{said:?}");
    assert!(!said.iter().any(|line| line.ends_with(" healthy")), "it is not, for the probe");
    drop(first);
    second.tick_after(100);
    assert_eq!(mark(dir.path()).monotonic_ns, second.now_ns);
    assert_eq!(mark(dir.path()).sequence, 1);
    assert_eq!(lines.take(), ["INFO [liveness] slot 0: healthy"]);
}

#[test]
fn the_second_process_of_a_slot_leaves_no_mark_in_its_shutdown() {
    let dir = directory().unwrap();
    let (first, _registered) = healthy(builder(dir.path()));
    let (mut second, _registered) = healthy(builder(dir.path()));
    second.liveness.stopping_at(second.now_ns);
    let before = mark(dir.path());
    drop(first);
    second.tick_after(10);
    assert_eq!(mark(dir.path()), before, "it was never healthy");
}

#[test]
fn a_slot_that_takes_over_forgets_its_predecessors_starts() {
    let dir = directory().unwrap();
    let first = Worker::start(builder(dir.path()));
    assert!(names(dir.path()).contains(&"attempt-0".to_owned()));
    let mut second = Worker::start(builder(dir.path()));
    let consuming = Switch::new(ConsumerState::Consuming);
    let _registered = ["orders", "mails"].map(|name| second.register(name, &consuming));
    drop(first);
    second.tick_after(10);
    assert_eq!(mark(dir.path()).sequence, 1);
    assert!(!names(dir.path()).contains(&"attempt-0".to_owned()));
}

fn fifo(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o644));
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

#[test]
fn a_symlink_where_a_file_should_be_is_replaced_not_followed() {
    let dir = directory().unwrap();
    let precious = dir.path().join("precious");
    fs::write(&precious, "keep me").unwrap();
    let marks = dir.path().join("marks");
    fs::create_dir(&marks).unwrap();
    for name in ["worker-0", "expected", "generation", "attempt-0", "topology-report", ".new-0"] {
        symlink(&precious, marks.join(name)).unwrap();
    }
    let (lines, _capturing) = capture();
    let (worker, _registered) = healthy(builder(&marks));
    assert_eq!(errors(&lines), [""; 0]);
    assert_eq!(mark(&marks).monotonic_ns, worker.now_ns);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "keep me");
    assert!(
        names(&marks)
            .iter()
            .all(|name| { fs::symlink_metadata(marks.join(name)).unwrap().is_file() })
    );
}

#[test]
fn a_fifo_where_a_file_should_be_is_replaced_and_holds_nobody_up() {
    let dir = directory().unwrap();
    for name in ["worker-0", "expected", "generation", "attempt-0", "topology-report", ".new-0"] {
        fifo(&dir.path().join(name));
    }
    let (lines, _capturing) = capture();
    let (worker, _registered) = healthy(builder(dir.path()));
    assert_eq!(errors(&lines), [""; 0]);
    assert_eq!(mark(dir.path()).monotonic_ns, worker.now_ns);
    let left = names(dir.path());
    assert!(left.iter().all(|name| {
        !fs::symlink_metadata(dir.path().join(name)).unwrap().file_type().is_fifo()
    }));
}

#[test]
fn a_directory_where_a_file_should_be_is_one_error_until_it_goes() {
    for (name, operation) in [("worker-0", "cannot replace worker-0"), (".new-0", ".new-0")] {
        let dir = directory().unwrap();
        let (mut worker, _registered) = healthy(builder(dir.path()));
        let (lines, _capturing) = capture();
        let planted = dir.path().join(name);
        let _replaced = fs::remove_file(&planted);
        fs::create_dir(&planted).unwrap();
        for _ in 0..3 {
            worker.tick_after(10);
        }
        assert_one_error(&lines, &[operation, "EISDIR"]);
        assert!(dir.path().join("expected").is_file());
        fs::remove_dir(&planted).unwrap();
        worker.tick_after(10);
        assert_eq!(mark(dir.path()).monotonic_ns, worker.now_ns);
        assert_eq!(errors(&lines), [""; 0]);
    }
}

#[test]
fn files_are_readable_by_the_probe_whatever_the_umask() {
    let dir = directory().unwrap();
    let marks = dir.path().join("marks");
    let (worker, _registered) = healthy(builder(&marks));
    assert_eq!(fs::metadata(&marks).unwrap().mode() & 0o777, 0o755);
    for name in ["expected", "generation", "worker-0"] {
        assert_eq!(fs::metadata(marks.join(name)).unwrap().mode() & 0o7777, 0o644);
    }
    assert_eq!(mark(&marks).phase, Phase::Running);
    drop(worker);
}
