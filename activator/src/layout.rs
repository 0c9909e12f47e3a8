//! Where a host's sockets lie, and whether it has a path of its own for each generation. Decided
//! from the row alone: nothing here looks at a file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind};
use crate::name::GenerationNumber;
use crate::route::Route;

/// The longest path of a Unix socket in bytes: `sun_path` holds 108 with the NUL (unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;

/// What is appended to a socket's path for its control socket.
pub(crate) const CONTROL: &str = ".control";

/// How a host's sockets lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Each generation has a numbered socket beside the canonical path, which links to one.
    Flat,
    /// Each generation has a numbered socket in the run directory that root lays out.
    Nested,
    /// The canonical socket is bound as it is: one generation at a time.
    Foreign,
    /// No launch and no kill; why.
    Fenced(String),
    /// Two rows claim one path: no launch and no kill; why.
    Conflict(String),
}

impl Layout {
    /// Why starts and kills are refused, where they are.
    ///
    /// # Errors
    /// Names the host, what is refused and the reason.
    pub fn permits(&self, route: &Route, what: &str) -> Result<(), Error> {
        match self {
            Layout::Fenced(reason) | Layout::Conflict(reason) => Err(Error::new(
                Kind::Layout,
                format!("{}: refusing to {what}: {reason}", route.host),
            )),
            Layout::Flat | Layout::Nested | Layout::Foreign => Ok(()),
        }
    }
}

/// The sockets of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets {
    /// What the generation binds.
    pub socket: PathBuf,
    /// `socket` and `.control`.
    pub control: PathBuf,
}

impl Sockets {
    /// `socket` with its control socket.
    #[must_use]
    pub fn at(socket: PathBuf) -> Sockets {
        let control = suffixed(&socket, CONTROL);
        Sockets { socket, control }
    }
}

/// The layout as the row has it. A row without a socket is flat: it has nothing to lay out.
#[must_use]
pub fn classify(route: &Route, fence: Option<&str>) -> Layout {
    if let Some(reason) = &route.conflict {
        return Layout::Conflict(reason.clone());
    }
    if let Some(reason) = fence {
        return Layout::Fenced(reason.to_owned());
    }
    if route.nested.is_some() {
        Layout::Nested
    } else if route.foreign {
        Layout::Foreign
    } else {
        Layout::Flat
    }
}

/// The layout as generations see it: a flat row whose longest generation or control path does not
/// fit a socket address reads foreign.
#[must_use]
pub fn for_generations(layout: Layout, route: &Route) -> Layout {
    match (&layout, &route.socket) {
        (Layout::Flat, Some(canonical)) if !fits(canonical) => Layout::Foreign,
        _ => layout,
    }
}

fn fits(canonical: &Path) -> bool {
    let longest = Sockets::at(flat_socket(canonical, GenerationNumber::LARGEST));
    longest.control.as_os_str().len() <= MAX_SOCKET_PATH
}

/// The sockets that generation `number` of `route` binds; `None` where the row has no generation
/// paths: foreign, fenced, in conflict, a unit's, or without a socket.
#[must_use]
pub fn sockets(layout: Layout, route: &Route, number: GenerationNumber) -> Option<Sockets> {
    if route.is_unit() {
        return None;
    }
    match (for_generations(layout, route), &route.socket, &route.nested) {
        (Layout::Flat, Some(canonical), _) => Some(Sockets::at(flat_socket(canonical, number))),
        (Layout::Nested, _, Some(directory)) => {
            Some(Sockets::at(directory.join(format!("{number}.sock"))))
        }
        _ => None,
    }
}

/// What a switch refuses for a row that has no generation sockets, with the conflict where that is
/// why.
#[must_use]
pub(crate) fn no_generation_path(route: &Route) -> Error {
    let why = match &route.conflict {
        Some(reason) => format!("refusing to switch: {reason}"),
        None => "this row's layout has no generation sockets".to_owned(),
    };
    Error::new(Kind::NoGenerationPath, format!("{}: {why}", route.host))
}

fn flat_socket(canonical: &Path, number: GenerationNumber) -> PathBuf {
    suffixed(canonical, &format!(".{number}"))
}

/// Which generation's socket `path` would be, of a row at `canonical`: beside that, or in the run
/// directory of a `nested` row. Whether it ever was this host's is not known here.
pub(crate) fn generation_at(
    canonical: &Path,
    nested: Option<&Path>,
    path: &Path,
) -> Option<GenerationNumber> {
    let directory = nested.or(canonical.parent())?;
    if path.parent() != Some(directory) {
        return None;
    }
    let name = path.file_name()?.as_bytes();
    let number = match nested {
        Some(_) => name.strip_suffix(b".sock")?,
        None => name.strip_prefix(canonical.file_name()?.as_bytes())?.strip_prefix(b".")?,
    };
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut text = OsString::from(path);
    text.push(suffix);
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::HostName;
    use crate::route::Backing;

    fn route(socket: &str) -> Route {
        Route { socket: Some(socket.into()), ..Route::new(HostName::new("orders").unwrap()) }
    }

    fn flat(route: &Route) -> Layout {
        for_generations(classify(route, None), route)
    }

    /// The kernel's own arithmetic: the longest control path that this layout allows is bound.
    #[test]
    fn the_longest_path_that_fits_is_flat_and_one_byte_more_reads_foreign() {
        // 107 less ".18446744073709551615" less ".control".
        let longest = MAX_SOCKET_PATH - 21 - 8;
        let directory = tempfile::tempdir().unwrap();
        let start = format!("{}/", directory.path().display());
        let fits = format!("{start}{}", "s".repeat(longest - start.len()));
        let over = format!("{fits}s");

        let fits = route(&fits);
        assert_eq!(flat(&fits), Layout::Flat);
        let sockets_of =
            |route: &Route| sockets(classify(route, None), route, GenerationNumber::LARGEST);
        let sockets_that_fit = sockets_of(&fits).unwrap();
        assert_eq!(sockets_that_fit.control.as_os_str().len(), 107);
        std::os::unix::net::UnixListener::bind(&sockets_that_fit.control).unwrap();

        let over = route(&over);
        assert_eq!(flat(&over), Layout::Foreign);
        assert_eq!(sockets_of(&over), None);
        // A small number would still fit: the row is sized for the largest.
        assert_eq!(sockets(Layout::Flat, &over, GenerationNumber::FIRST), None);
        // The socket alone would fit, its control path does not.
        let control = flat_socket(over.socket.as_ref().unwrap(), GenerationNumber::LARGEST);
        assert!(control.as_os_str().len() <= MAX_SOCKET_PATH);
        let unbound = Sockets::at(control).control;
        assert!(std::os::unix::net::UnixListener::bind(unbound).is_err());
    }

    #[test]
    fn fenced_and_conflict_refuse_start_and_kill_with_the_reason() {
        let route = route("/run/orders.sock");
        let conflict = Route { conflict: Some("moved to node 2".into()), ..route.clone() };
        for layout in [classify(&route, Some("moved to node 2")), classify(&conflict, None)] {
            let refused = layout.permits(&route, "spawn").unwrap_err();
            assert!(refused.is_layout());
            assert_eq!(refused.to_string(), "orders: refusing to spawn: moved to node 2");
            assert_eq!(sockets(layout, &route, GenerationNumber::FIRST), None);
        }
        assert!(classify(&route, None).permits(&route, "kill").is_ok());
    }

    #[test]
    fn gen_paths_gives_none_for_foreign_fenced_conflict_and_unit_rows() {
        let flat = route("/run/orders.sock");
        let number = GenerationNumber::new(7).unwrap();
        let paths = sockets(Layout::Flat, &flat, number).unwrap();
        assert_eq!(paths.socket, Path::new("/run/orders.sock.7"));
        assert_eq!(paths.control, Path::new("/run/orders.sock.7.control"));
        assert_eq!(sockets(Layout::Foreign, &flat, number), None);
        assert_eq!(sockets(Layout::Fenced(String::new()), &flat, number), None);
        assert_eq!(sockets(Layout::Conflict(String::new()), &flat, number), None);
        let unit = Route { backing: Backing::Unit("orders.service".into()), ..flat.clone() };
        assert_eq!(sockets(Layout::Flat, &unit, number), None);
        let nested = Route { nested: Some("/run/orders".into()), ..flat };
        let paths = sockets(classify(&nested, None), &nested, number).unwrap();
        assert_eq!(paths.control, Path::new("/run/orders/7.sock.control"));
    }

    #[test]
    fn a_row_in_conflict_has_no_generation_path_and_the_conflict_is_told() {
        let plain = route("/run/orders.sock");
        assert!(no_generation_path(&plain).to_string().contains("no generation sockets"));
        let conflict = Route { conflict: Some("host two has it".into()), ..plain };
        let error = no_generation_path(&conflict);
        assert!(error.is_no_generation_path());
        assert_eq!(error.to_string(), "orders: refusing to switch: host two has it");
    }
}
