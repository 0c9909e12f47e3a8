//! `cargo xtask bench`: the probe beside other programs in one interleaved run, its budget, and what it
//! costs a node; then the worker's own benchmarks. Ratios are what carries over to another machine.

mod activator;
mod marks;
mod memory;
mod node;
mod programs;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::outcome::{Doing as _, Failure};
use crate::probe::{self, Builder, Target};
use crate::workspace::{self, build_directory};
pub(crate) use marks::MarksDirectory;
use programs::Program;
pub(crate) use programs::empty;

const HELP: &str = "\
cargo xtask bench [FLAG]...
cargo xtask bench activator [FLAG]...   what a swap costs: has its own --help
cargo xtask bench node [FLAG]...        what probes cost a node: has its own --help

Builds the probe and measures it with 1, 4 and 32 slots beside an empty static program, /bin/true
and, where they are installed, a static Go program and Ruby: medians of an interleaved run, the CPU
time, the system calls (where strace is installed; too many fail), the memory of its own, and what
a probe every 10 s costs a node with 110 pods. Then `cargo bench --package tickmark`.

  --rounds N   how often each program runs [300]
  --no-worker  leave the worker's benchmarks out
  --worker     only the worker's benchmarks
";

/// Slots of the probe's three lines.
const SLOTS: [u32; 3] = [1, 4, 32];
/// System calls allowed on the healthy path: this many with one slot, and three more for each other.
const CALLS_FIRST: u32 = 25;
const CALLS_MORE: u32 = 3;
const MEMORY_LIMIT_KIB: u64 = 64;
const WALL_LIMIT: f64 = 1.6;
/// The kubelet's default limit of pods on a node, each probed this often.
const PODS: f64 = 110.0;
const PERIOD_SECONDS: f64 = 10.0;
/// Slow programs are run less often than the others, this many rounds apart.
const SLOW_EVERY: usize = 10;

pub(crate) fn command(mut arguments: lexopt::Parser) -> Result<(), Failure> {
    use lexopt::prelude::*;
    let mut rounds = 300_usize;
    let (mut probe, mut worker) = (true, true);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("rounds") => {
                let text = arguments.value()?.string()?;
                rounds = text.parse().ok().filter(|&rounds| rounds >= 20).ok_or_else(|| {
                    Failure::usage(format!("--rounds {text}: expected a number from 20 on"))
                })?;
            }
            Value(what) if what == "activator" => return activator::command(arguments),
            Value(what) if what == "node" => return node::command(arguments),
            Long("worker") => probe = false,
            Long("no-worker") => worker = false,
            Long("help") | Short('h') => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(Failure::usage(format!("{}\n\n{HELP}", other.unexpected()))),
        }
    }
    // The worker's figures are wanted even where a budget is broken.
    let budget = if probe { probe_bench(rounds) } else { Ok(()) };
    if worker {
        println!("\nthe worker (cargo bench --package tickmark):");
        workspace::run(workspace::cargo().current_dir(workspace::root()).args([
            "bench",
            "--package",
            "tickmark",
        ]))?;
    }
    budget
}

fn probe_bench(rounds: usize) -> Result<(), Failure> {
    let host = Target::host()
        .ok_or_else(|| Failure::failed("the probe is not made for this machine's architecture"))?;
    // A file over its size is a budget of `cargo xtask probe`; its other figures are still wanted.
    let mut broken = probe::build_for_use(&[host], Builder::Cargo)?;
    let directory = build_directory("bench");
    std::fs::create_dir_all(&directory).doing(format_args!("make {}", directory.display()))?;
    let marks = SLOTS
        .into_iter()
        .map(|slots| MarksDirectory::fresh(slots).map(|marks| (slots, marks)))
        .collect::<Result<Vec<_>, _>>()?;
    let programs = programs::all(host, &directory, &marks)?;

    let measured = interleave(&programs, rounds, &marks)?;
    report(&programs, &measured, rounds);

    calls(&host.file(), &marks, &mut broken)?;
    for (slots, marks) in &marks {
        marks.refresh()?;
        let own = memory::own_at_exit(&host.file(), &marks.arguments())?;
        println!("memory of its own at exit, {slots} slots: {own} KiB (limit {MEMORY_LIMIT_KIB})");
        if own > MEMORY_LIMIT_KIB {
            broken.push(format!("{own} KiB of memory with {slots} slots"));
        }
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(Failure::failed(format!("over budget: {}", broken.join("; "))))
    }
}

/// The runs of one program.
#[derive(Debug, Default)]
struct Measured {
    wall: Vec<Duration>,
    cpu: Duration,
}

impl Measured {
    fn median(&self) -> Duration {
        let mut wall = self.wall.clone();
        wall.sort_unstable();
        wall.get(wall.len() / 2).copied().unwrap_or_default()
    }

    /// The mean: one run is near the clock's resolution, the sum of many is not.
    fn cpu(&self) -> Duration {
        self.cpu / u32::try_from(self.wall.len().max(1)).unwrap_or(u32::MAX)
    }
}

/// Runs the programs in turn, so that whatever else the machine does meets all of them alike.
fn interleave(
    programs: &[Program],
    rounds: usize,
    marks: &[(u32, MarksDirectory)],
) -> Result<Vec<Measured>, Failure> {
    let mut measured: Vec<Measured> = programs.iter().map(|_| Measured::default()).collect();
    let mut reported = Instant::now();
    for round in 0..=rounds {
        if round % 20 == 0 {
            for (_, marks) in marks {
                marks.refresh()?;
            }
        }
        if reported.elapsed() > Duration::from_secs(2) {
            reported = Instant::now();
            eprintln!("  round {round} of {rounds}");
        }
        for (program, measured) in programs.iter().zip(&mut measured) {
            if program.slow && round % SLOW_EVERY != 0 {
                continue;
            }
            let (wall, cpu) = once(program)?;
            // The first round only warms the page cache.
            if round > 0 {
                measured.wall.push(wall);
                measured.cpu += cpu;
            }
        }
    }
    Ok(measured)
}

/// Runs a program once, from its start until it is reaped.
fn once(program: &Program) -> Result<(Duration, Duration), Failure> {
    let mut command = program.command();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let cpu = children_cpu()?;
    let start = Instant::now();
    let status = command.status().doing(format_args!("run {}", program.file.display()))?;
    let wall = start.elapsed();
    if !status.success() {
        let name = &program.name;
        return Err(Failure::failed(format!("{name} ended with {status}")));
    }
    Ok((wall, children_cpu()?.saturating_sub(cpu)))
}

/// User and system time of all children that were waited for.
fn children_cpu() -> Result<Duration, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).doing("getrusage")?;
    let micros = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .iter()
        .sum::<i64>();
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

fn report(programs: &[Program], measured: &[Measured], rounds: usize) {
    let empty = programs
        .iter()
        .zip(measured)
        .find(|(program, _)| program.name == programs::EMPTY)
        .map_or(Duration::ZERO, |(_, measured)| measured.median());
    println!("\n{rounds} interleaved rounds; time from spawn to reaped\n");
    println!("| program | median wall µs | ratio to the empty one | CPU µs |");
    println!("|---|---:|---:|---:|");
    for (program, measured) in programs.iter().zip(measured) {
        let ratio = measured.median().as_secs_f64() / empty.as_secs_f64();
        println!(
            "| {} | {} | {ratio:.2} | {} |",
            program.name,
            measured.median().as_micros(),
            measured.cpu().as_micros()
        );
    }
    println!();
    if let Some((program, first)) = programs.iter().zip(measured).next() {
        let ratio = first.median().as_secs_f64() / empty.as_secs_f64();
        // A time is reported and not enforced: a busy machine would fail the build.
        let verdict = if ratio > WALL_LIMIT { "OVER" } else { "within" };
        println!(
            "{}: {ratio:.2} × the empty program, {verdict} the limit of {WALL_LIMIT}",
            program.name
        );
        let per_second = PODS / PERIOD_SECONDS * first.cpu().as_secs_f64();
        println!(
            "a probe every {PERIOD_SECONDS} s in {PODS} pods: {:.2} milli-CPU of the node, {:.1} s of CPU a day",
            per_second * 1e3,
            per_second * 86_400.0
        );
    }
}

/// Counts the system calls, `execve` and `exit_group` among them.
fn calls(
    probe: &Path,
    marks: &[(u32, MarksDirectory)],
    broken: &mut Vec<String>,
) -> Result<(), Failure> {
    if workspace::on_path("strace").is_none() {
        println!("system calls: skipped, strace is not on PATH");
        return Ok(());
    }
    for (slots, marks) in marks {
        marks.refresh()?;
        // A line each, and not `-c`, whose table leaves out the call that never returns.
        let output = Command::new("strace")
            .args(["-f", "-o", "/dev/stderr"])
            .arg(probe)
            .args(marks.arguments())
            .stdin(Stdio::null())
            .output()
            .doing("run strace")?;
        let trace = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(Failure::failed(format!(
                "the probe under strace: {}\n{trace}",
                output.status
            )));
        }
        let calls =
            trace.lines().filter(|line| line.contains('(') && !line.contains("+++")).count();
        let limit = CALLS_FIRST + CALLS_MORE * (slots - 1);
        println!("system calls, {slots} slots: {calls} (limit {limit})");
        if calls > limit as usize {
            if *slots == SLOTS[0] {
                print!("{trace}");
            }
            broken.push(format!("{calls} system calls with {slots} slots"));
        }
    }
    Ok(())
}
