//! The service under test: answers each connection to its socket with what it was sent and who it
//! is, leaves marks, and empties its accept queue before it closes. `FAULT` makes it a bad build.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tickmark::{ConsumerState, Liveness};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) fn run() -> ExitCode {
    if std::env::args().nth(2).as_deref() == Some("sidecar") {
        return sidecar();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve());
    ExitCode::SUCCESS
}

/// Leaves a note of what it is, and waits for its end.
fn sidecar() -> ExitCode {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let note = format!(
        "{} {} {}",
        variable("TICKMARK_GENERATION"),
        variable("TICKMARK_BUILD"),
        std::process::id()
    );
    // Beside the builds, where this one is.
    let directory = std::env::current_dir().unwrap();
    let path = directory.parent().unwrap().join("sidecar");
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, note).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    loop {
        std::thread::park();
    }
}

fn fault() -> String {
    std::env::var("FAULT").unwrap_or_default()
}

async fn serve() {
    let fault = fault();
    if fault == "die-at-once" {
        std::process::exit(3);
    }
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    if let Some(ms) = fault.strip_prefix("die-after-") {
        let ms = ms.trim_end_matches("-never-healthy");
        let ms = ms.parse().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(ms));
            std::process::exit(4);
        });
    }
    let listener = std::env::var_os("TICKMARK_SOCKET").map(bind);
    let healthy = Liveness::builder().consumers(1).tick(Duration::from_millis(5));
    let liveness = match &*fault {
        never if never.ends_with("never-healthy") => None,
        // As a worker whose marks were left by another launch, or by another container.
        "another-launch" => Some(healthy.environment(instead(Some("another"))).start().unwrap()),
        "another-container" => Some(healthy.environment(instead(None)).start().unwrap()),
        _ => Some(healthy.start().unwrap()),
    };
    let begun = std::time::Instant::now();
    let late = fault.strip_prefix("healthy-after-").map_or(0, |ms| ms.parse().unwrap());
    let ends = fault == "stops-ticking";
    let accepting = move || {
        let ms = begun.elapsed().as_millis();
        if ms < late || ends && ms > 300 {
            ConsumerState::Stopped
        } else {
            ConsumerState::Consuming
        }
    };
    let _registered = liveness.as_ref().map(|liveness| liveness.register("socket", accepting));
    if fault == "ignore-term" {
        loop {
            terminate.recv().await;
        }
    }
    let Some(listener) = listener else {
        terminate.recv().await;
        return;
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(answer(stream));
                }
            }
            _ = terminate.recv() => break,
        }
    }
    if let Some(liveness) = &liveness {
        liveness.stopping();
    }
    // Whoever connected before the end is answered: the queue is empty before the socket closes.
    let listener = listener.into_std().unwrap();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true).unwrap();
                answer(UnixStream::from_std(stream).unwrap()).await;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => {}
        }
    }
    drop(listener);
    // Those in flight.
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A canonical socket that a generation before left is this service's own to clear.
fn bind(path: std::ffi::OsString) -> UnixListener {
    let path = PathBuf::from(path);
    UnixListener::bind(&path).unwrap_or_else(|_| {
        std::fs::remove_file(&path).unwrap();
        UnixListener::bind(&path).unwrap()
    })
}

/// The marks directory of this launch, and another launch or none.
fn instead(launch: Option<&'static str>) -> impl Iterator<Item = (&'static str, &'static str)> {
    let marks: &'static str = std::env::var("TICKMARK_DIR").unwrap().leak();
    [("TICKMARK_DIR", marks)].into_iter().chain(launch.map(|token| ("TICKMARK_LAUNCH", token)))
}

async fn answer(mut stream: UnixStream) {
    let mut asked = [0; 8];
    if stream.read_exact(&mut asked).await.is_err() {
        return;
    }
    let generation = std::env::var("TICKMARK_GENERATION").unwrap_or_default();
    let build = std::env::var("TICKMARK_BUILD").unwrap_or_default();
    let text = format!("{} {generation} {build}\n", u64::from_ne_bytes(asked));
    let _gone = stream.write_all(text.as_bytes()).await;
    let _gone = stream.shutdown().await;
}
