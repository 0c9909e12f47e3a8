//! The canonical path and the sockets beside it: the link that names the generation that serves,
//! and what an earlier process left. Nothing that still listens, and no file that is not a socket,
//! is ever removed.
//!
//! Whoever calls the functions that create, repoint or remove the link holds the host's one lock.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, chmod, statat, symlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::error::{Doing as _, Error, Kind};
use crate::layout::generation_at;
use crate::name::GenerationNumber;

/// What is at a path where a socket belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Link,
    Stale,
    Listening,
    Other,
}

fn look(path: &Path) -> Result<Found, Error> {
    let stat = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(errno) => return Err(errno).doing(|| format!("look at {}", path.display())),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket if refuses(path)? => Found::Stale,
        FileType::Socket => Found::Listening,
        FileType::Symlink => Found::Link,
        _ => Found::Other,
    })
}

/// Whether nothing listens on the socket at `path`: connect(2) gives `ECONNREFUSED`. A full
/// backlog (`EAGAIN`) or a mode that shuts us out is a listener for all we know.
fn refuses(path: &Path) -> Result<bool, Error> {
    match try_connect(path) {
        Ok(()) => Ok(false),
        Err(Errno::CONNREFUSED) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS | Errno::PROTOTYPE) => Ok(false),
        Err(errno) => Err(errno).doing(|| format!("connect to {}", path.display())),
    }
}

/// Whether a stream socket accepts at `path`: connect(2) succeeds once listen(2) was called.
///
/// # Errors
/// Names the path, where the answer is neither yes nor no.
pub fn accepts(path: &Path) -> Result<bool, Error> {
    match try_connect(path) {
        // A full backlog is that of one that accepts.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
        Err(errno) => Err(errno).doing(|| format!("connect to {}", path.display())),
    }
}

fn try_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Clears what an earlier process left at a socket path that is this generation's own.
///
/// # Errors
/// A live listener, or anything that is no socket: it stays.
pub fn clear_own_socket(path: &Path) -> Result<(), Error> {
    let what = match look(path)? {
        Found::Nothing => return Ok(()),
        Found::Stale => {
            return fs::remove_file(path)
                .doing(|| format!("remove the stale socket {}", path.display()));
        }
        Found::Listening => "something listens",
        Found::Link | Found::Other => "there is a file that is no socket",
    };
    Err(Error::new(
        Kind::Occupied,
        format!("{what} at {}, where a generation's own socket belongs: remove it", path.display()),
    ))
}

/// Clears a link to a generation that was left at the canonical path of a row which now binds the
/// path itself: it would fail the bind. Everything else stays, and so does a link behind which
/// something accepts.
///
/// # Errors
/// Names the path.
pub fn clear_leftover_link(canonical: &Path) -> Result<(), Error> {
    remove_leftover(canonical, None, GenerationNumber::LARGEST)
}

/// Removes the link of a generation that is long gone: its number is below `next`, so that it can
/// have been this host's, and nothing accepts at what it names. Everything else stays.
///
/// # Errors
/// Names the path.
pub fn remove_leftover(
    canonical: &Path,
    nested: Option<&Path>,
    next: GenerationNumber,
) -> Result<(), Error> {
    let Some(named) = named(canonical)? else { return Ok(()) };
    match generation_at(canonical, nested, &named) {
        Some(number) if number < next && !accepts(&named)? => remove(canonical),
        _ => Ok(()),
    }
}

/// What the link at `canonical` holds; `None` where there is no link.
///
/// # Errors
/// Names the path.
pub fn target(canonical: &Path) -> Result<Option<PathBuf>, Error> {
    match fs::read_link(canonical) {
        Ok(target) => Ok(Some(target)),
        // EINVAL: no link.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
            Ok(None)
        }
        Err(error) => Err(error).doing(|| format!("read the link {}", canonical.display())),
    }
}

/// Whether the link at `canonical` names `socket`.
///
/// # Errors
/// Names the path.
pub fn names(canonical: &Path, socket: &Path) -> Result<bool, Error> {
    Ok(named(canonical)?.is_some_and(|named| named == socket))
}

/// What the link at `canonical` leads to, absolute; `None` where there is no link.
fn named(canonical: &Path) -> Result<Option<PathBuf>, Error> {
    let directory = canonical.parent().unwrap_or_else(|| Path::new("/"));
    Ok(target(canonical)?.map(|target| directory.join(target)))
}

/// Refuses where the canonical path leads to another activator's generation: its number is none of
/// `ours`, and something accepts there.
///
/// # Errors
/// Names both paths.
pub fn check_ours(
    canonical: &Path,
    nested: Option<&Path>,
    ours: impl Fn(GenerationNumber) -> bool,
) -> Result<(), Error> {
    let Some(named) = named(canonical)? else { return Ok(()) };
    match generation_at(canonical, nested, &named) {
        Some(number) if !ours(number) && accepts(&named)? => Err(Error::new(
            Kind::Occupied,
            format!(
                "{} leads to {}, which accepts and is none of this host's generations: does \
                 another activator serve there? Stop it, or give this host another socket",
                canonical.display(),
                named.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Points the canonical path at `socket` atomically: a connecting client finds the old generation
/// or the new one. A stale socket in its place is replaced, and of links one that names a
/// generation's socket: beside the path, or in the run directory of a `nested` row.
///
/// # Errors
/// A live listener, another link or another file at the canonical path, which stays; or what
/// symlink(2) and rename(2) give.
pub fn repoint(canonical: &Path, nested: Option<&Path>, socket: &Path) -> Result<(), Error> {
    match look(canonical)? {
        Found::Nothing | Found::Stale => {}
        Found::Link => match named(canonical)? {
            Some(named) if named == socket => return Ok(()),
            Some(named) if generation_at(canonical, nested, &named).is_none() => {
                return Err(Error::new(
                    Kind::Occupied,
                    format!(
                        "{} is a link to {}, which is no generation's socket: remove it, or give \
                         the host another socket",
                        canonical.display(),
                        named.display()
                    ),
                ));
            }
            _ => {}
        },
        Found::Listening | Found::Other => {
            return Err(Error::new(
                Kind::Occupied,
                format!(
                    "{} is neither absent nor a link to a generation: stop what listens there, or remove it",
                    canonical.display()
                ),
            ));
        }
    }
    // Relative where it can be: a directory that is mounted elsewhere keeps its links.
    let target = match (socket.parent() == canonical.parent(), socket.file_name()) {
        (true, Some(name)) => Path::new(name),
        _ => socket,
    };
    let mut name = std::ffi::OsString::from(".");
    name.push(canonical.file_name().unwrap_or_default());
    name.push(".new");
    let fresh = canonical.with_file_name(name);
    match fs::remove_file(&fresh) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).doing(|| format!("remove {}", fresh.display())),
    }
    symlinkat(target, CWD, &fresh).doing(|| format!("make the link {}", fresh.display()))?;
    fs::rename(&fresh, canonical).map_err(|error| {
        let _left = fs::remove_file(&fresh);
        Error::because(
            Kind::Io,
            format!("cannot point {} at {}", canonical.display(), socket.display()),
            error,
        )
    })
}

/// Removes the link only where it names `socket`; says whether it did.
///
/// # Errors
/// Names the path.
pub fn remove_if_names(canonical: &Path, socket: &Path) -> Result<bool, Error> {
    if !names(canonical, socket)? {
        return Ok(false);
    }
    remove(canonical)?;
    Ok(true)
}

fn remove(link: &Path) -> Result<(), Error> {
    fs::remove_file(link).doing(|| format!("remove the link {}", link.display()))
}

/// Widens a socket's mode to 0660: its group may connect.
///
/// # Errors
/// Names the path.
pub fn widen(socket: &Path) -> Result<(), Error> {
    chmod(socket, Mode::from_raw_mode(0o660))
        .doing(|| format!("widen the mode of {} to 0660", socket.display()))
}

/// Whether a path can be a socket's address.
pub(crate) fn is_absolute_path(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_stale_socket_of_its_own_is_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.1");
        clear_own_socket(&path).unwrap();

        let listener = UnixListener::bind(&path).unwrap();
        assert!(clear_own_socket(&path).unwrap_err().is_occupied(), "a live listener");
        drop(listener);
        assert!(path.exists());
        clear_own_socket(&path).unwrap();
        assert!(!path.exists());

        fs::write(&path, "mine").unwrap();
        assert!(clear_own_socket(&path).unwrap_err().is_occupied(), "a regular file");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_link_is_repointed_and_a_stop_removes_only_the_link_that_names_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let canonical = directory.path().join("s");
        let [one, two] = ["s.1", "s.2"].map(|name| directory.path().join(name));
        repoint(&canonical, None, &one).unwrap();
        assert_eq!(fs::read_link(&canonical).unwrap(), Path::new("s.1"));
        repoint(&canonical, None, &two).unwrap();
        assert!(names(&canonical, &two).unwrap());
        assert!(!remove_if_names(&canonical, &one).unwrap());
        assert!(names(&canonical, &two).unwrap(), "another generation's link stays");
        assert!(remove_if_names(&canonical, &two).unwrap());
        assert_eq!(target(&canonical).unwrap(), None);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_listener_at_the_canonical_path_refuses_the_link() {
        let directory = tempfile::tempdir().unwrap();
        let canonical = directory.path().join("s");
        let listener = UnixListener::bind(&canonical).unwrap();
        let one = directory.path().join("s.1");
        assert!(repoint(&canonical, None, &one).unwrap_err().is_occupied());
        drop(listener);
        repoint(&canonical, None, &one).unwrap();
    }

    #[test]
    fn a_link_that_names_no_generations_socket_refuses_the_link_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let canonical = directory.path().join("s");
        let nested = directory.path().join("run");
        let one = directory.path().join("s.1");
        let other = directory.path().join("other/s.3");
        for foreign in [Path::new("other.sock"), Path::new("s.3.control"), &*other] {
            std::os::unix::fs::symlink(foreign, &canonical).unwrap();
            let refused = repoint(&canonical, None, &one).unwrap_err();
            assert!(refused.is_occupied());
            assert!(refused.to_string().contains("which is no generation's socket"), "{refused}");
            assert_eq!(fs::read_link(&canonical).unwrap(), foreign, "it stays");
            fs::remove_file(&canonical).unwrap();
        }
        // A nested row's are in its run directory, and beside the path there are none.
        let first = nested.join("1.sock");
        repoint(&canonical, Some(&nested), &first).unwrap();
        repoint(&canonical, Some(&nested), &nested.join("2.sock")).unwrap();
        assert!(names(&canonical, &nested.join("2.sock")).unwrap());
        assert!(repoint(&canonical, None, &one).unwrap_err().is_occupied());
        fs::remove_file(&canonical).unwrap();
        repoint(&canonical, None, &one).unwrap();
        assert!(repoint(&canonical, Some(&nested), &first).unwrap_err().is_occupied());
    }

    #[test]
    fn a_leftover_link_is_removed_only_where_it_can_be_ours_and_nothing_accepts() {
        let directory = tempfile::tempdir().unwrap();
        let canonical = directory.path().join("s");
        let next = |number| GenerationNumber::new(number).unwrap();
        let two = directory.path().join("s.2");
        repoint(&canonical, None, &two).unwrap();
        remove_leftover(&canonical, None, next(2)).unwrap();
        assert!(names(&canonical, &two).unwrap(), "a number that was never given here");
        let listener = UnixListener::bind(&two).unwrap();
        remove_leftover(&canonical, None, next(3)).unwrap();
        clear_leftover_link(&canonical).unwrap();
        assert!(names(&canonical, &two).unwrap(), "something accepts");
        drop(listener);
        remove_leftover(&canonical, None, next(3)).unwrap();
        assert_eq!(target(&canonical).unwrap(), None);
        // In another directory it is another's, whatever its name.
        std::os::unix::fs::symlink("elsewhere/s.2", &canonical).unwrap();
        remove_leftover(&canonical, None, next(3)).unwrap();
        assert_eq!(look(&canonical).unwrap(), Found::Link);
    }

    #[test]
    fn a_foreign_row_clears_only_a_leftover_link_to_a_generation() {
        let directory = tempfile::tempdir().unwrap();
        let canonical = directory.path().join("s");
        repoint(&canonical, None, &directory.path().join("s.9")).unwrap();
        clear_leftover_link(&canonical).unwrap();
        assert_eq!(look(&canonical).unwrap(), Found::Nothing);
        std::os::unix::fs::symlink("elsewhere", &canonical).unwrap();
        clear_leftover_link(&canonical).unwrap();
        assert_eq!(look(&canonical).unwrap(), Found::Link, "someone else's link");
        fs::remove_file(&canonical).unwrap();
        let _listener = UnixListener::bind(&canonical).unwrap();
        clear_leftover_link(&canonical).unwrap();
        assert_eq!(look(&canonical).unwrap(), Found::Listening);
    }

    #[test]
    fn a_socket_is_widened_to_0660() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        chmod(&path, Mode::from_raw_mode(0o600)).unwrap();
        widen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(accepts(&path).unwrap());
        assert!(!accepts(&directory.path().join("absent")).unwrap());
    }
}
