//! The alert's metric: what the scrape configuration asks the broker's own plugin for must yield
//! the names and labels that the rules use.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::broker::Broker;
use crate::worker::{Site, until};

const RULES: &str = include_str!("../../docs/alerts/tickmark.rules.yml");
const SCRAPE: &str = include_str!("../../docs/alerts/scrape.yml");

pub(crate) fn named_as_exported() {
    let broker = Broker::shared();
    let site = Site::new();
    let worker = site.start(&broker.uri(), &[]);
    until(Duration::from_secs(30), "healthy at first", || site.healthy());

    let [first, second] = &site.queues;
    let path = format!("{}?family={}", setting("metrics_path:"), setting("family:"));
    let exported = get(broker.metrics_port(), &path);
    let metric = "rabbitmq_detailed_queue_consumers";
    assert!(RULES.contains(metric) && exported.contains(metric), "{path}: {exported}");
    for name in RULES.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        assert!(!name.starts_with("rabbitmq_") || name == metric, "{name} is not checked");
    }
    let one = |queue: &str, consumers: u32| {
        let series = format!("{metric}{{vhost=\"/\",queue=\"{queue}\"}} {consumers}");
        get(broker.metrics_port(), &path).lines().any(|line| line == series)
    };
    // The broker counts once in its collection interval.
    until(Duration::from_secs(20), "one consumer each", || one(first, 1) && one(second, 1));
    drop(worker);
    until(Duration::from_secs(20), "no consumer", || one(first, 0) && one(second, 0));
    broker.delete_queue(second);
    until(Duration::from_secs(20), "a series that vanishes", || {
        let exported = get(broker.metrics_port(), &path);
        let has = |queue: &str| exported.contains(&format!("queue=\"{queue}\""));
        has(first) && !has(second)
    });
}

/// The value after `key` in the scrape configuration, a list of one item or not.
fn setting(key: &str) -> &'static str {
    let line = SCRAPE.lines().find(|line| line.trim_start().starts_with(key)).unwrap();
    line.split_once(key).unwrap().1.trim().trim_matches(['[', ']'])
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    answer
}
