//! A row whose generations have no sockets of their own: each binds the canonical path itself.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tickmark_activator::Activator;
use tickmark_activator::swap::Outcome;

use crate::basics::Case;
use crate::client::ask;
use crate::outside::Watched;
use crate::site::{Site, build, host, swap, within};

pub(crate) const ALL: &[Case] = &[
    ("a_foreign_row_serves_cold_pinned_and_hold_starts_and_clears_a_leftover_link", || {
        Box::pin(every_start())
    }),
    ("a_foreign_row_clears_nothing_but_a_leftover_link", || Box::pin(nothing_else())),
    ("a_foreign_row_proves_the_old_gone_before_it_starts_the_new", || Box::pin(never_two())),
    ("a_pinned_wake_widens_the_mode_of_its_socket_once_it_is_ready", || Box::pin(widened())),
];

/// Notes what is at its socket's path, and then serves with a socket for its user alone.
fn stage(site: &Site, name: &str) {
    let script = format!(
        "#!/bin/sh\nstat -c %F \"$TICKMARK_SOCKET\" >{} 2>/dev/null\numask 177\nexec {} service $1\n",
        site.path().join("found").display(),
        std::env::current_exe().unwrap().display()
    );
    site.stage_script(name, &script);
}

/// What the last start found there.
fn found(site: &Site) -> String {
    std::fs::read_to_string(site.path().join("found")).unwrap().trim().to_owned()
}

fn foreign() -> Site {
    let mut site = Site::new();
    // One generation's control path would be one byte too long.
    site.long_socket = true;
    stage(&site, "1");
    stage(&site, "2");
    site
}

#[derive(Debug, Clone, Copy)]
enum By {
    Swap,
    Wake,
    Hold,
}

/// The host sleeps, and `left` is at its path; it starts, and serves `expected`.
async fn starts(site: &Site, activator: &Activator, by: By, left: &Path, expected: &str) {
    assert_eq!(activator.stop(&host()).await.unwrap().outcome, Outcome::Stopped);
    let socket = site.socket();
    let _none = std::fs::remove_file(&socket);
    symlink(left, &socket).unwrap();
    let answer = match by {
        By::Swap => activator.swap(&host(), build(expected), within(20)).await,
        By::Wake => activator.wake(&host(), within(20)).await,
        By::Hold => activator.hold(&host(), build(expected), within(20)).await,
    };
    let answer = answer.unwrap();
    assert_eq!(answer.outcome.exit(), 0, "{by:?}: {answer:?}");
    let answered = ask(&socket, 1).unwrap();
    assert_eq!(answered.build, expected, "{by:?}");
    assert_eq!(Some(answered.generation), answer.outcome.serves().map(|number| number.get()));
    assert!(!socket.is_symlink());
}

async fn every_start() {
    let site = foreign();
    let activator = site.open().await;
    let status = activator.status(&host()).await.unwrap();
    assert_eq!(status.layout, "foreign");
    let name = site.socket().file_name().unwrap().to_str().unwrap().to_owned();
    let leftover = format!("{name}.7");
    let starts = async |by, expected| {
        starts(&site, &activator, by, Path::new(&leftover), expected).await;
        assert_eq!(found(&site), "", "{by:?} found the link");
    };
    starts(By::Swap, "1").await;
    // Cold, from the live link.
    starts(By::Wake, "1").await;
    starts(By::Hold, "2").await;
    // Pinned.
    site.point_live_at("1");
    starts(By::Wake, "2").await;
    activator.stop(&host()).await.unwrap();
}

async fn nothing_else() {
    let site = foreign();
    let activator = site.open().await;
    // The service clears its own path, whatever is there.
    starts(&site, &activator, By::Swap, Path::new("an-administrators"), "1").await;
    assert_eq!(found(&site), "symbolic link");
    activator.stop(&host()).await.unwrap();
    let socket = site.socket();
    let _none = std::fs::remove_file(&socket);
    std::fs::write(&socket, "").unwrap();
    assert_eq!(activator.wake(&host(), within(20)).await.unwrap().outcome.exit(), 0);
    assert_eq!(found(&site), "regular empty file");
    activator.stop(&host()).await.unwrap();
    let _none = std::fs::remove_file(&socket);
    drop(UnixListener::bind(&socket).unwrap());
    assert_eq!(activator.wake(&host(), within(20)).await.unwrap().outcome.exit(), 0);
    assert_eq!(found(&site), "socket");
    activator.stop(&host()).await.unwrap();
}

async fn never_two() {
    let site = foreign();
    let said = Arc::new(Mutex::new(Vec::new()));
    let watched = Arc::clone(&said);
    let activator = site.open_wrapped(move |inner| Watched::around(inner, &watched, |_| {})).await;
    for name in ["1", "2", "1"] {
        assert_eq!(swap(&activator, name).await.outcome.exit(), 0);
    }
    activator.restart(&host(), within(20)).await.unwrap();
    let said = said.lock().unwrap().clone();
    let at = |what: String| said.iter().position(|said| *said == what).expect("it was said");
    for number in 2..=4 {
        let gone = at(format!("ended generation-{}-0", number - 1));
        assert!(gone < at(format!("start {number}")), "{said:?}");
    }
    activator.stop(&host()).await.unwrap();
}

fn mode(socket: &Path) -> u32 {
    std::fs::metadata(socket).unwrap().permissions().mode() & 0o777
}

/// Of a foreign row nothing is switched, so that only this widens it; a flat row's is wide before
/// its path is repointed.
async fn widened() {
    let site = foreign();
    let activator = site.open().await;
    assert_eq!(activator.hold(&host(), build("1"), within(20)).await.unwrap().outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    assert_eq!(activator.wake(&host(), within(20)).await.unwrap().build, Some(build("1")));
    assert_eq!(mode(&site.socket()), 0o660);
    activator.stop(&host()).await.unwrap();

    let site = Site::new();
    stage(&site, "1");
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (modes, said, path) = (Arc::clone(&seen), Arc::default(), site.path().to_owned());
    let activator = site
        .open_wrapped(move |inner| {
            Watched::around(inner, &said, move |at| {
                if ["ready", "switch"].contains(&at) {
                    let sockets = [1, 2].map(|number| path.join(format!("s.{number}")));
                    let there = sockets.iter().filter(|socket| socket.exists());
                    modes.lock().unwrap().extend(there.map(|socket| mode(socket)));
                }
            })
        })
        .await;
    assert_eq!(activator.hold(&host(), build("1"), within(20)).await.unwrap().outcome.exit(), 0);
    activator.stop(&host()).await.unwrap();
    seen.lock().unwrap().clear();
    assert_eq!(activator.wake(&host(), within(20)).await.unwrap().build, Some(build("1")));
    assert_eq!(*seen.lock().unwrap(), [0o600, 0o660], "before it is ready, and after");
    activator.stop(&host()).await.unwrap();
}
