//! An HTTP server that the activator swaps without a gap: it binds the socket it is given, says by
//! its marks that it works, and at SIGTERM empties its accept queue before it closes.
//!
//! Its environment is what the activator gives each generation: `TICKMARK_SOCKET`, `TICKMARK_DIR`
//! and `TICKMARK_LAUNCH` (which the library reads), `TICKMARK_BUILD` and `TICKMARK_GENERATION`.

use std::convert::Infallible;
use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tickmark::{ConsumerState, Liveness};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

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

    let connections = GracefulShutdown::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => answer(stream, &connections),
                // Out of descriptors, say. The next one may go; the mark goes stale if none does.
                Err(error) => {
                    tracing::warn!("cannot accept: {error}");
                    accepting.store(false, Ordering::Relaxed);
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
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
                answer(UnixStream::from_std(stream)?, &connections);
                late += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => tracing::warn!("cannot accept: {error}"),
        }
    }
    drop(listener);
    tracing::info!("draining, {late} of them from the accept queue");
    connections.shutdown().await;
    tracing::info!("drained");
    Ok(())
}

/// Serves one connection beside the others.
fn answer(stream: UnixStream, connections: &GracefulShutdown) {
    let connection =
        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(hello));
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
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
