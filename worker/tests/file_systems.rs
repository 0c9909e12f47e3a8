//! Full and read-only file systems, and directories of other users.
//!
//! Needs root: to mount a small tmpfs in a mount namespace of the test's own, and to become uid
//! 1000. Where that cannot be had a test says so and passes. Each runs itself again elsewhere,
//! one at a time: a process between its fork and its exec holds its parent's locks.

mod capture;
mod skipping;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use capture::{assert_one_error, builder, capture, directory, errors, healthy, mark};
use skipping::skip;
use tickmark::Encoding;

/// Set for a test that runs itself again somewhere else: where its marks are.
const ELSEWHERE: &str = "TICKMARK_TEST_ELSEWHERE";

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test` again in a mount namespace of its own, with a tmpfs of these options; there it
/// returns where that is, here nothing.
fn on_small_tmpfs(test: &str, options: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(ELSEWHERE) {
        return Some(dir.into());
    }
    let _alone = alone();
    let unshared = |program: &mut Command| program.status().is_ok_and(|status| status.success());
    let mount = tempfile::tempdir().unwrap();
    let probe = "mount -t tmpfs tmpfs \"$0\" && umount \"$0\"";
    let namespace = ["--mount", "--propagation", "private", "sh", "-c"];
    if !unshared(Command::new("unshare").args(namespace).arg(probe).arg(mount.path())) {
        skip(test, "needs root and leave to mount");
        return None;
    }
    let script = "mount -t tmpfs -o \"$1\" tmpfs \"$0\" && shift && exec \"$@\"";
    let run = Command::new("unshare")
        .args(namespace)
        .arg(script)
        .arg(mount.path())
        .arg(options)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ELSEWHERE, mount.path())
        .status()
        .unwrap();
    assert!(run.success(), "{test} failed on a tmpfs with {options}");
    None
}

fn remount(dir: &Path, how: &str) {
    let how = format!("remount,{how}");
    assert!(Command::new("mount").args(["-o", &how]).arg(dir).status().unwrap().success());
}

/// Fills the file system until nothing more can be made on it.
fn fill(dir: &Path, bytes: bool) -> Vec<PathBuf> {
    let mut made = Vec::new();
    for n in 0..10_000 {
        let path = dir.join(format!("fill-{n}"));
        let content: &[u8] = if bytes { &[0; 4096] } else { &[] };
        match fs::write(&path, content) {
            Ok(()) => made.push(path),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                if path.exists() {
                    made.push(path);
                }
                return made;
            }
        }
    }
    panic!("never full");
}

fn survives_a_full_file_system(root: &Path, bytes: bool) {
    for encoding in [Encoding::Binary, Encoding::Text] {
        let dir = root.join("marks");
        let (mut worker, _registered) = healthy(builder(&dir).format(encoding));
        let (lines, _capturing) = capture();
        let file = dir.join("worker-0");
        let filling = fill(root, bytes);
        let before = fs::metadata(&file).unwrap();
        let old = fs::read(&file).unwrap();
        for _ in 0..3 {
            worker.tick_after(10);
        }
        // Written over in place: the same file, another content.
        let after = fs::metadata(&file).unwrap();
        assert_eq!(errors(&lines), [""; 0]);
        assert_eq!(after.ino(), before.ino());
        assert_ne!(fs::read(&file).unwrap(), old);
        assert!(!dir.join(".new-0").exists());

        // A link to the mark, or a symlink in its place, is not written through.
        if bytes {
            let elsewhere = root.join("link");
            fs::hard_link(&file, &elsewhere).unwrap();
            let old = fs::read(&elsewhere).unwrap();
            worker.tick_after(10);
            assert_one_error(&lines, &["no worker-0 to write over"]);
            assert_eq!(fs::read(&elsewhere).unwrap(), old);
            fs::remove_file(elsewhere).unwrap();
            worker.tick_after(10);
            assert_eq!(errors(&lines), [""; 0]);
        }

        // A slot that has no file yet says so once, and goes on.
        let (mut second, _registered) =
            healthy(builder(&dir).slot(1).processes(2).format(encoding));
        for _ in 0..3 {
            second.tick_after(10);
        }
        assert_one_error(&lines, &["the marks file system is full"]);
        assert!(!dir.join("worker-1").exists());
        filling.iter().for_each(|path| fs::remove_file(path).unwrap());
        second.tick_after(10);
        worker.tick_after(10);
        assert!(dir.join("worker-1").exists());
        assert_ne!(fs::metadata(&file).unwrap().ino(), before.ino());
        assert_eq!(errors(&lines), [""; 0]);
        drop((worker, second));
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_tmpfs_full_by_bytes() {
    if let Some(root) = on_small_tmpfs("a_tmpfs_full_by_bytes", "size=64k") {
        survives_a_full_file_system(&root, true);
    }
}

#[test]
fn a_tmpfs_full_by_inodes() {
    if let Some(root) = on_small_tmpfs("a_tmpfs_full_by_inodes", "nr_inodes=24") {
        survives_a_full_file_system(&root, false);
    }
}

#[test]
fn a_read_only_file_system() {
    let Some(root) = on_small_tmpfs("a_read_only_file_system", "size=1m") else { return };
    let dir = root.join("marks");
    // Read-only from the start, and from one tick to the next.
    for start in ["ro", "rw"] {
        let (lines, _capturing) = capture();
        remount(&root, start);
        let (mut worker, _registered) = healthy(builder(&dir));
        remount(&root, "ro");
        for _ in 0..3 {
            worker.tick_after(10);
        }
        assert_one_error(&lines, &["EROFS"]);
        remount(&root, "rw");
        worker.tick_after(10);
        assert_eq!(mark(&dir).monotonic_ns, worker.now_ns);
        assert_eq!(errors(&lines), [""; 0]);
        // Nobody may hold a file open for writing when it is remounted.
        drop(worker);
    }
}

#[test]
fn a_directory_of_another_user() {
    let name = "a_directory_of_another_user";
    if let Some(parent) = std::env::var_os(ELSEWHERE).map(PathBuf::from) {
        as_uid_1000(&parent);
        return;
    }
    let _alone = alone();
    let parent = directory().unwrap();
    if fs::metadata(parent.path()).unwrap().uid() != 0 {
        return skip(name, "needs root, to become uid 1000");
    }
    let open = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    open(parent.path(), 0o755).unwrap();
    for (dir, mode) in [("closed", 0o755), ("shared", 0o777), ("sticky", 0o1777)] {
        let dir = parent.path().join(dir);
        fs::create_dir(&dir).unwrap();
        // Root's worker was here.
        drop(healthy(builder(&dir)));
        open(&dir, mode).unwrap();
    }
    // Where it was built may be closed to others.
    let program = parent.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    open(&program, 0o755).unwrap();
    let run = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(ELSEWHERE, parent.path())
        .current_dir("/")
        .uid(1000)
        .gid(1000)
        .status()
        .unwrap();
    assert!(run.success(), "{name} failed as uid 1000");
}

fn as_uid_1000(parent: &Path) {
    let (lines, _capturing) = capture();
    let dir = parent.join("closed");
    let old = mark(&dir);
    let (mut worker, _registered) = healthy(builder(&dir));
    worker.tick_after(10);
    assert_one_error(&lines, &["EACCES"]);
    assert_eq!(mark(&dir), old);

    // Who may write the directory replaces what another user left in it.
    let dir = parent.join("shared");
    let (worker, _registered) = healthy(builder(&dir));
    assert_eq!(errors(&lines), [""; 0]);
    assert_eq!(fs::metadata(dir.join("worker-0")).unwrap().uid(), 1000);
    assert_eq!(mark(&dir).monotonic_ns, worker.now_ns);

    // Unless the directory is sticky.
    let dir = parent.join("sticky");
    let old = mark(&dir);
    let (mut worker, _registered) = healthy(builder(&dir));
    worker.tick_after(10);
    assert_one_error(&lines, &["EPERM"]);
    assert_eq!(mark(&dir), old);
    assert!(!dir.join(".new-0").exists());
}
