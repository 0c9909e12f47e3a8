//! Finding the delegated directory, and refusing one that others may write to.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::Delegation;
use super::directory::Directory;
#[cfg(feature = "systemd")]
use super::kill::Cgroup;
use crate::error::{Doing as _, Error, Kind};

/// The unit beside the daemon's own whose cgroup holds the hosts: it is not stopped with the
/// daemon. docs/ACTIVATOR.md has both.
const COMPANION: &str = "tickmark-hosts.service";

/// Our directory where nobody delegates: below the root of the hierarchy or of the namespace.
const OWN: &str = "tickmark";

const MOUNTS: &str = "/proc/self/mountinfo";

/// The setting `cgroup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// `"auto"`: the cgroup of the unit `tickmark-hosts.service` beside the activator's own, or
    /// `tickmark` below the root where no systemd runs.
    Auto,
    /// `"none"`: no containment.
    None,
    /// A delegated directory, made if only its parent is there.
    Path(PathBuf),
}

impl FromStr for Setting {
    type Err = Error;
    fn from_str(text: &str) -> Result<Setting, Error> {
        match text {
            "auto" => Ok(Setting::Auto),
            "none" => Ok(Setting::None),
            path if Path::new(path).is_absolute() => Ok(Setting::Path(path.into())),
            _ => Err(Error::new(
                Kind::Usage,
                format!("cgroup = {text:?}: use \"auto\", \"none\" or an absolute path"),
            )),
        }
    }
}

impl Delegation {
    /// The directory that `setting` names; `None` where there is none, and the log says why.
    ///
    /// # Errors
    /// A path that was given is no cgroup v2, cannot be written, or can be written by another
    /// user, whose processes would escape.
    pub fn find(setting: &Setting) -> Result<Option<Delegation>, Error> {
        match setting {
            Setting::None => Ok(None),
            Setting::Path(path) => Delegation::at(path).map(Some),
            Setting::Auto => {
                let found = candidate()
                    .and_then(|path| Delegation::at(&path).map_err(|error| error.to_string()));
                match found {
                    Ok(delegation) => Ok(Some(delegation)),
                    Err(why) => {
                        tracing::warn!(
                            "no delegated cgroup, so that a stop is proven by the leader's exit \
                             alone: {why}"
                        );
                        Ok(None)
                    }
                }
            }
        }
    }

    fn at(path: &Path) -> Result<Delegation, Error> {
        let refuse =
            |why: &str| Err(Error::new(Kind::Usage, format!("cgroup {}: {why}", path.display())));
        let directory = match Directory::open(path) {
            Err(Errno::NOENT) => make(path)?,
            other => other,
        };
        let directory = match directory {
            Ok(directory) => directory,
            Err(Errno::NOTSUP | Errno::NOTDIR) => return refuse("not a directory of cgroup v2"),
            Err(error) => {
                return Err(io::Error::from(error)).doing(|| format!("open {}", path.display()));
            }
        };
        for interface in ["cgroup.procs", "cgroup.subtree_control"] {
            if !directory.writable(interface) {
                return refuse(&format!("{interface} cannot be written: delegate it to this user"));
            }
        }
        let (owner, mode) =
            directory.doing(directory.permissions("cgroup.procs"), "look at cgroup.procs of")?;
        let ours = geteuid().as_raw();
        if owner != ours && owner != 0 {
            return refuse(&format!(
                "user {owner} may write its cgroup.procs and move processes out: delegate one to \
                 this user alone"
            ));
        }
        if mode & 0o022 != 0 {
            return refuse(&format!(
                "its cgroup.procs has mode {mode:o}, so that others may move processes out: \
                 chmod go-w"
            ));
        }
        if own().is_ok_and(|own| !own.is_root && path.starts_with(&own.directory)) {
            tracing::warn!(
                "cgroup {} is below this process's own: whoever stops this service stops the \
                 hosts with it",
                path.display()
            );
        }
        Ok(Delegation { directory: Arc::new(directory) })
    }
}

/// Makes the last component, below a cgroup v2.
fn make(path: &Path) -> Result<Result<Directory, Errno>, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Err(Errno::NOENT));
    };
    let parent = match Directory::open(parent) {
        Ok(parent) => parent,
        Err(error) => return Ok(Err(error)),
    };
    match parent.make(name) {
        Ok(()) | Err(Errno::EXIST) => Ok(Directory::open(path)),
        Err(error) => parent.doing(Err(error), &format!("make {} in", name.display())),
    }
}

/// Whether something lives in the cgroup of this path, as `/proc/<pid>/cgroup` and systemd name
/// it, or below; `None` where there is none.
///
/// # Errors
/// No cgroup v2 is mounted where it could be seen, or its `cgroup.events` cannot be read.
#[cfg(feature = "systemd")]
pub(crate) fn is_populated(path: &str) -> Result<Option<bool>, Error> {
    let mountinfo = fs::read_to_string(MOUNTS).doing(|| format!("read {MOUNTS}"))?;
    let found = own_directory(&format!("0::{path}"), &mountinfo).ok_or_else(|| {
        Error::new(Kind::Io, format!("no cgroup v2 is mounted that shows {path}"))
    })?;
    let (Some(parent), Some(name)) = (found.directory.parent(), found.directory.file_name()) else {
        return Ok(None);
    };
    match Directory::open(parent) {
        Ok(parent) => match Cgroup::open(&parent, name)? {
            Some(cgroup) => cgroup.directory.doing(cgroup.populated(), "read cgroup.events of"),
            None => Ok(None),
        },
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(io::Error::from(error)).doing(|| format!("open {}", parent.display())),
    }
}

fn own() -> Result<OwnCgroup, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    own_directory(&read("/proc/self/cgroup")?, &read(MOUNTS)?)
        .ok_or_else(|| "no cgroup v2 is mounted that this process is in".to_owned())
}

/// Where `auto` looks, or why nowhere.
fn candidate() -> Result<PathBuf, String> {
    let own = own()?;
    if let Some(above) = own.directory.parent().filter(|_| !own.is_root) {
        let companion = above.join(COMPANION);
        if companion.is_dir() {
            return Ok(companion);
        }
        return Err(format!(
            "this process is in {}, which is not its own to keep hosts in, and there is no {}: \
             install {COMPANION}, or set `cgroup` to a path",
            own.directory.display(),
            companion.display()
        ));
    }
    if Path::new("/run/systemd/system").is_dir() {
        return Err(format!("systemd owns {}: set `cgroup` to a path", own.directory.display()));
    }
    Ok(own.directory.join(OWN))
}

#[derive(Debug, PartialEq, Eq)]
struct OwnCgroup {
    directory: PathBuf,
    /// It is the root of the hierarchy, or of our cgroup namespace.
    is_root: bool,
}

/// # References
/// [cgroups(7)](https://man7.org/linux/man-pages/man7/cgroups.7.html),
/// [proc_pid_mountinfo(5)](https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html)
fn own_directory(cgroup: &str, mountinfo: &str) -> Option<OwnCgroup> {
    let own = Path::new(cgroup.lines().find_map(|line| line.strip_prefix("0::"))?);
    if own.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    mountinfo.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        if rest.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = fields.split(' ').skip(3);
        let root = fields.next()?;
        let point = fields.next()?;
        let below = own.strip_prefix(root).ok()?;
        // An escaped blank in a path: nobody mounts a cgroup there.
        let point = Some(point).filter(|point| !point.contains('\\'))?;
        let directory = Path::new(point).join(below);
        Some(OwnCgroup { directory, is_root: own == Path::new("/") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
    const HYBRID: &str = "\
27 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
28 27 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
38 27 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn the_own_directory_is_where_cgroup2_is_mounted() {
        let at =
            |directory: &str, is_root| Some(OwnCgroup { directory: directory.into(), is_root });
        let service = "0::/system.slice/tickmark-activator.service\n";
        let directory = "/sys/fs/cgroup/system.slice/tickmark-activator.service";
        assert_eq!(own_directory(service, UNIFIED), at(directory, false));
        assert_eq!(
            own_directory("4:memory:/a\n0::/\n", HYBRID),
            at("/sys/fs/cgroup/unified", true)
        );
        // A container's mount of its own part, without a namespace.
        let part = "30 1 0:26 /pod/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own_directory("0::/pod/a/b\n", part), at("/sys/fs/cgroup/b", false));
        assert_eq!(own_directory("0::/pod/b\n", part), None);
        assert_eq!(own_directory("0::/../b\n", UNIFIED), None);
        assert_eq!(own_directory("1:name=systemd:/\n", UNIFIED), None);
    }

    #[test]
    fn a_setting_is_auto_none_or_an_absolute_path() {
        assert_eq!("auto".parse::<Setting>().unwrap(), Setting::Auto);
        assert_eq!("none".parse::<Setting>().unwrap(), Setting::None);
        assert_eq!("/a".parse::<Setting>().unwrap(), Setting::Path("/a".into()));
        assert!("a/b".parse::<Setting>().unwrap_err().is_usage());
    }

    #[test]
    fn what_is_no_cgroup_v2_is_refused() {
        let other = tempfile::tempdir().unwrap();
        let missing = other.path().join("missing");
        for path in [other.path().to_owned(), missing] {
            let error = Delegation::find(&Setting::Path(path)).unwrap_err();
            assert!(error.is_usage(), "{error}");
        }
    }
}
