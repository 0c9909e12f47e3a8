//! One host from its first build to its stop.

use std::future::Future;
use std::pin::Pin;

use tickmark_activator::swap::Outcome;

use crate::client::ask;
use crate::site::{Site, alive, host, swap};

pub(crate) type Case = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

pub(crate) const ALL: &[Case] =
    &[("a_build_starts_is_replaced_drains_and_stops", || Box::pin(starts_is_replaced_and_stops()))];

async fn starts_is_replaced_and_stops() {
    let site = Site::new();
    site.stage("1", "");
    site.stage("2", "");
    let activator = site.open().await;
    let first = swap(&activator, "1").await;
    assert_eq!(first.outcome.exit(), 0, "{first:?}");
    let answered = ask(&site.socket(), 7).unwrap();
    assert_eq!((answered.generation, &*answered.build), (1, "1"));

    let second = swap(&activator, "2").await;
    assert_eq!(second.outcome.exit(), 0, "{second:?}");
    assert_eq!(second.build.unwrap().as_str(), "2");
    let answered = ask(&site.socket(), 8).unwrap();
    assert_eq!((answered.generation, &*answered.build), (2, "2"));
    assert_eq!(alive(&site).len(), 1, "the first is gone");

    let status = activator.status(&host()).await.unwrap();
    assert_eq!(status.serves.unwrap().get(), 2);
    assert_eq!(status.generations.len(), 1);

    let stopped = activator.stop(&host()).await.unwrap();
    assert_eq!(stopped.outcome, Outcome::Stopped);
    assert!(alive(&site).is_empty());
    assert!(ask(&site.socket(), 9).is_err());
    let left: Vec<_> =
        std::fs::read_dir(site.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no socket and no link is left: {left:?}");
    activator.close().await;
}
