//! `cargo xtask bench activator`: what a swap costs beside a plain stop-then-start of the same service,
//! in turns, by one daemon, under clients that connect as fast as they can.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::outcome::{Doing as _, Failure};
use crate::workspace::{self, build_directory};

const HELP: &str = "\
cargo xtask bench activator [FLAG]...

Lets one activator replace the example HTTP server many times, in turns by a swap and by stopping and
starting it, under clients that open a connection for each request. Shows for both: the time from the
request to the switch, how long nothing was served, what clients lost and waited, and the memory of
the service's processes. Needs no root.

  --rounds N    how often each is replaced [50]
  --clients N   how many connect at once [4]
";

/// Clients run this long before and after each replacement.
const MARGIN: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client whose connection was refused waits.
const RETRY: Duration = Duration::from_micros(200);
const SAMPLE: Duration = Duration::from_millis(5);

const HOSTS: [&str; 2] = ["overlap", "stop-start"];

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let (mut rounds, mut clients) = (50_usize, 4_usize);
    while let Some(argument) = arguments.next()? {
        let target = match argument {
            Long("rounds") => &mut rounds,
            Long("clients") => &mut clients,
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        };
        let text = arguments.value()?.string()?;
        *target = text
            .parse()
            .ok()
            .filter(|&number| number >= 1)
            .ok_or_else(|| Failure::usage(format!("{text}: expected a number from 1 on")))?;
    }
    println!("building the activator and its examples");
    let target = build_directory("activator");
    workspace::run(
        workspace::cargo()
            .current_dir(workspace::root())
            .args(["build", "--quiet", "--release", "--package", "tickmark-activator"])
            .args(["--bins", "--examples", "--target-dir"])
            .arg(&target),
    )?;
    let built = target.join("release");
    let site = Site::start(&built)?;
    let http = built.join("examples/http");
    for host in HOSTS {
        site.ask(&json!({ "deploy": {
            "host": host, "path": http, "build": "v1", "deadline_ms": null, "dry_run": false,
        }}))?;
    }
    let mut found = [Found::default(), Found::default()];
    for _ in 0..rounds {
        for (host, found) in HOSTS.iter().zip(&mut found) {
            site.replace(host, clients, found)?;
        }
    }
    for host in HOSTS {
        site.ask(&json!({ "stop": { "host": host } }))?;
    }
    show(rounds, clients, &mut found);
    match found[0].lost {
        0 => Ok(()),
        lost => {
            Err(Failure::failed(format!("{lost} requests were lost in swaps: there must be none")))
        }
    }
}

/// What was measured of one way, over all rounds.
#[derive(Default)]
struct Found {
    switched: Vec<Duration>,
    answered: Vec<Duration>,
    /// The longest time between two responses, of each replacement.
    gaps: Vec<Duration>,
    latencies: Vec<Duration>,
    /// Connections that were refused or found no path, and responses that broke off.
    lost: usize,
    /// Proportional memory of the service's processes in KiB: the most seen of each replacement.
    peaks: Vec<u64>,
    /// Before each replacement.
    steady: Vec<u64>,
}

/// A daemon with two hosts in a directory of its own.
struct Site {
    directory: PathBuf,
    daemon: Child,
}

impl Site {
    fn start(built: &Path) -> Result<Site, Failure> {
        let directory = std::env::temp_dir().join(format!("tm-bench-{}", std::process::id()));
        fs::create_dir(&directory).doing("make a directory")?;
        let at = directory.display().to_string();
        let mut text = format!("[activator]\nstate = \"{at}/state\"\ncgroup = \"none\"\n");
        for host in HOSTS {
            text += &format!(
                "[host.{host}]\nsocket = \"{at}/{host}.sock\"\nbuilds = \"{at}/{host}\"\n\
                 swap = \"{host}\"\nenv = {{ TICKMARK_TICK = \"1\" }}\n"
            );
        }
        let config = directory.join("activator.toml");
        fs::write(&config, text).doing("write the configuration")?;
        let log = fs::File::create(directory.join("log")).doing("make the log")?;
        let daemon = Command::new(built.join("tickmark-activator"))
            .args(["run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .doing("start the daemon")?;
        let site = Site { directory, daemon };
        let since = Instant::now();
        while UnixStream::connect(site.socket()).is_err() {
            if since.elapsed() > PATIENCE {
                return Err(Failure::failed(format!("the daemon does not answer: see {at}/log")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(site)
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("state/activator.sock")
    }

    /// Asks the daemon, and sees it through. Gives when it switched, and when it answered.
    fn ask(&self, request: &Value) -> Result<(Duration, Duration), Failure> {
        let mut stream = UnixStream::connect(self.socket()).doing("reach the daemon")?;
        stream.set_read_timeout(Some(PATIENCE)).doing("set a timeout")?;
        let since = Instant::now();
        writeln!(stream, "{}", json!({ "version": 1, "request": request })).doing("ask")?;
        let (mut switching, mut switched) = (false, None);
        for line in BufReader::new(stream).lines() {
            let reply: Value =
                serde_json::from_str(&line.doing("hear the daemon")?).doing("read its answer")?;
            let state = reply["step"]["state"].as_str();
            if switching && switched.is_none() && state != Some("switching") {
                switched = Some(since.elapsed());
            }
            switching |= state == Some("switching");
            if let Some(answer) = reply.get("answer") {
                let (outcome, now) = (&answer["outcome"], since.elapsed());
                if outcome.get("done").is_none() && outcome != "stopped" {
                    return Err(Failure::failed(format!("{request}: {reply}")));
                }
                return Ok((switched.unwrap_or(now), now));
            }
            if reply.get("failure").is_some() {
                return Err(Failure::failed(format!("{request}: {reply}")));
            }
        }
        Err(Failure::failed(format!("{request}: the daemon went away")))
    }

    /// One replacement under clients.
    fn replace(&self, host: &str, clients: usize, found: &mut Found) -> Result<(), Failure> {
        let path = self.directory.join(format!("{host}.sock"));
        let builds = self.directory.join(host);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let clients: Vec<_> =
                (0..clients).map(|_| scope.spawn(|| client(&path, &over))).collect();
            let memory = scope.spawn(|| {
                let mut peak = 0;
                while !over.load(Ordering::Relaxed) {
                    peak = peak.max(self.memory(&builds));
                    thread::sleep(SAMPLE);
                }
                peak
            });
            thread::sleep(MARGIN);
            found.steady.push(self.memory(&builds));
            let replaced = self.ask(&json!({ "restart": { "host": host } }));
            thread::sleep(MARGIN);
            over.store(true, Ordering::Relaxed);
            let mut served = Vec::new();
            for client in clients {
                let (answers, lost) =
                    client.join().map_err(|_| Failure::failed("a client panicked"))?;
                found.latencies.extend(answers.iter().map(|(_, latency)| *latency));
                served.extend(answers.into_iter().map(|(at, _)| at));
                found.lost += lost;
            }
            found.peaks.push(memory.join().map_err(|_| Failure::failed("a thread panicked"))?);
            served.sort_unstable();
            let gap = served.windows(2).map(|pair| pair[1] - pair[0]).max();
            found.gaps.push(gap.ok_or_else(|| Failure::failed("nothing was served"))?);
            let (switched, answered) = replaced?;
            found.switched.push(switched);
            found.answered.push(answered);
            Ok(())
        })
    }

    /// Proportional memory in KiB of the daemon's children that run a build from there.
    fn memory(&self, builds: &Path) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon.id())).into_iter().flatten();
        let children = tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let of = |pid: &str| {
            let runs = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            let pss = pss.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
            runs.starts_with(builds).then_some(pss)
        };
        children.map(|children| children.split_whitespace().filter_map(of).sum::<u64>()).sum()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.daemon.id()) {
            let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ended = self.daemon.wait();
        let _left = fs::remove_dir_all(&self.directory);
    }
}

/// Asks again and again, with a connection for each request. Gives when each response was there and
/// how long it took, and how many came to nothing.
fn client(path: &Path, over: &AtomicBool) -> (Vec<(Instant, Duration)>, usize) {
    let (mut answers, mut lost) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        let since = Instant::now();
        let answered = UnixStream::connect(path).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            match text.starts_with("HTTP/1.1 200 ") && text.ends_with('\n') {
                true => Ok(()),
                false => Err(ErrorKind::UnexpectedEof.into()),
            }
        });
        match answered {
            Ok(()) => answers.push((Instant::now(), since.elapsed())),
            Err(_) => {
                lost += 1;
                thread::sleep(RETRY);
            }
        }
    }
    (answers, lost)
}

fn at<T: Copy + Ord>(values: &mut [T], per_mille: usize) -> T {
    values.sort_unstable();
    values[(values.len() * per_mille / 1000).min(values.len() - 1)]
}

fn show(rounds: usize, clients: usize, found: &mut [Found; 2]) {
    println!("\n{rounds} replacements each, in turns, under {clients} clients:\n");
    println!("| | swap | stop, then start | ratio |\n|---|---|---|---|");
    let line = |name: &str, [a, b]: [f64; 2], unit: &str| {
        let ratio = if b > 0.0 { format!("{:.3}", a / b) } else { "-".to_owned() };
        println!("| {name} | {a:.1}{unit} | {b:.1}{unit} | {ratio} |");
    };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let number = |value: u64| value as f64;
    let mut each = |name: &str, unit: &str, of: &mut dyn FnMut(&mut Found) -> f64| {
        let [a, b] = found;
        line(name, [of(a), of(b)], unit);
    };
    each("from the request to the switch, median", " ms", &mut |f| ms(at(&mut f.switched, 500)));
    each("the same, slowest", " ms", &mut |f| ms(at(&mut f.switched, 1000)));
    each("until the old one is proven gone, median", " ms", &mut |f| ms(at(&mut f.answered, 500)));
    each("longest time without a response, median", " ms", &mut |f| ms(at(&mut f.gaps, 500)));
    each("the same, longest", " ms", &mut |f| ms(at(&mut f.gaps, 1000)));
    each("requests lost", "", &mut |f| number(f.lost as u64));
    each("latency, median", " ms", &mut |f| ms(at(&mut f.latencies, 500)));
    each("latency, 99th percentile", " ms", &mut |f| ms(at(&mut f.latencies, 990)));
    each("latency, 99.9th percentile", " ms", &mut |f| ms(at(&mut f.latencies, 999)));
    each("latency, slowest", " ms", &mut |f| ms(at(&mut f.latencies, 1000)));
    each("memory of the service before", " KiB", &mut |f| number(at(&mut f.steady, 500)));
    each("its most during it, median", " KiB", &mut |f| number(at(&mut f.peaks, 500)));
}
