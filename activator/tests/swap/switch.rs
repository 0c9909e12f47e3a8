//! The switch by itself, on the real backend: what refuses it, what is only logged, and the order.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tickmark_activator::backend::Generations as _;
use tickmark_activator::{Gen, GenerationNumber, Route};

use crate::backend::{backend, row};
use crate::basics::Case;
use crate::site::{Site, host};

pub(crate) const ALL: &[Case] = &[
    ("a_failed_chmod_and_a_failed_purge_do_not_refuse_the_switch", || {
        Box::pin(async { only_logged() })
    }),
    ("the_new_socket_is_widened_before_the_path_is_repointed", || {
        Box::pin(async { widened_first() })
    }),
    ("a_row_without_generation_paths_has_its_own_error_from_the_switch", || {
        Box::pin(async { no_paths() })
    }),
];

/// The first generation, as it is once it was started.
fn first(site: &Site) -> Gen {
    let socket = site.path().join("s.1");
    let control = site.path().join("s.1.control");
    Gen { socket: Some(socket), control: Some(control), ..Gen::cold(GenerationNumber::FIRST) }
}

fn only_logged() {
    let site = Site::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let backend = backend(&site).purging(Arc::new(move |_, number| {
        assert_eq!(number, GenerationNumber::FIRST);
        count.fetch_add(1, Ordering::Relaxed);
        Err("the cache is away".into())
    }));
    // There is no socket whose mode could be changed.
    backend.gen_switched(&row(&site), &first(&site)).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(std::fs::read_link(site.socket()).unwrap(), Path::new("s.1"));
}

fn widened_first() {
    let site = Site::new();
    let backend = backend(&site);
    let generation = first(&site);
    let socket = generation.socket.as_ref().unwrap();
    let _listener = UnixListener::bind(socket).unwrap();
    let mode = || std::fs::metadata(socket).unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    // The link is refused, and the mode is wide by then.
    let in_the_way = UnixListener::bind(site.socket()).unwrap();
    assert!(backend.gen_switched(&row(&site), &generation).unwrap_err().is_occupied());
    assert_eq!(mode(), 0o660);
    drop(in_the_way);
    backend.gen_switched(&row(&site), &generation).unwrap();
}

fn no_paths() {
    let site = Site::new();
    let backend = backend(&site);
    let generation = first(&site);
    let foreign = Route { foreign: true, ..row(&site) };
    let conflict = Route { conflict: Some("host two has it".to_owned()), ..row(&site) };
    for (route, said) in [(foreign, "no generation sockets"), (conflict, "host two has it")] {
        let error = backend.gen_switched(&route, &generation).unwrap_err();
        assert!(error.is_no_generation_path(), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(!site.socket().is_symlink());
    }
    // A worker without a socket has nothing to switch.
    backend.gen_switched(&Route::new(host()), &generation).unwrap();
}
