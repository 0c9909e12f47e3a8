//! A real Prometheus that scrapes one worker and evaluates the rules, on a loopback address of its own.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::worker::{fresh_address, get, until};

/// Why there is none.
pub(crate) fn missing() -> Option<String> {
    ["prometheus", "promtool"]
        .into_iter()
        .find(|program| on_path(program).is_none())
        .map(|program| format!("{program} is not installed (Debian: prometheus)"))
}

fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Stopped when this goes.
pub(crate) struct Prometheus {
    process: Child,
    address: SocketAddr,
    _data: TempDir,
}

impl Prometheus {
    /// Scrapes `target` once a second, as the job that the rules name.
    pub(crate) fn start(target: SocketAddr, rules: &[PathBuf]) -> Prometheus {
        let data = tempfile::tempdir().expect("a directory for Prometheus");
        let rules: Vec<&Path> = rules.iter().map(PathBuf::as_path).collect();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: {rules:?}\n\
             scrape_configs:\n\
             - job_name: orders-worker\n\
             \x20 static_configs: [{{targets: ['{target}']}}]\n"
        );
        let file = data.path().join("prometheus.yml");
        fs::write(&file, config).expect("its configuration");
        let address = fresh_address();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .spawn()
            .expect("prometheus");
        let prometheus = Prometheus { process, address, _data: data };
        until("Prometheus is ready", || {
            get(address, "/-/ready", Duration::from_secs(5)).is_ok_and(|(status, ..)| status == 200)
        });
        prometheus
    }

    /// What a path of its API answers.
    pub(crate) fn api(&self, path: &str) -> Value {
        let (status, _, body) =
            get(self.address, path, Duration::from_secs(10)).expect("an answer");
        let answer: Value = serde_json::from_str(unchunked(&body).as_str())
            .unwrap_or_else(|error| panic!("{path}: {status} {error}: {body}"));
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The series that `query` finds now.
    pub(crate) fn query(&self, query: &str) -> Vec<Value> {
        let answer = self.api(&format!("/api/v1/query?query={}", encoded(query)));
        answer["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _dead = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Every byte but letters and digits as `%XX`.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

/// A body that may be in chunks: longer ones of Prometheus are.
fn unchunked(body: &str) -> String {
    if body.starts_with('{') {
        return body.to_owned();
    }
    let mut whole = String::new();
    let mut rest = body;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        whole.push_str(after.get(..size).unwrap_or_default());
        rest = after.get(size + 2..).unwrap_or_default();
    }
    whole
}
