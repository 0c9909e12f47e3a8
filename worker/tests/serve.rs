//! The verdict over real sockets: what is answered, to whom, and that neither a peer nor the
//! application can keep it from being told.

mod capture;
mod serving;
mod skipping;

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use serving::{Served, get, lines, request, try_get};
use skipping::skip;
use tickmark::{ConsumerState, Liveness, Registration};

/// A tick of these tests, whose marks are stale after a second.
const TICK: Duration = Duration::from_millis(100);

#[test]
fn the_probes_line_with_its_status() {
    let served = Served::new(TICK);
    let liveness = served.start();
    let dir = served.dir().to_str().unwrap();
    // Two consumers are expected; so far there is none.
    let missing = get(served.address, "/livez");
    assert_eq!(missing.status, 503);
    assert!(
        missing.body == "worker-0 missing\n"
            || missing.body.starts_with(&format!("no {dir}/expected: worker has not started yet")),
        "{missing:?}"
    );
    let registered = served.register(&liveness);
    let healthy = served.wait_for(200);
    assert_eq!(healthy.body, "1 process(es) healthy\n");
    assert_eq!(healthy.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(healthy.header("content-length"), Some("22"));
    assert_eq!(healthy.header("connection"), Some("close"));
    assert_eq!(healthy.header("cache-control"), Some("no-store"));
    drop(registered);
    assert_eq!(served.wait_for(503).body, "worker-0 stale 2s > 1s\n");
}

#[test]
fn what_is_not_asked_for_rightly_is_refused() {
    let served = Served::new(TICK);
    let liveness = served.start();
    let _registered = served.register(&liveness);
    let healthy = served.wait_for(200);
    let head = request(served.address, b"HEAD /livez HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.header("content-length"), healthy.header("content-length"));
    let post = b"POST /livez HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
    let post = request(served.address, post).unwrap();
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    for (path, status) in [("/", 404), ("/livez/", 404), ("/healthz", 404), ("/livez?verbose", 200)]
    {
        assert_eq!(get(served.address, path).status, status, "{path}");
    }
    // A TLS client's first bytes, HTTP/2, and nothing at all.
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\n\0"]
    {
        assert_eq!(request(served.address, garbage).unwrap().status, 400);
    }
    let mut long = b"GET /livez HTTP/1.1\r\nA: ".to_vec();
    long.resize(100_000, b'a');
    assert_eq!(request(served.address, &long).unwrap().status, 431);
    assert_eq!(get(served.address, "/livez").status, 200);
}

#[test]
fn idle_and_slow_connections_keep_no_probe_out() {
    let served = Served::new(TICK);
    let liveness = served.start();
    let _registered = served.register(&liveness);
    served.wait_for(200);
    let started = Instant::now();
    // More than there are places; each has sent a part of a request.
    let mut slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            stream.write_all(b"GET /livez HT").unwrap();
            stream
        })
        .collect();
    let asked = Instant::now();
    assert_eq!(get(served.address, "/livez").status, 200);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    // And they are cut, while one goes on byte by byte.
    let mut trickling = TcpStream::connect(served.address).unwrap();
    let trickled = Instant::now();
    while trickling.write_all(b"G").is_ok() && trickled.elapsed() < Duration::from_secs(8) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(trickled.elapsed() < Duration::from_secs(4), "{:?}", trickled.elapsed());
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
        match stream.read(&mut [0; 16]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?} after {:?}", started.elapsed()),
        }
    }
}

#[test]
fn an_answer_that_nobody_takes_is_given_up() {
    let served = Served::new(TICK);
    // One of 4096 processes: /metrics is more than sockets with so little room hold.
    let liveness = served.builder(0).processes(4096).serve(served.address).start().unwrap();
    let _registered = served.register(&liveness);
    let many = || get(served.address, "/livez").body.ends_with("; … and 4079 more\n");
    let began = Instant::now();
    while !many() {
        assert!(began.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(20));
    }
    let untaken: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = serving::connect_with_little_room(served.address);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            // The first bytes of its answer: it is being sent.
            stream.read_exact(&mut [0; 12]).unwrap();
            stream
        })
        .collect();
    let busy = get(served.address, "/metrics");
    assert_eq!((busy.status, busy.header("retry-after")), (503, Some("1")), "{busy:?}");
    assert!(many());
    // Given up, they make room.
    let began = Instant::now();
    while get(served.address, "/metrics").status != 200 {
        assert!(began.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(untaken);
}

#[test]
fn a_consumer_that_blocks_or_a_poisoned_lock_keeps_nothing_back() {
    // The monitor's thread asks a consumer that waits for a lock which is never released; and one
    // whose lock is poisoned, so that it panics.
    for poisoned in [false, true] {
        let served = Served::new(TICK);
        let liveness = served.start();
        let lock = Arc::new(Mutex::new(()));
        let asked = Arc::clone(&lock);
        let answering = liveness.register("orders", move || {
            let _held = asked.lock().unwrap();
            ConsumerState::Consuming
        });
        let other = liveness.register("mails", || ConsumerState::Consuming);
        served.wait_for(200);
        let holder = std::thread::spawn(move || {
            let held = lock.lock().unwrap();
            assert!(!poisoned, "on purpose: the lock is poisoned");
            std::mem::forget(held);
        });
        assert_eq!(holder.join().is_err(), poisoned);
        let stale = served.wait_for(503);
        assert!(stale.body.starts_with("worker-0 stale "), "{stale:?}");
        std::mem::forget((answering, other));
    }
}

/// Until the sender is dropped.
fn wait(blocked: &Mutex<Receiver<()>>) {
    if let Ok(blocked) = blocked.lock() {
        let _dropped = blocked.recv();
    }
}

#[test]
fn a_blocked_runtime_keeps_nothing_back() {
    let served = Served::new(TICK);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let liveness = served.start();
    let _registered = served.register(&liveness);
    let _watch = liveness.watch_runtime("main", runtime.handle());
    served.wait_for(200);
    // Every thread of it, and then every thread of its pool for what blocks.
    let (release, blocked) = channel();
    let blocked = Arc::new(Mutex::new(blocked));
    for _ in 0..2 {
        let (in_runtime, in_pool) = (Arc::clone(&blocked), Arc::clone(&blocked));
        runtime.spawn(async move { wait(&in_runtime) });
        runtime.spawn_blocking(move || wait(&in_pool));
    }
    let stale = served.wait_for(503);
    assert!(stale.body.starts_with("worker-0 stale "), "{stale:?}");
    assert!(get(served.address, "/explain").body.contains(r#""healthy":false"#));
    drop(release);
    served.wait_for(200);
}

/// Runs `test` again as the only one of a process of its own, and returns that once it has said so.
fn alone(test: &str, program: &mut Command) -> Child {
    let mut child =
        program.args(["--exact", test, "--nocapture"]).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let ready = stdout.lines().any(|line| line.is_ok_and(|line| line.ends_with("ready")));
    assert!(ready, "{test} failed in a process of its own: {:?}", child.wait());
    child
}

/// A healthy worker that serves on `address`, as the environment says.
fn healthy_here(address: &str) -> (Liveness, Registration) {
    let liveness = Liveness::builder().consumers(1).tick(TICK).start().unwrap();
    let registered = liveness.register("orders", || ConsumerState::Consuming);
    let address = address.parse().unwrap();
    while !try_get(address, "/livez").is_ok_and(|answered| answered.status == 200) {}
    (liveness, registered)
}

/// And then waits to be killed.
fn say_ready() {
    std::io::stdout().write_all(b"ready\n").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_process_without_descriptors_still_tells() {
    let test = "a_process_without_descriptors_still_tells";
    if let Ok(address) = std::env::var("TICKMARK_SERVE") {
        let _healthy = healthy_here(&address);
        let limit = Rlimit { current: Some(64), maximum: Some(64) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let mut leaked = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            leaked.push(file);
        }
        return say_ready();
    }
    let served = Served::new(TICK);
    let mut child = alone(
        test,
        Command::new(std::env::current_exe().unwrap())
            .env("TICKMARK_DIR", served.dir())
            .env("TICKMARK_MAX_AGE", "2")
            .env("TICKMARK_SERVE", served.address.to_string()),
    );
    // The marks are fresh, and so it says; until they are not, for the monitor has none either.
    assert_eq!(get(served.address, "/livez").body, "1 process(es) healthy\n");
    assert_eq!(get(served.address, "/metrics").status, 200);
    assert_eq!(served.wait_for(503).body, "worker-0 stale 3s > 2s\n");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn evidence_that_was_there_and_is_lost_is_red() {
    let test = "evidence_that_was_there_and_is_lost_is_red";
    if let Ok(address) = std::env::var("TICKMARK_SERVE") {
        let _healthy = healthy_here(&address);
        return say_ready();
    }
    let served = Served::new(TICK);
    let unshare = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let may = Command::new("unshare").args(unshare).arg("true").status();
    if !may.is_ok_and(|status| status.success()) {
        return skip(test, "needs root and leave to mount");
    }
    // Text knows its container by two files of procfs alone; here this process is PID 1.
    let mut child = alone(
        test,
        Command::new("unshare")
            .args(unshare)
            .arg(std::env::current_exe().unwrap())
            .env("TICKMARK_DIR", served.dir())
            .env("TICKMARK_FORMAT", "text")
            .env("TICKMARK_SERVE", served.address.to_string()),
    );
    let pid = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    // Its own, and the one below.
    let unmount = "umount -l /proc && umount -l /proc";
    let enter = ["--mount", "--pid", "--target", pid.trim(), "sh", "-c", unmount];
    assert!(Command::new("nsenter").args(enter).status().unwrap().success());
    let lost = get(served.address, "/livez");
    assert_eq!(lost.status, 503);
    assert!(lost.body.starts_with("container evidence lost: "), "{lost:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_directory_that_cannot_be_read_is_red() {
    let served = Served::new(TICK);
    let liveness = served.start();
    let registered = served.register(&liveness);
    served.wait_for(200);
    // The monitor ends, and nothing repairs the directory; the server of a sibling goes on.
    let sibling = served.start_slot(1);
    drop((registered, liveness));
    let dir = served.dir().to_path_buf();
    let line = |what: &str| format!("{}/expected unreadable ({what})\n", dir.display());
    let moved = dir.with_extension("moved");
    let answer = loop {
        let _already = fs::rename(&dir, &moved);
        let _already = fs::write(&dir, "not a directory");
        match try_get(served.address, "/livez") {
            Ok(answer) if answer.body != "1 process(es) healthy\n" => break answer,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!((answer.status, answer.body), (503, line("ENOTDIR")));
    let explained = get(served.address, "/explain");
    assert_eq!(explained.status, 503);
    let metrics = get(served.address, "/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.body.contains("\ntickmark_healthy 0\n"), "{}", metrics.body);
    drop(sibling);
    fs::remove_file(&dir).unwrap();
    fs::rename(moved, dir).unwrap();
}

#[test]
fn a_stranger_on_the_port_is_one_error_and_its_end_is_noticed() {
    let served = Served::new(TICK);
    let lines = lines();
    let stranger = TcpListener::bind(served.address).unwrap();
    let liveness = served.start();
    let _registered = served.register(&liveness);
    let begin = format!("cannot serve on {}: something else has the port", served.address);
    lines.wait_until(|lines| lines.iter().any(|line| line.contains(&begin)));
    std::thread::sleep(TICK * 8);
    let said = lines.about(&served.address.to_string());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("ERROR [liveness] slot 0: "), "{said:?}");
    assert!(served.dir().join("worker-0").exists(), "the worker goes on");
    drop(stranger);
    assert_eq!(served.wait_for(200).body, "1 process(es) healthy\n");
    lines.wait_for(&format!("serving /livez, /explain and /metrics on {}", served.address));
    // And again, if it is lost again.
    drop(liveness);
}

#[test]
fn two_processes_of_a_container_make_no_noise() {
    let served = Served::new(TICK);
    let lines = lines();
    let first = served.start_slot(0);
    let second = served.start_slot(1);
    let _registered = (served.register(&first), served.register(&second));
    assert_eq!(served.wait_for(200).body, "2 process(es) healthy\n");
    std::thread::sleep(TICK * 5);
    let said = lines.about(&served.address.to_string());
    assert_eq!(said.len(), 1, "{said:?}");
    // Whoever it is ends: the other takes over within a tick, and it takes the other's mark.
    let (ends, stays) = if said[0].contains("slot 0") { (first, second) } else { (second, first) };
    drop(ends);
    lines.wait_until(|lines| {
        lines.iter().filter(|line| line.contains(&served.address.to_string())).count() == 2
    });
    assert_eq!(get(served.address, "/livez").status, 200);
    drop(stays);
}

#[test]
fn a_lock_that_was_removed_is_taken_again() {
    let served = Served::new(TICK);
    let lines = lines();
    let first = served.start_slot(0);
    let _registered = served.register(&first);
    served.wait_for(503);
    let old = serving::inode(&served.dir().join(".lock-serve")).unwrap();
    fs::remove_file(served.dir().join(".lock-serve")).unwrap();
    let began = Instant::now();
    while serving::inode(&served.dir().join(".lock-serve")).is_none_or(|new| new == old) {
        assert!(began.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(10));
    }
    // A second process finds it held, and is silent.
    let second = served.start_slot(1);
    std::thread::sleep(TICK * 5);
    assert_eq!(lines.about(&served.address.to_string()).len(), 1);
    drop((first, second));
}

#[test]
fn mistakes() {
    let served = Served::new(TICK);
    let error = served.builder(0).serve(([127, 0, 0, 1], 0)).start().map(drop).unwrap_err();
    assert!(error.is_serve(), "{error}");
    let lines = lines();
    for text in ["8086", "localhost:8086", "0.0.0.0:0", "0.0.0.0", ":8086"] {
        let liveness = served.builder_with(0, &[("TICKMARK_SERVE", text)]).start().unwrap();
        let said = format!("TICKMARK_SERVE={text} is not an address with a port");
        lines.wait_until(|lines| lines.iter().any(|line| line.contains(&said)));
        drop(liveness);
    }
    // A port of another machine's address.
    let liveness = served.builder_with(0, &[("TICKMARK_SERVE", "192.0.2.1:8086")]).start().unwrap();
    let said = "cannot serve on 192.0.2.1:8086: Cannot assign requested address";
    lines.wait_until(|lines| lines.iter().any(|line| line.contains(said)));
    drop(liveness);
}
