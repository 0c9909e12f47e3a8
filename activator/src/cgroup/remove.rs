//! Removing a cgroup that was left, depth first and with bounded retries.

use std::ffi::OsStr;
use std::io;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::directory::Directory;
use crate::error::{Doing as _, Error, Kind};

/// How often the removal is begun anew. What is still exiting, or a child that a worker makes
/// beside us, answers `EBUSY`.
const TRIES: u32 = 8;

/// The pause before the second try; it doubles with each.
const PAUSE: Duration = Duration::from_millis(1);

/// One descriptor a level: nobody nests deeper with a purpose.
const DEEPEST: usize = 64;

/// Removes the child `name` of `parent` and all below it; true where there was one.
///
/// # Errors
/// It is populated, too deep, or stays busy.
pub(super) fn remove(parent: &Directory, name: &OsStr) -> Result<bool, Error> {
    let path = || format!("remove {}", parent.path().join(name).display());
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match depth_first(parent, name, DEEPEST) {
            Ok(found) => return Ok(found),
            Err(Errno::BUSY | Errno::NOTEMPTY) => {}
            Err(error) => return Err(io::Error::from(error)).doing(path),
        }
        thread::sleep(pause);
        pause *= 2;
    }
    match depth_first(parent, name, DEEPEST) {
        Ok(found) => Ok(found),
        Err(error @ (Errno::BUSY | Errno::NOTEMPTY)) => Err(Error::because(
            Kind::Populated,
            format!(
                "cannot {}: something lives in it or makes cgroups there: kill it first",
                path()
            ),
            io::Error::from(error),
        )),
        Err(error) => Err(io::Error::from(error)).doing(path),
    }
}

fn depth_first(parent: &Directory, name: &OsStr, levels: usize) -> Result<bool, Errno> {
    match parent.remove(name) {
        Ok(()) => return Ok(true),
        Err(Errno::NOENT) => return Ok(false),
        Err(Errno::BUSY | Errno::NOTEMPTY) => {}
        Err(error) => return Err(error),
    }
    let deeper = levels.checked_sub(1).ok_or(Errno::LOOP)?;
    if let Some(directory) = parent.child(name)? {
        for child in directory.children()? {
            depth_first(&directory, child.as_os_str(), deeper)?;
        }
    }
    match parent.remove(name) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(error) => Err(error),
    }
}
