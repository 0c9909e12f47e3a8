//! Nothing runs before the go, nothing is inherited, and what keeps an exec from succeeding comes
//! back.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;
use tickmark_activator::process::{Exit, Identity, Process};
use tickmark_activator::stub::{self, GoError};

use crate::site::{Files, Site, rounds, soon, until};
use crate::{Case, cases, trace};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::from(cases![Nothing:
        nothing_runs_before_the_go_and_all_of_it_after
        a_refused_stub_is_gone_and_never_ran
        the_stubs_of_a_killed_activator_never_run
        an_identity_holds_through_the_exec_and_finds_the_process_again
        a_process_whose_first_thread_has_left_is_found_again
        nothing_is_inherited_but_what_the_launch_says
        an_output_is_appended_to_and_never_a_pipe
        what_keeps_an_exec_from_succeeding_comes_back
        a_launch_longer_than_a_socket_holds_arrives
        a_launch_that_cannot_be_is_refused_at_once
    ]);
    cases.extend(cases![Cgroup:
        a_stub_waits_in_its_leaf_and_the_program_runs_there
        a_frozen_cgroup_stops_a_stub_and_the_deadline_ends_it
        a_go_that_no_stub_has_read_is_taken_back
        generations_are_not_spared_by_the_out_of_memory_killer
        how_long_it_takes
    ]);
    cases
}

/// The tracing program, and the path of its trace.
fn traced(files: &Files) -> (stub::Launch, std::path::PathBuf) {
    let program = files.path("program");
    if !program.exists() {
        trace::write_program(&program);
    }
    let trace = files.path("trace");
    let launch = files.launch(program, &[trace.to_str().expect("a temporary path is text")]);
    (launch, trace)
}

fn nothing_runs_before_the_go_and_all_of_it_after() {
    let files = Files::new();
    let (launch, trace) = traced(&files);
    let waiting = stub::spawn(&launch, None, soon()).expect("a stub");
    let pid = waiting.identity().pid;
    let binary = fs::read_link(format!("/proc/{pid}/exe")).expect("it is there");
    assert_eq!(binary, env::current_exe().unwrap(), "the stub is this program");
    assert!(!trace.exists());
    let process = waiting.go(soon()).expect("it runs");
    assert_eq!(process.pid(), pid);
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Code(0)));
    assert!(trace.exists(), "the program leaves a trace, so that its absence says something");
}

fn a_refused_stub_is_gone_and_never_ran() {
    let files = Files::new();
    let (launch, trace) = traced(&files);
    for round in 0..rounds(100) {
        let waiting = stub::spawn(&launch, None, soon()).expect("a stub");
        let identity = waiting.identity().clone();
        if round % 2 == 0 {
            drop(waiting);
        } else {
            waiting.refuse().expect("it is gone");
        }
        assert!(Process::adopt(&identity).unwrap().is_none(), "it is gone");
        let number = format!("/proc/{}", identity.pid);
        assert!(!Path::new(&number).exists(), "nor is it a zombie");
    }
    assert!(!trace.exists());
}

fn the_stubs_of_a_killed_activator_never_run() {
    let files = Files::new();
    let (launch, trace) = traced(&files);
    for round in 0..rounds(80) {
        let mut parent = Command::new(env::current_exe().unwrap())
            .args(["worker", "parent"])
            .arg(&launch.program)
            .arg(&trace)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap());
        if round % 4 == 0 {
            // Somewhere on the way.
            std::thread::sleep(Duration::from_micros(100 * u64::from(round)));
            parent.kill().unwrap();
        }
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let identity: Option<Identity> = serde_json::from_str(&line).ok();
        parent.kill().unwrap();
        parent.wait().unwrap();
        if let Some(identity) = identity {
            until("the stub ends", || Process::adopt(&identity).unwrap().is_none());
        }
    }
    assert!(!trace.exists());
}

fn an_identity_holds_through_the_exec_and_finds_the_process_again() {
    let files = Files::new();
    let waiting = stub::spawn(&files.worker("wait", &[]), None, soon()).expect("a stub");
    let identity = waiting.identity().clone();
    let text = serde_json::to_string(&identity).unwrap();
    let process = waiting.go(soon()).expect("it runs");
    let read: Identity = serde_json::from_str(&text).unwrap();
    let found = Process::adopt(&read).unwrap().expect("it runs");
    assert_eq!(found.pid(), process.pid());
    assert!(found.signal(Signal::KILL).unwrap());
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
    // Waited for above: whoever asks second is told that it is not known.
    assert_eq!(found.wait(soon()).unwrap(), Some(Exit::Unknown));
}

fn a_process_whose_first_thread_has_left_is_found_again() {
    let files = Files::new();
    let waiting = stub::spawn(&files.worker("leave-first-thread", &[]), None, soon()).unwrap();
    let process = waiting.go(soon()).expect("it runs");
    until("its first thread is a zombie", || files.logged() == "lives on\n");
    let found = Process::adopt(process.identity()).unwrap().expect("it lives");
    assert_eq!(found.exited().unwrap(), None);
    found.signal(Signal::KILL).unwrap();
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Signal(9)));
    assert!(Process::adopt(process.identity()).unwrap().is_none());
}

fn run_to_end(launch: &stub::Launch) {
    let process = stub::spawn(launch, None, soon()).unwrap().go(soon()).unwrap();
    assert_eq!(process.wait(soon()).unwrap(), Some(Exit::Code(0)));
}

fn nothing_is_inherited_but_what_the_launch_says() {
    // An activator under systemd, with a descriptor that a library forgot to close on exec. In
    // a process of its own, since its environment and signals are this whole process's.
    let files = Files::new();
    let leaked = File::create(files.path("leaked")).unwrap();
    fcntl_setfd(leaked.as_fd(), FdFlags::empty()).unwrap();

    let mut launch = files.launch("/bin/ls", &["-l", "/proc/self/fd"]);
    launch.environment = vec![("ONLY".into(), "this".into())];
    run_to_end(&launch);
    let descriptors: Vec<String> = files
        .logged()
        .lines()
        .filter_map(|line| line.split(" -> ").nth(1).map(str::to_owned))
        .collect();
    let log = files.path("log").display().to_string();
    assert_eq!(descriptors[..3], ["/dev/null".to_owned(), log.clone(), log]);
    // The last is what `ls` reads the list by.
    assert_eq!(descriptors.len(), 4, "{descriptors:?}");
    fcntl_setfd(leaked.as_fd(), FdFlags::CLOEXEC).unwrap();

    let files = Files::new();
    let mut launch = files.launch("/usr/bin/env", &[]);
    launch.environment = vec![("ONLY".into(), "this".into())];
    assert!(env::vars_os().count() > 0, "this process has an environment to inherit");
    run_to_end(&launch);
    assert_eq!(files.logged(), "ONLY=this\n");

    // SIGPIPE is ignored in every Rust program, and `nohup` ignores SIGHUP.
    let files = Files::new();
    run_to_end(&files.launch("/bin/cat", &["/proc/self/status", "/proc/self/stat"]));
    let logged = files.logged();
    for key in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        let line = logged.lines().find(|line| line.starts_with(key)).unwrap();
        assert_eq!(line.trim_start_matches(key).trim(), "0000000000000000", "{key}");
    }
    let stat = logged.lines().last().unwrap();
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!([fields[4], fields[5]], [fields[0]; 2], "it leads a group and a session");
    assert_eq!(fields[6], "0", "and has no terminal");
}

fn an_output_is_appended_to_and_never_a_pipe() {
    let files = Files::new();
    writeln!(files.log(), "before").unwrap();
    run_to_end(&files.launch("/bin/echo", &["after"]));
    assert_eq!(files.logged(), "before\nafter\n");

    let (_reader, writer) = std::io::pipe().unwrap();
    let mut launch = files.launch("/bin/echo", &[]);
    launch.output = OwnedFd::from(writer);
    let error = stub::spawn(&launch, None, soon()).unwrap_err();
    assert!(error.is_usage(), "{error}");
    launch.output = File::create(files.path("other")).unwrap().into();
    let error = stub::spawn(&launch, None, soon()).unwrap_err();
    assert!(error.to_string().contains("append"), "{error}");
}

fn what_keeps_an_exec_from_succeeding_comes_back() {
    let files = Files::new();
    let write = |name: &str, text: &[u8], mode: u32| {
        let path = files.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let busy = write("busy", &fs::read("/bin/true").unwrap(), 0o755);
    let held = fs::OpenOptions::new().append(true).open(&busy).unwrap();
    let cases = [
        (files.path("missing"), libc::ENOENT, ""),
        (write("plain", b"#!/bin/sh\n", 0o644), libc::EACCES, "executable"),
        (files.path(""), libc::EACCES, ""),
        // Where execvp would run a shell: its trace would be in the log.
        (write("garbage", b"echo ran\n", 0o755), libc::ENOEXEC, "format"),
        (write("script", b"#!/missing/interpreter\n", 0o755), libc::ENOENT, "interpreter"),
        (busy, libc::ETXTBSY, ""),
    ];
    for (program, errno, hint) in cases {
        let waiting = stub::spawn(&files.launch(&program, &[]), None, soon()).expect("a stub");
        let identity = waiting.identity().clone();
        let error = waiting.go(soon()).unwrap_err();
        assert!(matches!(error, GoError::NotRun(_)), "{error}");
        assert_eq!(error.errno(), Some(errno), "{error}");
        let said = error.to_string();
        assert!(said.contains(program.to_str().unwrap()) && said.contains(hint), "{said}");
        assert!(!Path::new(&format!("/proc/{}", identity.pid)).exists(), "the stub is gone");
    }
    drop(held);
    let mut launch = files.launch("/bin/echo", &["ran"]);
    launch.directory = files.path("missing");
    let error = stub::spawn(&launch, None, soon()).unwrap_err();
    assert!(error.to_string().contains("directory"), "{error}");
    assert_eq!(files.logged(), "");
}

fn a_launch_longer_than_a_socket_holds_arrives() {
    let files = Files::new();
    let long = "x".repeat(100_000);
    let mut launch = files.launch("/usr/bin/env", &[]);
    launch.environment = (0..10).map(|n| (format!("V{n}").into(), (&long).into())).collect();
    run_to_end(&launch);
    assert!(files.logged().len() > 1_000_000);
    // More than the kernel takes, which the exec says.
    launch.environment.push(("TOO".into(), "x".repeat(200_000).into()));
    let error = stub::spawn(&launch, None, soon()).unwrap().go(soon()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::E2BIG), "{error}");
}

fn a_launch_that_cannot_be_is_refused_at_once() {
    let files = Files::new();
    let good = || files.launch("/bin/true", &[]);
    let mut relative = good();
    relative.program = "true".into();
    let mut nowhere = good();
    nowhere.directory = "tmp".into();
    let mut nul = good();
    nul.arguments.push("a\0b".into());
    let mut unnamed = good();
    unnamed.environment.push(("A=B".into(), "c".into()));
    for launch in [relative, nowhere, nul, unnamed] {
        let error = stub::spawn(&launch, None, soon()).unwrap_err();
        assert!(error.is_usage(), "{error}");
    }
}

fn a_stub_waits_in_its_leaf_and_the_program_runs_there(site: &Site) {
    let leaf = site.fresh(1);
    let launch = site.files.worker("wait", &[]);
    let waiting = stub::spawn(&launch, Some(&leaf), soon()).expect("a stub");
    assert_eq!(waiting.identity().cgroup_id, Some(leaf.id()));
    let members = site.leaf_path(leaf.name()).join("cgroup.procs");
    let pid = format!("{}\n", waiting.identity().pid);
    assert_eq!(fs::read_to_string(&members).unwrap(), pid);
    let process = waiting.go(soon()).expect("it runs");
    assert_eq!(fs::read_to_string(&members).unwrap(), pid);
    // A refused one leaves its leaf empty and unmarked, to be used again.
    leaf.kill(&[&process], soon()).expect("empty");
    let leaf = site.fresh(2);
    stub::spawn(&launch, Some(&leaf), soon()).unwrap().refuse().unwrap();
    assert!(!leaf.populated().unwrap());
    stub::spawn(&launch, Some(&leaf), soon()).expect("the same leaf again");
}

fn freeze(site: &Site, leaf: &tickmark_activator::cgroup::Leaf) {
    fs::write(site.leaf_path(leaf.name()).join("cgroup.freeze"), "1").unwrap();
}

fn a_frozen_cgroup_stops_a_stub_and_the_deadline_ends_it(site: &Site) {
    let (launch, trace) = traced(&site.files);
    let leaf = site.fresh(1);
    freeze(site, &leaf);
    let asked = Instant::now();
    let deadline = asked + Duration::from_millis(300);
    let error = stub::spawn(&launch, Some(&leaf), deadline).unwrap_err();
    assert!(error.to_string().contains("frozen"), "{error}");
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert!(!leaf.populated().unwrap(), "the stub is gone");
    assert!(!trace.exists());
}

fn a_go_that_no_stub_has_read_is_taken_back(site: &Site) {
    let (launch, trace) = traced(&site.files);
    let leaf = site.fresh(1);
    let waiting = stub::spawn(&launch, Some(&leaf), soon()).expect("a stub");
    freeze(site, &leaf);
    until("it is frozen", || leaf.frozen().unwrap());
    let error = waiting.go(Instant::now() + Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, GoError::NotRun(_)), "{error}");
    assert!(!leaf.populated().unwrap(), "the stub is gone");
    fs::write(site.leaf_path(leaf.name()).join("cgroup.freeze"), "0").unwrap();
    assert!(!trace.exists());

    // So too where it was killed before.
    let leaf = site.fresh(2);
    let waiting = stub::spawn(&launch, Some(&leaf), soon()).expect("a stub");
    leaf.kill(&[], soon()).expect("empty");
    let error = waiting.go(soon()).unwrap_err();
    assert!(matches!(error, GoError::NotRun(_)), "{error}");
    assert!(!trace.exists());
}

fn generations_are_not_spared_by_the_out_of_memory_killer(site: &Site) {
    let leaf = site.fresh(1);
    let launch = site.files.launch("/bin/cat", &["/proc/self/oom_score_adj"]);
    // As systemd does with `OOMScoreAdjust=-900`. It takes a capability that a container's root
    // has not; the guest's has.
    let spared = fs::write("/proc/self/oom_score_adj", "-900").is_ok();
    assert!(spared || !crate::guest::is_this());
    let waiting = stub::spawn(&launch, Some(&leaf), soon());
    if spared {
        fs::write("/proc/self/oom_score_adj", "0").unwrap();
    }
    waiting.expect("a stub").go(soon()).expect("it runs").wait(soon()).unwrap();
    let score: i32 = site.files.logged().trim().parse().unwrap();
    assert!(score >= 0, "{score}");
}

/// Not a judgement on a machine that others use, or on a guest: the numbers are printed, and only
/// what no load explains fails.
fn how_long_it_takes(site: &Site) {
    let rounds = rounds(100);
    let mut spawn = Vec::new();
    let mut refuse = Vec::new();
    let mut go = Vec::new();
    let mut kill = Vec::new();
    let launch = site.files.worker("wait", &[]);
    for _ in 0..rounds {
        let leaf = site.fresh(1);
        let timed = |times: &mut Vec<Duration>, since: Instant| times.push(since.elapsed());
        let start = Instant::now();
        let waiting = stub::spawn(&launch, Some(&leaf), soon()).unwrap();
        timed(&mut spawn, start);
        let start = Instant::now();
        waiting.refuse().unwrap();
        timed(&mut refuse, start);
        let waiting = stub::spawn(&launch, Some(&leaf), soon()).unwrap();
        let start = Instant::now();
        let process = waiting.go(soon()).unwrap();
        timed(&mut go, start);
        // The kernel tells of a change of `populated` no more than once in 10 ms (6.1 and 6.18):
        // sooner, that would be measured.
        std::thread::sleep(Duration::from_millis(11));
        let start = Instant::now();
        leaf.kill(&[&process], soon()).unwrap();
        timed(&mut kill, start);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_micros()
    };
    let [spawn, refuse, go, kill] = [&mut spawn, &mut refuse, &mut go, &mut kill].map(median);
    eprintln!(
        "median of {rounds}: spawn {spawn} µs, refuse {refuse} µs, go {go} µs, kill and proof \
         {kill} µs"
    );
    assert!(spawn + refuse + go + kill < 15_000_000);
}
