//! What never answers ends the probe by SIGALRM, whatever its parent did to that signal.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ioctl_fionbio};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::answer::Answer;
use crate::inherited;
use crate::marks::Marks;
use crate::site::Site;
use crate::{Case, Need, case};

pub(super) const CASES: &[Case] = &[
    case("hang::writing_to_a_full_pipe", Need::Nothing, full_pipe),
    case("hang::reading_from_a_dead_file_system", Need::Fuse, dead_file_system),
];

#[track_caller]
fn ends_by_alarm(command: &mut Command, seconds: u64) {
    inherited::ignore_and_block_alarm(command);
    let started = Instant::now();
    let answer = Answer::of(command);
    let took = started.elapsed();
    assert_eq!((answer.status, answer.signal), (None, Some(libc::SIGALRM)), "{answer:?}");
    let due = Duration::from_secs(seconds);
    // The kernel's timer never fires early; late it is on a busy machine.
    assert!(took >= due && took < due * 2 + Duration::from_secs(2), "after {took:?}");
}

/// The write waits for a reader that never reads.
fn full_pipe(site: &Site) {
    let marks = Marks::healthy(site, 1);
    let (mut reader, mut writer) = io::pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("a pipe that does not wait");
    while writer.write(&[0; 4096]).is_ok() {}
    ioctl_fionbio(&writer, false).expect("a pipe that waits");
    let mut command = site.probe(&marks);
    command.args(["--timeout", "1"]).stdout(writer);
    // `output` reads only what it made itself.
    ends_by_alarm(&mut command, 1);
    drop(command);
    let mut written = Vec::new();
    reader.read_to_end(&mut written).expect("what is in the pipe");
    assert!(written.iter().all(|&byte| byte == 0), "the probe wrote into a full pipe");
}

/// A FUSE file system whose server holds the connection and never speaks.
struct DeadFileSystem {
    path: PathBuf,
    _connection: File,
}

impl DeadFileSystem {
    fn mount(path: PathBuf) -> Result<Self, Errno> {
        let connection =
            File::options().read(true).write(true).open("/dev/fuse").map_err(|_| Errno::ACCESS)?;
        let options = format!("fd={},rootmode=40755,user_id=0,group_id=0", connection.as_raw_fd());
        let options = CString::new(options).expect("no zero in it");
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount("tickmark", &path, "fuse", flags, options.as_c_str())?;
        Ok(Self { path, _connection: connection })
    }
}

impl Drop for DeadFileSystem {
    fn drop(&mut self) {
        if let Err(failure) = unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::FORCE) {
            eprintln!("{} is still mounted: {failure}", self.path.display());
        }
    }
}

fn dead_file_system(site: &Site) {
    let marks = Marks::empty(site);
    let _mounted = DeadFileSystem::mount(marks.path().to_owned()).expect("a FUSE file system");
    ends_by_alarm(site.probe(&marks).arg("--timeout=1"), 1);
    ends_by_alarm(&mut site.probe(&marks), 3);
}
