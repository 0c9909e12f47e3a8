//! An HTTP server that the activator swaps without a gap: it binds the socket it is given, says by
//! its marks that it works, and at SIGTERM empties its accept queue before it closes.
//!
//! Its environment is what the activator gives each generation: `TICKMARK_SOCKET`, `TICKMARK_DIR`
//! and `TICKMARK_LAUNCH` (which the library reads), `TICKMARK_BUILD` and `TICKMARK_GENERATION`.

use std::convert::Infallible;
use std::env;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tickmark::{ConsumerState, Liveness};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

/// How long a client that connected before the end may take to send its request.
const FIRST: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let path =
        env::var_os("TICKMARK_SOCKET").map(PathBuf::from).ok_or("TICKMARK_SOCKET is unset")?;
    let mut terminate = signal(SignalKind::terminate())?;

    // Before the first consumer, as in any worker. What consumes here is the accept loop.
    let liveness = Liveness::builder().consumers(1).start()?;
    let listener = UnixListener::bind(&path)?;
    let accepting = Arc::new(AtomicBool::new(true));
    let accepts = Arc::clone(&accepting);
    let registered = liveness.register("http", move || match accepts.load(Ordering::Relaxed) {
        true => ConsumerState::Consuming,
        false => ConsumerState::Stopped,
    });
    tracing::info!("listening on {}", path.display());

    // Each connection holds a sender of the one, and sees by the other that it is to end.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let (ends, ending) = watch::channel(false);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => answer(stream, ending.clone(), open.clone()),
                // Out of descriptors, say. The next one may go; the mark goes stale if none does.
                Err(error) => {
                    tracing::warn!("cannot accept: {error}");
                    accepting.store(false, Ordering::Relaxed);
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            _ = terminate.recv() => break,
        }
        accepting.store(true, Ordering::Relaxed);
    }

    // The path leads to the successor by now. Whoever connected before is answered: the queue is
    // empty before the socket is closed, or those in it would lose their connection.
    liveness.stopping();
    drop(registered);
    let listener = listener.into_std()?;
    let mut late = 0_u32;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                answer(UnixStream::from_std(stream)?, ending.clone(), open.clone());
                late += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => tracing::warn!("cannot accept: {error}"),
        }
    }
    drop(listener);
    tracing::info!("draining, {late} of them from the accept queue");
    drop(open);
    ends.send_replace(true);
    let _none_is_left = all_closed.recv().await;
    tracing::info!("drained");
    Ok(())
}

/// Serves one connection beside the others. At the end it is answered what it asked; one that has not
/// asked yet has a moment for it, since hyper would close it at once.
fn answer(stream: UnixStream, mut ending: watch::Receiver<bool>, open: mpsc::Sender<()>) {
    let asked = Arc::new(Notify::new());
    let asks = Arc::clone(&asked);
    let service = service_fn(move |request| {
        asks.notify_one();
        hello(request)
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::spawn(async move {
        let _open = open;
        let mut connection = pin!(connection);
        let shut_down = async {
            drop(ending.wait_for(|ends| *ends).await);
            tokio::select! {
                () = asked.notified() => {}
                () = sleep(FIRST) => {}
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = shut_down => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a client went away: {error}");
        }
    });
}

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let of = |name| env::var(name).unwrap_or_else(|_| "none".to_owned());
    let (build, generation) = (of("TICKMARK_BUILD"), of("TICKMARK_GENERATION"));
    let text = format!("{} from build {build}, generation {generation}\n", request.uri().path());
    Ok(Response::new(Full::from(text)))
}
