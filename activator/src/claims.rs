//! Which rows claim one path. Compared is the directory that a path really is in: links and `..` give
//! one place many spellings.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::layout::{CONTROL, generation_at};
use crate::route::Route;

/// For each row, why it is in conflict with another, or with the socket for commands: both claim one
/// path, or one's path is where the other's generations go.
#[must_use]
pub fn conflicts<'r>(routes: &[&'r Route], commands: &Path) -> Vec<(&'r Route, String)> {
    let sockets = routes.iter().filter_map(|&route| Some((route, route.socket.as_deref()?)));
    let claims: Vec<Claim<'_>> = sockets
        .map(|(route, path)| Claim::of(path, format!("the socket of host {}", route.host)))
        // It is bound as a numbered sibling first, as a generation's is.
        .chain([Claim::of(commands, "the socket for commands".to_owned())])
        .collect();
    let rows = routes.iter().filter(|route| route.socket.is_some());
    rows.enumerate()
        .filter_map(|(at, &route)| {
            let mut others = claims.iter().enumerate().filter(|(other, _)| *other != at);
            let reason = others.find_map(|(_, other)| claims[at].against(other))?;
            Some((route, format!("{reason}: give each a socket of its own")))
        })
        .collect()
}

struct Claim<'p> {
    /// As it is configured.
    path: &'p Path,
    /// By the directory that it really is in.
    place: PathBuf,
    whose: String,
}

impl Claim<'_> {
    fn of(path: &Path, whose: String) -> Claim<'_> {
        Claim { path, place: place(path), whose }
    }

    fn against(&self, other: &Claim<'_>) -> Option<String> {
        let (mine, theirs) = (self.path.display(), other.path.display());
        if self.place == other.place {
            return Some(match self.path == other.path {
                true => format!("{mine} is {} too", other.whose),
                false => format!("{mine} is {} too, as {theirs}", other.whose),
            });
        }
        let meet = overlaps(&other.place, &self.place) || overlaps(&self.place, &other.place);
        meet.then(|| {
            format!("{mine} and {theirs}, {}, would share a generation's path", other.whose)
        })
    }
}

/// `path` by its real directory, as far as that exists. Its last component stays: it is the link.
fn place(path: &Path) -> PathBuf {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    let real = directory.ancestors().find_map(|existing| {
        let rest = directory.strip_prefix(existing).ok()?;
        Some(fs::canonicalize(existing).ok()?.join(rest))
    });
    real.unwrap_or_else(|| directory.to_owned()).join(name)
}

/// Whether `path` can be a generation's socket, or its control socket, of a row at `canonical`.
fn overlaps(canonical: &Path, path: &Path) -> bool {
    let bare = path.as_os_str().as_bytes();
    let bare = bare.strip_suffix(CONTROL.as_bytes()).unwrap_or(bare);
    generation_at(canonical, None, Path::new(std::ffi::OsStr::from_bytes(bare))).is_some()
        || bare == canonical.as_os_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::HostName;

    fn row(host: &str, socket: impl Into<PathBuf>) -> Route {
        Route { socket: Some(socket.into()), ..Route::new(HostName::new(host).unwrap()) }
    }

    fn in_conflict(rows: &[Route], commands: &Path) -> Vec<(String, String)> {
        let found = conflicts(&rows.iter().collect::<Vec<_>>(), commands);
        found.into_iter().map(|(row, why)| (row.host.to_string(), why)).collect()
    }

    #[test]
    fn rows_that_claim_one_path_are_in_conflict_and_both_say_so() {
        let rows = [
            row("one", "/run/a.sock"),
            Route::new(HostName::new("none").unwrap()),
            row("two", "/run/a.sock"),
            row("three", "/run/b.sock"),
            row("four", "/run/b.sock.12.control"),
            row("five", "/run/b.sock.x"),
        ];
        let found = in_conflict(&rows, Path::new("/run/activator.sock"));
        let named: Vec<_> = found.iter().map(|(host, _)| host.as_str()).collect();
        assert_eq!(named, ["one", "two", "three", "four"]);
        assert!(found[0].1.starts_with("/run/a.sock is the socket of host two too: give each"));
        assert!(found[2].1.contains("host four, would share a generation's path"), "{found:?}");
    }

    #[test]
    fn one_path_by_two_spellings_is_one_path() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("run");
        fs::create_dir(&real).unwrap();
        let also = directory.path().join("var-run");
        std::os::unix::fs::symlink("run", &also).unwrap();
        let commands = directory.path().join("activator.sock");
        for (one, two) in [
            (real.join("a.sock"), also.join("a.sock")),
            (real.join("a.sock"), real.join("../var-run/./a.sock")),
            (real.join("a.sock"), also.join("a.sock.7")),
            (real.join("a.sock"), also.join("a.sock.7.control")),
            // Not there yet.
            (real.join("later/a.sock"), also.join("later/a.sock")),
        ] {
            let found = in_conflict(&[row("one", &one), row("two", &two)], &commands);
            assert_eq!(found.len(), 2, "{one:?} and {two:?}: {found:?}");
            let said = |path: &Path, why: &str| why.contains(path.to_str().unwrap());
            assert!(said(&one, &found[0].1) && said(&two, &found[0].1), "names both: {found:?}");
        }
        // What the canonical path itself leads to is its generation, and no place of its own.
        std::os::unix::fs::symlink("b.sock", real.join("a.sock")).unwrap();
        let apart = [row("one", real.join("a.sock")), row("two", also.join("b.sock"))];
        assert_eq!(in_conflict(&apart, &commands), []);
    }

    #[test]
    fn a_row_at_the_socket_for_commands_is_in_conflict() {
        let directory = tempfile::tempdir().unwrap();
        let also = directory.path().join("also");
        std::os::unix::fs::symlink(".", &also).unwrap();
        let commands = directory.path().join("activator.sock");
        for socket in ["activator.sock", "activator.sock.4711", "activator.sock.4711.control"] {
            for path in [directory.path().join(socket), also.join(socket)] {
                let found = in_conflict(&[row("one", &path)], &commands);
                assert_eq!(found.len(), 1, "{path:?}");
                assert!(found[0].1.contains("the socket for commands"), "{found:?}");
            }
        }
        // Or it is where a generation goes.
        let found = in_conflict(&[row("one", directory.path().join("s"))], &also.join("s.3"));
        assert_eq!(found.len(), 1);
        let found = in_conflict(&[row("one", directory.path().join("s"))], &commands);
        assert_eq!(found, []);
    }
}
