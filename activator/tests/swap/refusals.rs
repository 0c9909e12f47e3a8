//! Ten thousand refusals raced against the spawn: the first instruction of the staged executable
//! leaves a trace, and of a refused start there never is one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tickmark_activator::backend::{Generations as _, Start, StartError};
use tickmark_activator::exec::ExecBackend;
use tickmark_activator::gate::{Context, Ended, Gate};
use tickmark_activator::health::MarksRoot;
use tickmark_activator::process::Exit;
use tickmark_activator::{BoxError, Gen, GenerationNumber, Route};

use crate::basics::Case;
use crate::daemon::Random;
use crate::site::{Site, host};

pub(crate) const ALL: &[Case] =
    &[("of_ten_thousand_refusals_raced_against_the_spawn_nothing_runs", || {
        Box::pin(async { tokio::task::block_in_place(ten_thousand) })
    })];

const REFUSALS: usize = 10_000;
const THREADS: usize = 4;

/// What a refusal comes by.
#[derive(Clone, Copy)]
enum By {
    /// The gate's first answer.
    First,
    /// Its second, after the record was written.
    Second,
    /// A record that cannot be written.
    Record,
    /// The end of its context, at a random moment of the start.
    Race,
}

fn ten_thousand() {
    let site = Site::new();
    let program = site.path().join("program");
    write_program(&program);
    let refused = AtomicUsize::new(0);
    let ran = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (site, program, refused, ran) = (&site, &program, &refused, &ran);
            scope.spawn(move || {
                let state = site.path().join(format!("state-{thread}"));
                std::fs::create_dir(&state).unwrap();
                let marks = MarksRoot::of(&state).unwrap();
                let backend = ExecBackend::new(&state, marks.clone(), None);
                let mut random = Random::new("refusals");
                let mut attempt = 0_u64;
                while refused.load(Ordering::Relaxed) < REFUSALS {
                    attempt += 1;
                    let trace = state.join(format!("trace-{attempt}"));
                    let by = match random.below(4) {
                        0 => By::First,
                        1 => By::Second,
                        2 => By::Record,
                        _ => By::Race,
                    };
                    let started = one(&backend, program, &trace, attempt, by, &mut random);
                    if started {
                        ran.fetch_add(1, Ordering::Relaxed);
                        assert!(trace.exists(), "a start that went leaves its trace");
                    } else {
                        refused.fetch_add(1, Ordering::Relaxed);
                        assert!(!trace.exists(), "something of a refused start ran");
                        assert!(marks.is_unused(), "what was prepared is undone");
                    }
                    let _none = std::fs::remove_dir(&trace);
                }
                // None comes late.
                let late = std::fs::read_dir(&state)
                    .unwrap()
                    .flatten()
                    .filter(|entry| entry.file_name().to_string_lossy().starts_with("trace"));
                assert_eq!(late.count(), 0, "something of a refused start ran late");
            });
        }
    });
    eprintln!(
        "{} refusals and {} starts in {:.1} s",
        refused.load(Ordering::Relaxed),
        ran.load(Ordering::Relaxed),
        begun.elapsed().as_secs_f64()
    );
    assert!(ran.load(Ordering::Relaxed) > 0, "every race was lost: nothing was raced");
}

/// Whether the start went; then it has ended, too.
fn one(
    backend: &ExecBackend,
    program: &Path,
    trace: &Path,
    attempt: u64,
    by: By,
    random: &mut Random,
) -> bool {
    let context = Context::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let gate = Gate::asking(context.clone(), move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        match (by, number) {
            (By::First, _) | (By::Second, 1..) => Err(BoxError::from("no")),
            _ => Ok(()),
        }
    })
    .recording(move || match by {
        By::Record => Err("cannot write".into()),
        _ => Ok(true),
    });
    let route = Route {
        args: vec![trace.to_str().unwrap().to_owned()],
        directory: Some(PathBuf::from("/")),
        ..Route::new(host())
    };
    let generation = Gen {
        staged: Some(program.to_owned()),
        ..Gen::cold(GenerationNumber::new(attempt).unwrap())
    };
    // The stub waits for its go when it is noted: from there on the end of the context races.
    let (noted, wait_for_note) = std::sync::mpsc::channel();
    let start = Start {
        route: &route,
        slot: 0,
        gate: &gate,
        note: &|_| {
            let _gone = noted.send(());
            Ok(())
        },
        deadline: Instant::now() + Duration::from_secs(60),
    };
    let wait = random.micros_below(Duration::from_micros(100));
    let early = random.below(8) == 0;
    let started = std::thread::scope(|scope| {
        if matches!(by, By::Race) {
            let context = &context;
            scope.spawn(move || {
                if !early && wait_for_note.recv().is_ok() {
                    let until = Instant::now() + wait;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                context.end(Ended::Superseded);
            });
        }
        backend.start_staged(&start, generation)
    });
    match started {
        Ok((_, proc)) => {
            let exit = proc.process.wait(Instant::now() + Duration::from_secs(60)).unwrap();
            assert_eq!(exit, Some(Exit::Code(0)));
            proc.launched.forget();
            true
        }
        Err(StartError::Refused(_)) => false,
        Err(other) => panic!("{other:?}"),
    }
}

/// A program whose first instructions make the directory that is its argument.
fn write_program(path: &Path) {
    std::fs::write(path, program()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(target_arch = "x86_64")]
fn program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let code: &[u8] = &[
        0x48, 0x8b, 0x7c, 0x24, 0x10, // mov rdi, [rsp + 16]: the first argument
        0xbe, 0xed, 0x01, 0x00, 0x00, // mov esi, 0o755
        0xb8, 0x53, 0x00, 0x00, 0x00, // mov eax, 83: mkdir
        0x0f, 0x05, // syscall
        0x31, 0xff, // xor edi, edi
        0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60: exit
        0x0f, 0x05, // syscall
    ];
    let length = HEADERS + code.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
    half(&mut file, 2); // executable
    half(&mut file, 62); // x86-64
    word(&mut file, 1);
    long(&mut file, BASE + HEADERS); // entry
    long(&mut file, 64); // program headers
    long(&mut file, 0);
    word(&mut file, 0);
    for value in [64, 56, 1, 0, 0, 0] {
        half(&mut file, value);
    }
    word(&mut file, 1); // load
    word(&mut file, 5); // readable, executable
    long(&mut file, 0);
    long(&mut file, BASE);
    long(&mut file, BASE);
    long(&mut file, length);
    long(&mut file, length);
    long(&mut file, 0x1000);
    file.extend(code);
    file
}

#[cfg(not(target_arch = "x86_64"))]
fn program() -> Vec<u8> {
    b"#!/bin/sh\nmkdir \"$1\"\n".to_vec()
}
