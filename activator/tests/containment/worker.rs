//! The workers that the tests run: this program again, with `worker` as its first argument. Each
//! says a line once it is where the test wants it.
#![allow(unsafe_code, reason = "fork without exec is what a fork bomb does")]

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use tickmark_activator::stub::{self, Launch};

use crate::site::soon;

pub(crate) fn is_one() -> bool {
    env::args().nth(1).is_some_and(|first| first == "worker")
}

pub(crate) fn run() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(2).collect();
    let [what, rest @ ..] = &arguments[..] else { return ExitCode::FAILURE };
    match (what.as_str(), rest) {
        ("wait", []) => {}
        ("end", []) => {
            say("ends");
            return ExitCode::SUCCESS;
        }
        ("hop", []) => hop(),
        ("move", [cgroup]) => move_to(cgroup),
        ("nest", [cgroup]) => {
            let deep = format!("{cgroup}/a/b/c");
            fs::create_dir_all(&deep).expect("cgroups of its own");
            move_to(&deep);
        }
        ("eat", [bytes]) => eat(bytes.parse().expect("a number")),
        ("leave-first-thread", []) => leave_first_thread(),
        ("count", []) => count(),
        ("parent", [program, trace]) => parent(program, trace),
        ("activator", [config, point]) => crate::swaps::comes_to(config, point),
        _ => return ExitCode::FAILURE,
    }
    say("waits");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the log takes a line");
}

fn move_to(cgroup: &str) {
    fs::write(format!("{cgroup}/cgroup.procs"), "0").expect("it may move itself");
}

/// Sixteen chains: each process leaves its session, forks and ends, for ever. None is there to be
/// found by its number, its parent or its session.
fn hop() -> ! {
    for _ in 0..16 {
        // SAFETY: this program has one thread, and the child calls nothing that needs another.
        if unsafe { libc::fork() } == 0 {
            chain();
        }
    }
    say("hops");
    std::process::exit(0)
}

fn chain() -> ! {
    loop {
        // SAFETY: as above; `_exit` runs no handler of this program.
        unsafe {
            libc::setsid();
            match libc::fork() {
                0 => {}
                // The machine is full for now.
                -1 => {
                    libc::usleep(1000);
                }
                _ => libc::_exit(0),
            }
        }
    }
}

/// Ends the thread that procfs shows for the process, and lives on in another.
fn leave_first_thread() -> ! {
    std::thread::spawn(|| {
        loop {
            let stat = fs::read_to_string("/proc/self/stat").expect("procfs");
            if stat.contains(") Z ") {
                break;
            }
            std::thread::yield_now();
        }
        say("lives on");
        std::thread::sleep(Duration::from_secs(3600));
    });
    // SAFETY: exit ends this thread alone, which holds nothing.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}

/// Touches so much memory.
fn eat(bytes: usize) {
    say("eats");
    let mut memory = vec![0_u8; bytes];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&memory);
    say("has eaten");
}

/// Says how many children it can have.
fn count() {
    let mut children = 0;
    loop {
        // SAFETY: this program has one thread; the child only waits.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: it takes nothing.
                unsafe { libc::pause() };
            },
            -1 => break,
            _ => children += 1,
        }
        assert!(children < 1000, "nothing limits it");
    }
    say(&format!("{children} children: {}", io::Error::last_os_error().kind()));
}

/// An activator with a stub that waits for its go, which it never gives.
fn parent(program: &str, trace: &str) {
    let output = fs::OpenOptions::new().append(true).open("/dev/null").expect("there is null");
    let launch = Launch {
        program: program.into(),
        arguments: vec![trace.into()],
        environment: Vec::new(),
        directory: "/".into(),
        output: output.into(),
    };
    let waiting = stub::spawn(&launch, None, soon()).expect("a stub");
    say(&serde_json::to_string(waiting.identity()).expect("an identity is JSON"));
    loop {
        std::thread::sleep(Duration::from_secs(3600));
        std::hint::black_box(&waiting);
    }
}
