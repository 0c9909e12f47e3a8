//! A cgroup's directory held open, and the interface files below it. What is mounted over one of
//! them is not taken for it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, FsWord, Mode, OFlags, ResolveFlags, XattrFlags, accessat,
    fgetxattr, fsetxattr, fstat, fstatfs, mkdirat, openat, openat2, unlinkat,
};
use rustix::io::{Errno, pread, write};

use crate::descriptor;
use crate::error::{Doing as _, Error};

/// `CGROUP2_SUPER_MAGIC` of
/// [statfs(2)](https://man7.org/linux/man-pages/man2/statfs.2.html).
const CGROUP2: FsWord = 0x6367_7270;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What of ours is written on a cgroup: an extended attribute of its directory, which dies with
/// it. `user.*` attributes on cgroup v2 are Linux 5.7 and later.
const ATTRIBUTE: &str = "user.tickmark";

const MADE: &[u8] = b"made";
const KILLED: &[u8] = b"killed";

/// What the attribute says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing: no activator made it.
    None,
    /// An activator made it.
    Made,
    /// It has taken, or is about to take, `cgroup.kill`.
    Killed,
    /// This kernel keeps no attributes. It has no `cgroup.kill` either, which is younger.
    Unsupported,
}

#[derive(Debug)]
pub(super) struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a cgroup v2 by its path.
    pub(super) fn open(path: &Path) -> Result<Directory, Errno> {
        let descriptor = openat(CWD, path, DIRECTORY, Mode::empty())?;
        Directory::checked(descriptor, path.to_owned())
    }

    fn checked(descriptor: OwnedFd, path: PathBuf) -> Result<Directory, Errno> {
        if is_cgroup2(&descriptor)? {
            Ok(Directory { descriptor, path })
        } else {
            Err(Errno::NOTSUP)
        }
    }

    /// For messages: the descriptor is what counts.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The child cgroup of this name, where there is one.
    pub(super) fn child(&self, name: &OsStr) -> Result<Option<Directory>, Errno> {
        let path = self.path.join(name);
        match beneath(&self.descriptor, name, DIRECTORY) {
            Ok(descriptor) => Directory::checked(descriptor, path).map(Some),
            Err(Errno::NOENT | Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the child; `EEXIST` where there is one, `EAGAIN` at `cgroup.max.depth` or
    /// `cgroup.max.descendants`.
    pub(super) fn make(&self, name: &OsStr) -> Result<(), Errno> {
        mkdirat(&self.descriptor, name, Mode::from_raw_mode(0o755))
    }

    /// Removes the child, which must be unpopulated and without children: `EBUSY`.
    pub(super) fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR)
    }

    /// The names of the child cgroups.
    pub(super) fn children(&self) -> Result<Vec<PathBuf>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor)? {
            let entry = match entry {
                Ok(entry) => entry,
                // It was removed meanwhile.
                Err(Errno::NOENT | Errno::NODEV) => break,
                Err(error) => return Err(error),
            };
            let name = entry.file_name().to_bytes();
            if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).into());
            }
        }
        Ok(names)
    }

    /// The inode: the cgroup's 64-bit id, never given twice within a boot, since Linux 5.5.
    pub(super) fn id(&self) -> Result<u64, Errno> {
        Ok(fstat(&self.descriptor)?.st_ino)
    }

    /// The owner and the permissions of an interface file.
    pub(super) fn permissions(&self, interface: &str) -> Result<(u32, u32), Errno> {
        let found = rustix::fs::statat(&self.descriptor, interface, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((found.st_uid, found.st_mode & 0o7777))
    }

    pub(super) fn writable(&self, interface: &str) -> bool {
        accessat(&self.descriptor, interface, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    }

    /// Opens an interface file. `ENOENT` where this kernel has none or the cgroup is removed;
    /// `EXDEV` where something is mounted over it.
    pub(super) fn interface(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let descriptor = beneath(
            &self.descriptor,
            OsStr::new(name),
            flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        )?;
        if is_cgroup2(&descriptor)? { Ok(descriptor) } else { Err(Errno::XDEV) }
    }

    /// The whole text of an interface file.
    pub(super) fn read(&self, interface: &str) -> Result<String, Errno> {
        read_whole(&self.interface(interface, OFlags::RDONLY)?)
    }

    /// Writes an interface file, in one write, as the kernel wants it. An error of the close
    /// counts.
    pub(super) fn write(&self, interface: &str, text: &str) -> Result<(), Errno> {
        let file = self.interface(interface, OFlags::WRONLY)?;
        let written = rustix::io::retry_on_intr(|| write(&file, text.as_bytes()));
        let closed = descriptor::close(file);
        match written? {
            whole if whole == text.len() => closed.map_err(|error| errno(&error)),
            _ => Err(Errno::IO),
        }
    }

    /// What is written on this cgroup.
    pub(super) fn mark(&self) -> Result<Mark, Errno> {
        let mut text = [0; 16];
        match fgetxattr(&self.descriptor, ATTRIBUTE, &mut text[..]) {
            Ok(length) if &text[..length] == MADE => Ok(Mark::Made),
            // What none of ours wrote must not be spawned into either.
            Ok(_) | Err(Errno::RANGE) => Ok(Mark::Killed),
            Err(Errno::NODATA) => Ok(Mark::None),
            Err(Errno::NOTSUP) => Ok(Mark::Unsupported),
            Err(error) => Err(error),
        }
    }

    /// Says that an activator made it. Before Linux 5.7 nothing is said, and nothing needs it.
    pub(super) fn mark_made(&self) -> Result<(), Errno> {
        match self.set(MADE) {
            Err(Errno::NOTSUP) => Ok(()),
            other => other,
        }
    }

    /// Says that it takes a kill. The value is longer than the one it replaces by two bytes of the
    /// 128 KiB that a cgroup has for attributes.
    pub(super) fn mark_killed(&self) -> Result<(), Errno> {
        self.set(KILLED)
    }

    fn set(&self, text: &[u8]) -> Result<(), Errno> {
        fsetxattr(&self.descriptor, ATTRIBUTE, text, XattrFlags::empty())
    }

    /// Says what was done to this cgroup.
    pub(super) fn doing<T>(&self, result: Result<T, Errno>, what: &str) -> Result<T, Error> {
        result.map_err(io::Error::from).doing(|| format!("{what} {}", self.path.display()))
    }
}

/// The text of an open interface file, from its start; reading arms a poll for its next change.
pub(super) fn read_whole(file: &OwnedFd) -> Result<String, Errno> {
    let mut text = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        match pread(file, &mut chunk[..], text.len() as u64) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&chunk[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(text).map_err(|_| Errno::ILSEQ)
}

/// A name right below `directory`, on its own mount, not through a link.
///
/// # References
/// [openat2(2)](https://man7.org/linux/man-pages/man2/openat2.2.html), Linux 5.6. Before, only
/// what is of another file system is told from the real one.
fn beneath(directory: &OwnedFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(directory, name, flags, Mode::empty(), resolve) {
        // A sandbox without the call answers EPERM.
        Err(Errno::NOSYS | Errno::PERM) => openat(directory, name, flags, Mode::empty()),
        other => other,
    }
}

fn is_cgroup2(descriptor: &OwnedFd) -> Result<bool, Errno> {
    Ok(fstatfs(descriptor)?.f_type == CGROUP2)
}

pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
