//! A queue worker that the activator swaps without leaving its queue unserved. The queue is a
//! directory: a file in it is a job, claimed by renaming it, so that no two processes do the same.
//!
//! `QUEUE` names the directory, `JOB_MS` how long a job takes. At SIGTERM it claims no more jobs,
//! finishes the one it has, and ends; meanwhile its successor claims.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tickmark::{ConsumerState, Liveness};
use tokio::signal::unix::{SignalKind, signal};

/// How often an empty queue is looked at.
const IDLE: Duration = Duration::from_millis(50);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    match work().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn work() -> Result<(), Box<dyn std::error::Error>> {
    let queue = env::var_os("QUEUE").map(PathBuf::from).ok_or("QUEUE names no directory")?;
    let each = env::var("JOB_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(200);
    let each = Duration::from_millis(each);
    let mut terminate = signal(SignalKind::terminate())?;

    let liveness = Liveness::builder().consumers(1).start()?;
    fs::create_dir_all(queue.join("done"))?;
    let reads = Arc::new(AtomicBool::new(true));
    let readable = Arc::clone(&reads);
    // A queue that cannot be read is a broker that is away: it restarts nobody.
    let registered = liveness.register("queue", move || match readable.load(Ordering::Relaxed) {
        true => ConsumerState::Consuming,
        false => ConsumerState::Recovering,
    });
    tracing::info!("consuming {}", queue.display());

    loop {
        let claimed = claim(&queue);
        reads.store(claimed.is_ok(), Ordering::Relaxed);
        let wait = match claimed {
            Ok(Some(job)) => {
                let doing = liveness.jobs().start();
                // Not cut short by SIGTERM: a job that was claimed is done.
                tokio::time::sleep(each).await;
                fs::rename(&job, queue.join("done").join(job.file_name().unwrap_or_default()))?;
                drop(doing);
                tracing::info!("did {}", job.display());
                Duration::ZERO
            }
            Ok(None) => IDLE,
            Err(error) => {
                tracing::warn!("cannot read {}: {error}", queue.display());
                IDLE
            }
        };
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            () = tokio::time::sleep(wait) => {}
        }
    }
    liveness.stopping();
    drop(registered);
    tracing::info!("drained");
    Ok(())
}

/// Takes the first job by name, if there is one: whoever renames it has it.
fn claim(queue: &Path) -> io::Result<Option<PathBuf>> {
    let mut jobs: Vec<PathBuf> =
        fs::read_dir(queue)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    jobs.retain(|path| path.extension() == Some(OsStr::new("job")));
    jobs.sort();
    for job in jobs {
        let ours = job.with_extension(format!("claimed-{}", std::process::id()));
        match fs::rename(&job, &ours) {
            Ok(()) => return Ok(Some(ours)),
            // Another one was quicker.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
