//! One worker process: a producer, an in-process queue, consumer threads, and the liveness
//! that watches them. The signals that make it ill are handled here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tickmark::ConsumerState;
use tickmark_supervision::supervisor::reap;

use crate::options::Options;

const JOBS_QUEUED: usize = 16;
const JOB_EVERY: Duration = Duration::from_millis(50);

type Failure = Box<dyn std::error::Error>;

struct Consumer {
    consuming: Arc<AtomicBool>,
    _registration: Box<dyn std::any::Any>,
}

pub(crate) fn run(options: &Options) -> Result<(), std::io::Error> {
    work(options).map_err(|failure| std::io::Error::other(failure.to_string()))
}

fn work(options: &Options) -> Result<(), Failure> {
    // Before anything slow: PID 1 has no default action, so an early SIGTERM would be lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD])?;
    let consumers = usize::try_from(options.consumers)?;
    let liveness = tickmark::Liveness::builder().consumers(consumers).start()?;
    let working = Arc::new(AtomicBool::new(true));
    let (producer, queue) = mpsc::sync_channel(JOBS_QUEUED);
    thread::spawn({
        let working = Arc::clone(&working);
        move || produce(&producer, &working)
    });

    let mut started = true;
    match options.start_delay {
        Some(delay) if delay.is_zero() => {}
        Some(delay) => {
            tracing::info!("consumers start in {} ms", delay.as_millis());
            thread::sleep(delay);
        }
        None => {
            tracing::info!("consumers start at SIGUSR2");
            started = is_let_go(&mut signals);
        }
    }
    let queue = Arc::new(Mutex::new(queue));
    let consumers: Vec<Consumer> = (0..if started { options.consumers } else { 0 })
        .map(|number| {
            let consuming = Arc::new(AtomicBool::new(true));
            thread::spawn({
                let queue = Arc::clone(&queue);
                let consuming = Arc::clone(&consuming);
                let working = Arc::clone(&working);
                move || consume(&queue, &consuming, &working)
            });
            let judged = Arc::clone(&consuming);
            let registration = liveness.register(&format!("demo-{number}"), move || {
                if judged.load(Ordering::Relaxed) {
                    ConsumerState::Consuming
                } else {
                    ConsumerState::Stopped
                }
            });
            Consumer { consuming, _registration: Box::new(registration) }
        })
        .collect();

    for signal in started.then(|| signals.forever()).into_iter().flatten() {
        match signal {
            SIGUSR1 => turn(&consumers, true),
            SIGUSR2 => turn(&consumers, false),
            SIGCHLD => {
                reap();
            }
            _ => break,
        }
    }

    liveness.stopping();
    working.store(false, Ordering::Relaxed);
    match options.drain {
        Some(drain) => {
            tracing::info!("draining for {} ms", drain.as_millis());
            thread::sleep(drain);
        }
        None => {
            tracing::info!("draining for ever: this worker is stuck");
            loop {
                thread::park();
            }
        }
    }
    tracing::info!("drained");
    Ok(())
}

/// Waits for SIGUSR2; false where the process is to end before.
fn is_let_go(signals: &mut Signals) -> bool {
    for signal in signals.forever() {
        match signal {
            SIGUSR2 => return true,
            SIGTERM | SIGINT => return false,
            _ => {
                reap();
            }
        }
    }
    false
}

fn produce(queue: &mpsc::SyncSender<u64>, working: &AtomicBool) {
    for job in 0.. {
        if !working.load(Ordering::Relaxed) || queue.send(job).is_err() {
            break;
        }
        thread::sleep(JOB_EVERY);
    }
}

fn consume(queue: &Mutex<mpsc::Receiver<u64>>, consuming: &AtomicBool, working: &AtomicBool) {
    while working.load(Ordering::Relaxed) {
        if consuming.load(Ordering::Relaxed) {
            let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            // A short wait, so that a consumer that is lost lets go of the queue.
            if queue.recv_timeout(JOB_EVERY) == Err(mpsc::RecvTimeoutError::Disconnected) {
                break;
            }
        } else {
            thread::sleep(JOB_EVERY);
        }
    }
}

/// Loses the first consumer that consumes, or takes back the first that was lost.
fn turn(consumers: &[Consumer], lose: bool) {
    let found = consumers.iter().position(|consumer| {
        consumer
            .consuming
            .compare_exchange(lose, !lose, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    });
    match (found, lose) {
        (Some(number), true) => tracing::info!("lost consumer demo-{number}"),
        (Some(number), false) => tracing::info!("took consumer demo-{number} back"),
        (None, true) => tracing::info!("no consumer is left to lose"),
        (None, false) => tracing::info!("no consumer was lost"),
    }
}
