//! What a job costs: one start and one end, alone and while seven other threads do the same.

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use tickmark::{Jobs, Liveness};

const THREADS: u32 = 8;

fn jobs(concurrency: usize) -> Jobs {
    let (liveness, _monitor) = Liveness::builder()
        .consumers(1)
        .jobs(concurrency, Duration::from_secs(30))
        .start_without_thread()
        .expect("valid settings");
    liveness.jobs().clone()
}

fn alone(criterion: &mut Criterion) {
    for concurrency in [1, 8, 1000] {
        let jobs = jobs(concurrency);
        criterion.bench_function(&format!("job/{concurrency} places"), |bencher| {
            bencher.iter(|| drop(black_box(jobs.start())));
        });
    }
    // The search is longest where one place is left; there are twice as many as run at once.
    let jobs = jobs(500);
    let _held: Vec<_> = (0..999).map(|_| jobs.start()).collect();
    criterion.bench_function("job/the last of 1000 places", |bencher| {
        bencher.iter(|| drop(black_box(jobs.start())));
    });
}

/// The threads' own time for a job, not the wall's: where there are fewer processors than
/// threads, they wait for each other however cheap a job is.
fn contended(criterion: &mut Criterion) {
    for concurrency in [8, 1000] {
        let jobs = jobs(concurrency);
        let name = format!("job/{concurrency} places, {THREADS} threads");
        criterion.bench_function(&name, |bencher| {
            bencher.iter_custom(|rounds| together(&jobs, rounds) / THREADS);
        });
    }
}

/// The time that all threads spend while each does `rounds` jobs.
fn together(jobs: &Jobs, rounds: u64) -> Duration {
    let ready = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let spent = || {
            ready.wait();
            let begun = thread_time();
            for _ in 0..rounds {
                drop(black_box(jobs.start()));
            }
            thread_time() - begun
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(spent)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a job that does not panic")).sum()
    })
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("a time since the thread began")
}

criterion_group!(benches, alone, contended);
criterion_main!(benches);
