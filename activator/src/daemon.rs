//! `run`: opens the activator, serves commands until a signal ends it, and leaves the hosts running.

use std::env;
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde_json::json;
use tickmark_activator::config::Config;
use tickmark_activator::gate::{Context, Ended};
use tickmark_activator::{Activator, Answer, BuildName, Error, HostName, Options, Step};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{interval_at, timeout};

use crate::command::{CHANGED_NOTHING, NOTHING_SERVES, UNKNOWN, USAGE};
use crate::control::{
    CLIENTS, Envelope, PULSE, REQUEST, Reply, Request, VERSION, WRITE, listen_at, read_line,
};

/// How much of a log is sent at once.
const CHUNK: usize = 32 * 1024;

/// How often a log that is followed is looked at.
const LOG_POLL: Duration = Duration::from_millis(100);

/// Why the daemon did not run: the status to exit with, and the reason.
pub(crate) type Failure = (u8, String);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Another daemon has the state directory or the socket, or one of both cannot be made.
pub(crate) async fn run(config: Config, socket: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| (CHANGED_NOTHING, format!("cannot handle signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;

    // The lease comes first: without it this daemon may not take another's socket.
    let activator = Activator::open(config).await.map_err(|error| {
        let exit = if error.is_usage() { USAGE } else { CHANGED_NOTHING };
        (exit, said(&error))
    })?;
    let listener = match listen_at(socket) {
        Ok(listener) => listener,
        Err(why) => {
            activator.close().await;
            return Err((CHANGED_NOTHING, why));
        }
    };
    let activator = Arc::new(activator);
    let hosts: Vec<&str> = activator.hosts().map(HostName::as_str).collect();
    tracing::info!(socket = %socket.display(), hosts = hosts.join(","), "serving commands");
    notify("READY=1");

    let (ends, ended) = watch::channel(false);
    let places = Arc::new(Semaphore::new(CLIENTS));
    let mut clients = JoinSet::new();
    loop {
        // A place first: what waits for one waits in the socket's queue.
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let (activator, ended) = (Arc::clone(&activator), ended.clone());
                    clients.spawn(async move {
                        let _place = place;
                        if let Err(error) = serve(stream, &activator, ended).await {
                            tracing::debug!("a command went away: {error}");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a command: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = clients.join_next() => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => tracing::info!(
                "SIGHUP: the configuration is read at the start; restart the daemon to change it, \
                 the hosts serve on meanwhile"
            ),
        }
    }
    tracing::info!("ending; the hosts serve on");
    notify("STOPPING=1");
    // Before the lease is given up: the next daemon makes its own.
    let _gone = std::fs::remove_file(socket);
    drop(listener);
    let _nobody = ends.send(true);
    while clients.join_next().await.is_some() {}
    if let Ok(activator) = Arc::try_unwrap(activator) {
        activator.close().await;
    }
    Ok(())
}

/// Tells the service manager, where one asked for it.
fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::ffi::OsStrExt as _;
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => std::os::unix::net::SocketAddr::from_abstract_name(name),
        None => std::os::unix::net::SocketAddr::from_pathname(&name),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot tell the service manager {state}: {error}");
    }
}

/// An error with all its causes, on one line.
fn said(error: &Error) -> String {
    error.to_string()
}

/// One command.
async fn serve(
    stream: UnixStream,
    activator: &Activator,
    ended: watch::Receiver<bool>,
) -> io::Result<()> {
    let (reader, writer) = stream.into_split();
    let mut client =
        Client { reader: BufReader::new(reader), writer, started: Instant::now(), ended };
    let line = match timeout(REQUEST, read_line(&mut client.reader)).await {
        Ok(Ok(Some(line))) => line,
        Ok(Ok(None)) => return Ok(()),
        Ok(Err(error)) => return client.fail(USAGE, error.to_string()).await,
        Err(_) => {
            let why = format!("no request came within {} s", REQUEST.as_secs());
            return client.fail(USAGE, why).await;
        }
    };
    let request = serde_json::from_str::<Envelope>(&line)
        .map_err(|error| error.to_string())
        .and_then(|envelope| match envelope.version {
            VERSION => {
                serde_json::from_value::<Request>(envelope.request).map_err(|e| e.to_string())
            }
            other => Err(format!(
                "this daemon speaks version {VERSION}, the command version {other}: use the \
                 command of the daemon's release"
            )),
        });
    match request {
        Ok(request) => client.handle(activator, request).await,
        Err(why) => client.fail(USAGE, format!("not a request: {why}")).await,
    }
}

struct Client {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    started: Instant,
    /// The daemon ends.
    ended: watch::Receiver<bool>,
}

impl Client {
    async fn handle(mut self, activator: &Activator, request: Request) -> io::Result<()> {
        let deadline = |ms: Option<u64>| ms.map(Duration::from_millis);
        let context = Context::new();
        let options = |deadline| Options { deadline, context: context.clone() };
        match request {
            Request::Deploy { host, path, build, deadline_ms, dry_run } => {
                let known = activator.status(&host).await;
                if let Err(error) = known {
                    return self.failed(activator, &host, &error).await;
                }
                if dry_run {
                    return match rehearse(activator, &host, &path, build).await {
                        Ok(text) => self.send(&Reply::Report(text.into())).await,
                        Err(error) => self.failed(activator, &host, &error).await,
                    };
                }
                let options = options(deadline(deadline_ms));
                let done = activator.deploy(&host, &path, build, options);
                self.watch(activator, &host, done, &context).await
            }
            Request::Swap { host, build, deadline_ms } => {
                let done = activator.swap(&host, build, options(deadline(deadline_ms)));
                self.watch(activator, &host, done, &context).await
            }
            Request::Rollback { host } => {
                let done = activator.rollback(&host, options(None));
                self.watch(activator, &host, done, &context).await
            }
            Request::Restart { host } => {
                let done = activator.restart(&host, options(None));
                self.watch(activator, &host, done, &context).await
            }
            Request::Stop { host } => {
                self.watch(activator, &host, activator.stop(&host), &context).await
            }
            Request::Wake { host } => {
                let done = activator.wake(&host, options(None));
                self.watch(activator, &host, done, &context).await
            }
            Request::Hold { host, build: Some(build) } => {
                let done = activator.hold(&host, build, options(None));
                self.watch(activator, &host, done, &context).await
            }
            Request::Hold { host, build: None } => match activator.release(&host).await {
                Ok(held) => {
                    let text = match held {
                        Some(build) => format!("{host}: no longer held at {build}"),
                        None => format!("{host}: was not held"),
                    };
                    self.send(&Reply::Report(text.into())).await
                }
                Err(error) => self.failed(activator, &host, &error).await,
            },
            Request::Builds { host, prune: Some(keep) } => {
                match activator.prune(&host, keep).await {
                    Ok(removed) => self.send(&Reply::Report(json!({ "removed": removed }))).await,
                    Err(error) => self.failed(activator, &host, &error).await,
                }
            }
            Request::Builds { host, prune: None } => match activator.builds(&host).await {
                Ok(builds) => self.send(&Reply::Report(json!({ "builds": builds }))).await,
                Err(error) => self.failed(activator, &host, &error).await,
            },
            Request::Status { host } => {
                let mut found = Vec::new();
                for name in activator.hosts().filter(|name| host.iter().all(|host| host == *name)) {
                    match activator.status(name).await {
                        Ok(status) => found.push(serde_json::to_value(status)?),
                        Err(error) => return self.failed(activator, name, &error).await,
                    }
                }
                if let (Some(host), true) = (&host, found.is_empty())
                    && let Err(error) = activator.status(host).await
                {
                    return self.failed(activator, host, &error).await;
                }
                self.send(&Reply::Report(found.into())).await
            }
            Request::Logs { host, follow, lines } => match activator.log(&host) {
                Ok(path) => self.log(&path, follow, lines).await,
                Err(error) => self.failed(activator, &host, &error).await,
            },
        }
    }

    /// Sees an operation through: its steps as they pass, a pulse, its answer. Where the command
    /// goes away its context ends: what has not started never does, what warms is stopped, and what
    /// has switched goes on.
    async fn watch(
        mut self,
        activator: &Activator,
        host: &HostName,
        operation: impl Future<Output = Result<Answer, Error>>,
        context: &Context,
    ) -> io::Result<()> {
        let mut steps = activator.steps();
        let mut pulse = interval_at(tokio::time::Instant::now() + PULSE, PULSE);
        let mut ended = self.ended.clone();
        tokio::pin!(operation);
        loop {
            let mut more = [0];
            tokio::select! {
                biased;
                step = steps.recv() => match step {
                    Ok(step) if step.host == *host => self.step(&step).await?,
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        let text = format!("{missed} steps went by too fast to be shown");
                        self.said("", &text).await?;
                    }
                    Err(broadcast::error::RecvError::Closed) => {}
                },
                answer = &mut operation => {
                    // What was said before the answer is shown before it.
                    while let Ok(step) = steps.try_recv() {
                        if step.host == *host {
                            self.step(&step).await?;
                        }
                    }
                    return match answer {
                        Ok(Answer { outcome, error, build }) => {
                            let error = error.as_ref().map(said);
                            self.send(&Reply::Answer { outcome, build, error }).await
                        }
                        Err(error) => self.failed(activator, host, &error).await,
                    };
                }
                () = over(&mut ended) => {
                    let why = "the daemon ends; the hosts serve on: ask `status` once it is back";
                    return self.fail(UNKNOWN, why.into()).await;
                }
                _ = pulse.tick() => self.send(&Reply::Pulse).await?,
                // A command says nothing more; what can be read is its end.
                _ = self.reader.read(&mut more) => {
                    let context = context.clone();
                    tokio::task::spawn_blocking(move || context.end(Ended::Cancelled)).await?;
                    return Ok(());
                }
            }
        }
    }

    async fn step(&mut self, step: &Step) -> io::Result<()> {
        self.said(&step.state.to_string(), &step.text).await
    }

    async fn said(&mut self, state: &str, text: &str) -> io::Result<()> {
        let at_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.send(&Reply::Step { at_ms, state: state.to_owned(), text: text.to_owned() }).await
    }

    /// A log from its last lines on, and what is appended to it.
    async fn log(mut self, path: &Path, follow: bool, lines: u64) -> io::Result<()> {
        let mut file = match open_log(path).await {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let why = format!("cannot read {}: {error}", path.display());
                return self.fail(CHANGED_NOTHING, why).await;
            }
        };
        self.send(&Reply::Log).await?;
        if let Some(file) = &mut file {
            let start = last_lines(file, lines).await?;
            file.seek(SeekFrom::Start(start)).await?;
        }
        let mut ended = self.ended.clone();
        let mut chunk = vec![0; CHUNK];
        loop {
            if let Some(open) = &mut file {
                let length = open.read(&mut chunk).await?;
                if length > 0 {
                    timeout(WRITE, self.writer.write_all(&chunk[..length])).await??;
                    continue;
                }
            }
            if !follow {
                return Ok(());
            }
            let mut more = [0];
            tokio::select! {
                () = tokio::time::sleep(LOG_POLL) => {}
                () = over(&mut ended) => return Ok(()),
                _ = self.reader.read(&mut more) => return Ok(()),
            }
            if rotated(file.as_mut(), path).await {
                file = open_log(path).await.ok();
            }
        }
    }

    /// An error of the library, by which nothing was asked of the host.
    async fn failed(
        &mut self,
        activator: &Activator,
        host: &HostName,
        error: &Error,
    ) -> io::Result<()> {
        let exit = match activator.status(host).await {
            _ if error.is_usage() => USAGE,
            Err(_) => USAGE,
            Ok(status) if status.serves.is_some() => CHANGED_NOTHING,
            Ok(_) => NOTHING_SERVES,
        };
        self.fail(exit, said(error)).await
    }

    async fn fail(&mut self, exit: u8, message: String) -> io::Result<()> {
        self.send(&Reply::Failure { exit, message }).await
    }

    async fn send(&mut self, reply: &Reply) -> io::Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        timeout(WRITE, self.writer.write_all(&line)).await?
    }
}

/// A log, and nothing that is read for ever or not at all in its place.
async fn open_log(path: &Path) -> io::Result<tokio::fs::File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut options = tokio::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(nonblocking).open(path).await?;
    match file.metadata().await?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Waits until the daemon ends.
async fn over(ended: &mut watch::Receiver<bool>) {
    let _gone = ended.wait_for(|ended| *ended).await;
}

/// Where the last `lines` lines begin.
async fn last_lines(file: &mut tokio::fs::File, lines: u64) -> io::Result<u64> {
    let mut at = file.seek(SeekFrom::End(0)).await?;
    if lines == 0 {
        return Ok(at);
    }
    let mut left = lines;
    let mut chunk = vec![0; CHUNK];
    let mut first = true;
    while at > 0 {
        let length = at.min(CHUNK as u64);
        at = file.seek(SeekFrom::Start(at - length)).await?;
        let part = &mut chunk[..usize::try_from(length).unwrap_or(CHUNK)];
        file.read_exact(part).await?;
        for (index, byte) in part.iter().enumerate().rev() {
            // The end of the last line begins no other.
            if *byte == b'\n' && !std::mem::take(&mut first) {
                left = left.saturating_sub(1);
                if left == 0 {
                    return Ok(at + index as u64 + 1);
                }
            }
            first = false;
        }
    }
    Ok(0)
}

/// The path leads to another file by now, or the file was cut off.
async fn rotated(file: Option<&mut tokio::fs::File>, path: &Path) -> bool {
    let Ok(there) = tokio::fs::metadata(path).await else { return false };
    let Some(file) = file else { return true };
    let Ok(here) = file.metadata().await else { return true };
    let at = file.stream_position().await.unwrap_or(0);
    (there.dev(), there.ino()) != (here.dev(), here.ino()) || here.len() < at
}

/// What a deploy would do, or the error that it would end with. Changes nothing.
async fn rehearse(
    activator: &Activator,
    host: &HostName,
    path: &Path,
    build: Option<BuildName>,
) -> Result<String, Error> {
    let status = activator.status(host).await?;
    let name = activator.would_stage(host, path, build).await?;
    let mut text = format!("{host}: would deploy {} as build {name}", path.display());
    match status.generations.iter().find(|one| Some(one.number) == status.serves) {
        Some(serving) => {
            text += &format!(" in place of build {}, generation {}", serving.build, serving.number);
        }
        None => text += "; nothing serves now",
    }
    if let Some(hold) = &status.hold {
        text += &format!("; but the host is held at {hold}, so it would be refused");
    }
    if let Some(fence) = &status.fence {
        text += &format!("; but a fence allows no launch: {fence}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_is_shown_from_its_last_lines_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for (text, lines, shown) in [
            ("", 5, ""),
            ("one\n", 5, "one\n"),
            ("one\ntwo\nthree\n", 2, "two\nthree\n"),
            ("one\ntwo\nthree", 2, "two\nthree"),
            ("one\ntwo\n", 0, ""),
            ("\n\n\n", 2, "\n\n"),
        ] {
            std::fs::write(&path, text).unwrap();
            let mut file = tokio::fs::File::open(&path).await.unwrap();
            let start = usize::try_from(last_lines(&mut file, lines).await.unwrap()).unwrap();
            assert_eq!(&text[start..], shown, "{lines} of {text:?}");
        }
        let line = format!("{}\n", "x".repeat(CHUNK));
        std::fs::write(&path, line.repeat(3)).unwrap();
        let mut file = tokio::fs::File::open(&path).await.unwrap();
        let start = last_lines(&mut file, 2).await.unwrap();
        assert_eq!(start, line.len() as u64);
    }
}
