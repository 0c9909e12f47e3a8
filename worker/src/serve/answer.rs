//! From what is asked to the bytes of the answer. Reads the marks directory each time and calls the one
//! verdict; keeps nothing but its buffers. What is not certain is red.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use tickmark_protocol::{Encoding, Generation, Relation, Sink};

use super::metrics::Metrics;
use super::request::{Asked, Page, Refusal};
use crate::clock::Clocks;
use crate::environment::Environment;
use crate::log::panic_message;
use crate::observe::{self, Seen};
use crate::procfs::Evidence;
use crate::report::{self, Form};
use crate::settings::Settings;

/// What is said where this process knew its container and now cannot read which one it is.
const EVIDENCE_LOST: &str = "container evidence lost: this process knew its container when it started, and can no longer tell its marks from those of a previous one";

/// Judges the marks directory that the environment names, as the probe in this container would.
pub(super) struct Judge {
    environment: Environment,
    own: Own,
    clocks: Clocks,
    body: Vec<u8>,
    metrics: Metrics,
}

/// What this process could read about its container at start, and how it writes its records. It judges
/// by what it reads at each request; but who knew something at start and now knows nothing must not
/// fall back to freshness alone, as a probe would that never did.
pub(crate) struct Own {
    pub(crate) evidence: Generation,
    pub(crate) encoding: Encoding,
}

impl Own {
    /// Whether what a comparison needs cannot be read any more.
    fn is_lost(&self, settings: &Settings<'_>) -> bool {
        let mut dispose = drop;
        let mut now = Evidence::new(settings.launch, &mut dispose);
        now.read_for(Some(&self.evidence), self.encoding);
        match self.encoding {
            Encoding::Binary => {
                let relation = now.held().relation(&self.evidence);
                self.evidence.identifies() && relation == Relation::Incomparable
            }
            Encoding::Text => self.evidence.formula().is_some() && now.held().formula().is_none(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Status(&'static str);

impl Status {
    const OK: Status = Status("200 OK");
    const UNAVAILABLE: Status = Status("503 Service Unavailable");

    fn of(healthy: bool) -> Status {
        if healthy { Status::OK } else { Status::UNAVAILABLE }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Source: OpenMetrics 1.0, "Protocol Negotiation".
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Judge {
    pub(super) fn new(environment: Environment, own: Own) -> Judge {
        Judge {
            environment,
            own,
            clocks: Clocks::SYSTEM,
            body: Vec::new(),
            metrics: Metrics::default(),
        }
    }

    /// Writes the whole answer to `out`, which is empty. `busy`: no page that may be large.
    pub(super) fn answer(&mut self, asked: Asked, busy: bool, out: &mut Vec<u8>) {
        let (page, head_only) = match asked {
            Asked::Page { page, .. } if busy && page != Page::Livez => {
                return plain(
                    out,
                    Status::UNAVAILABLE,
                    "Retry-After: 1\r\n",
                    "too many large answers are not taken yet",
                );
            }
            Asked::Page { page, head_only } => (page, head_only),
            Asked::Nothing(refusal) => return refuse(refusal, out),
        };
        self.body.clear();
        // Unwind safe: the buffers are cleared before they are used again.
        let (status, kind) = match catch_unwind(AssertUnwindSafe(|| self.page(page))) {
            Ok(answered) => answered,
            Err(payload) => {
                self.body.clear();
                let reason = panic_message(&*payload);
                let _infallible = writeln!(self.body, "the verdict failed: {}", OneLine(reason));
                (Status::UNAVAILABLE, TEXT)
            }
        };
        head(out, status, kind, "", self.body.len());
        if !head_only {
            out.extend_from_slice(&self.body);
        }
        self.body.shrink_to(super::connection::LARGE);
    }

    fn page(&mut self, page: Page) -> (Status, &'static str) {
        let Judge { environment, own, clocks, body, metrics } = self;
        let settings = environment.shared();
        let mut out = Bytes(body);
        let mut answer = |form| {
            let healthy =
                report::answer(form, &settings, *clocks, &mut drop, &mut out).is_healthy();
            let lost = healthy && own.is_lost(&settings);
            if lost {
                out.0.clear();
            }
            (healthy && !lost, lost)
        };
        match page {
            Page::Livez => {
                let (healthy, lost) = answer(Form::Line);
                if lost {
                    let _infallible = writeln!(body, "{EVIDENCE_LOST}");
                }
                (Status::of(healthy), TEXT)
            }
            Page::Explain => {
                let (healthy, lost) = answer(Form::Json);
                if lost {
                    let version = env!("CARGO_PKG_VERSION");
                    let _infallible = writeln!(
                        body,
                        r#"{{"version":"{version}","healthy":false,"verdict":"{EVIDENCE_LOST}"}}"#
                    );
                }
                (Status::of(healthy), JSON)
            }
            Page::Metrics => {
                metrics.begin();
                let mut dispose = drop;
                let mut evidence = Evidence::new(settings.launch, &mut dispose);
                let see = &mut |seen: Seen<'_>| metrics.see(&seen);
                let healthy =
                    observe::judge_with(&settings, &mut evidence, *clocks, see).is_healthy();
                metrics.write(&settings, healthy && !own.is_lost(&settings), body);
                (Status::OK, OPENMETRICS)
            }
        }
    }
}

fn refuse(refusal: Refusal, out: &mut Vec<u8>) {
    let (status, headers, reason) = match refusal {
        Refusal::NotHttp => ("400 Bad Request", "", "not an HTTP/1.1 request"),
        Refusal::NoSuchPath => {
            ("404 Not Found", "", "there are /livez, /explain and /metrics, and nothing else")
        }
        Refusal::OtherMethod => {
            ("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD")
        }
        Refusal::TooLong => (
            "431 Request Header Fields Too Large",
            "",
            "the request is longer than 8 KiB, or has more than 64 headers",
        ),
    };
    plain(out, Status(status), headers, reason);
}

fn plain(out: &mut Vec<u8>, status: Status, headers: &str, line: &str) {
    head(out, status, TEXT, headers, line.len() + 1);
    out.extend_from_slice(line.as_bytes());
    out.push(b'\n');
}

/// `headers` are whole lines.
fn head(out: &mut Vec<u8>, Status(status): Status, kind: &str, headers: &str, length: usize) {
    let _infallible = write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n{headers}\r\n"
    );
}

/// A buffer as a sink.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Sink for Bytes<'_> {
    fn put(&mut self, text: &[u8]) {
        self.0.extend_from_slice(text);
    }
}

/// A text of unknown origin on one line.
struct OneLine<'a>(&'a str);

impl std::fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write as _;
        self.0.chars().try_for_each(|c| f.write_char(if c.is_control() { ' ' } else { c }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::fs;
    use std::string::{String, ToString as _};

    use tickmark_protocol::{Expected, Mark, Phase, Record as _};

    use crate::{clock, procfs};

    const LIVEZ: Asked = Asked::Page { page: Page::Livez, head_only: false };

    /// A directory with one good mark, and a judge of it.
    fn site() -> (tempfile::TempDir, Judge) {
        let generation = procfs::inspect(Encoding::Binary, false, None).generation;
        let dir = tempfile::tempdir().unwrap();
        let mark = Mark {
            slot: 0,
            pid: 1,
            sequence: 1,
            wall_ms: 0,
            monotonic_ns: clock::monotonic_ns(),
            tick_ms: 1000,
            phase: Phase::Running,
            consumers_subscribed: 1,
            consumers_expected: 1,
            jobs_in_flight: 0,
            oldest_job_ms: 0,
            time_namespace: procfs::time_namespace(),
            consumer_states: Default::default(),
            generation: generation.clone(),
        };
        fs::write(dir.path().join("expected"), Expected { processes: 1 }.encode()).unwrap();
        if let Some(generation) = &generation {
            fs::write(dir.path().join("generation"), generation.encode()).unwrap();
        }
        fs::write(dir.path().join("worker-0"), tickmark_protocol::MarkFile::encode(&mark)).unwrap();
        let path = dir.path().to_str().unwrap();
        let environment =
            Environment::from_variables([(String::from("TICKMARK_DIR"), path.as_bytes())]);
        let own = Own { evidence: generation.unwrap_or_default(), encoding: Encoding::Binary };
        let judge = Judge::new(environment, own);
        (dir, judge)
    }

    fn answered(judge: &mut Judge, asked: Asked) -> String {
        let mut out = Vec::new();
        judge.answer(asked, false, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_verdict_that_panics_is_red_and_so_is_the_next_one_green() {
        let (_dir, mut judge) = site();
        judge.clocks.monotonic_ns = || panic!("the clock\nis broken");
        for page in [Page::Livez, Page::Explain, Page::Metrics] {
            let said = answered(&mut judge, Asked::Page { page, head_only: false });
            assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
            assert!(said.ends_with("\r\n\r\nthe verdict failed: the clock is broken\n"), "{said}");
        }
        judge.clocks = Clocks::SYSTEM;
        let said = answered(&mut judge, LIVEZ);
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(said.ends_with("\r\n\r\n1 process(es) healthy\n"), "{said}");
    }

    #[test]
    fn who_knew_its_container_and_does_not_any_more_is_red() {
        // What this machine can read is there; and who knew nothing at start has nothing to lose.
        let (_dir, mut judge) = site();
        assert!(answered(&mut judge, LIVEZ).starts_with("HTTP/1.1 200 "));
        judge.own.evidence = Generation::default();
        assert!(answered(&mut judge, LIVEZ).starts_with("HTTP/1.1 200 "));
        // As if all was lost of which this was one: no process has both of these, and no other id.
        judge.own.evidence = Generation { cgroup_id: Some(1), ..Generation::default() };
        let lost = procfs::inspect(Encoding::Binary, false, None).evidence.cgroup_id.is_none();
        for (page, end) in [
            (Page::Livez, format!("\r\n\r\n{EVIDENCE_LOST}\n")),
            (Page::Explain, format!(r#","healthy":false,"verdict":"{EVIDENCE_LOST}"}}"#) + "\n"),
        ] {
            let said = answered(&mut judge, Asked::Page { page, head_only: false });
            assert_eq!(said.starts_with("HTTP/1.1 503 ") && said.ends_with(&end), lost, "{said}");
        }
        let metrics = answered(&mut judge, Asked::Page { page: Page::Metrics, head_only: false });
        assert_eq!(metrics.contains("\ntickmark_healthy 0\n"), lost, "{metrics}");
    }

    #[test]
    fn what_may_be_large_is_refused_while_busy() {
        let (_dir, mut judge) = site();
        for (page, status) in [(Page::Livez, "200"), (Page::Explain, "503"), (Page::Metrics, "503")]
        {
            let mut out = Vec::new();
            judge.answer(Asked::Page { page, head_only: false }, true, &mut out);
            let said = String::from_utf8_lossy(&out).to_string();
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        }
    }
}
