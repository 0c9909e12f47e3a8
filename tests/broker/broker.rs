//! A RabbitMQ of the tests' own: its ports, its node name, its files; on the loopback device alone,
//! and ended by process id. Those that nothing is done to share one.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::{Connection, ConnectionProperties};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::time::timeout;

/// Not the wrapper on PATH, which changes the user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// One takes seven seconds of a processor; those that are killed on purpose may start at once.
const BOOT: Duration = Duration::from_secs(180);

/// The tests begin together, but their brokers boot one after another: a dozen at once on two
/// processors need minutes, and every test beside them waits as long.
static BOOTING: Mutex<()> = Mutex::new(());

/// To one question, of a broker that runs.
const ANSWER: Duration = Duration::from_secs(30);
const CLOSE: Duration = Duration::from_secs(1);

static SHARED: Mutex<Option<Arc<Broker>>> = Mutex::new(None);

/// Why these tests cannot run here.
pub(crate) fn missing() -> Option<String> {
    (!Path::new(SERVER).exists()).then(|| "rabbitmq-server is not installed".to_owned())
}

pub(crate) struct Broker {
    home: TempDir,
    ports: Ports,
    epmd: Child,
    server: Mutex<Option<Child>>,
}

#[derive(Clone, Copy)]
struct Ports {
    /// For the tests' own questions: what lies between worker and broker does not lie here.
    amqp: u16,
    /// For the workers.
    work: u16,
    /// For a worker that is cut off.
    cut: u16,
    distribution: u16,
    names: u16,
    metrics: u16,
}

impl Broker {
    /// A broker that answers.
    pub(crate) fn start() -> Broker {
        Broker::start_with("", "", "")
    }

    /// `settings` are lines of `rabbitmq.conf`, `advanced` the `rabbit` part of
    /// `advanced.config`, `plugins` a list of names.
    pub(crate) fn start_with(settings: &str, advanced: &str, plugins: &str) -> Broker {
        let home = tempfile::tempdir().unwrap();
        let ports = Ports::free();
        // Started here rather than by Erlang, which would leave it running.
        let epmd = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &ports.names.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        fs::write(home.path().join("plugins"), format!("[{plugins}].\n")).unwrap();
        fs::write(home.path().join("advanced.config"), format!("[{{rabbit, [{advanced}]}}].\n"))
            .unwrap();
        let Ports { amqp, work, cut, metrics, .. } = ports;
        let metrics = match plugins {
            "" => String::new(),
            _ => format!("prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {metrics}\n"),
        };
        let listeners: String = [amqp, work, cut]
            .iter()
            .enumerate()
            .map(|(number, port)| format!("listeners.tcp.{number} = 127.0.0.1:{port}\n"))
            .collect();
        fs::write(home.path().join("rabbitmq.conf"), format!("{settings}\n{listeners}{metrics}"))
            .unwrap();
        let broker = Broker { home, ports, epmd, server: Mutex::new(None) };
        // One that did not start leaves nothing behind that the next would miss.
        let turn = BOOTING.lock().unwrap_or_else(PoisonError::into_inner);
        broker.start_again();
        drop(turn);
        broker
    }

    /// The one for tests that leave it alone but for queues of their own; it exports metrics.
    pub(crate) fn shared() -> Arc<Broker> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || Arc::new(Broker::start_with("", "", "rabbitmq_prometheus"));
        Arc::clone(shared.get_or_insert_with(start))
    }

    /// A static is never dropped.
    pub(crate) fn end_shared() {
        drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn uri(&self) -> String {
        self.uri_for("guest", "guest")
    }

    pub(crate) fn uri_for(&self, user: &str, password: &str) -> String {
        format!("amqp://{user}:{password}@127.0.0.1:{}", self.ports.work)
    }

    /// The workers'.
    pub(crate) fn port(&self) -> u16 {
        self.ports.work
    }

    /// Another, which can be silenced without the rest.
    pub(crate) fn cut_port(&self) -> u16 {
        self.ports.cut
    }

    pub(crate) fn metrics_port(&self) -> u16 {
        self.ports.metrics
    }

    /// Starts the killed broker, with what it had on disk, and waits until it answers.
    pub(crate) fn start_again(&self) {
        let mut running = self.server.lock().unwrap();
        assert!(running.is_none(), "still running");
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let server = self
            .command(SERVER)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            // Erlang is a child of a shell: they are killed together.
            .process_group(0)
            .spawn()
            .unwrap();
        let server = running.insert(server);
        let begun = Instant::now();
        while !self.answers() {
            let ended = server.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < BOOT,
                "the broker does not start: {}",
                fs::read_to_string(self.log()).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// SIGKILL, to all of it.
    pub(crate) fn kill(&self) {
        let mut running = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut server) = running.take() {
            let _gone = kill_process_group(Pid::from_child(&server), Signal::KILL);
            let _reaped = server.wait();
        }
    }

    pub(crate) fn delete_queue(&self, queue: &str) {
        self.talk(async |channel| {
            channel.queue_delete(queue.into(), Default::default()).await.unwrap();
        });
    }

    pub(crate) fn publish(&self, queue: &str, messages: usize) {
        self.talk(async |channel| {
            for _ in 0..messages {
                channel
                    .basic_publish(
                        "".into(),
                        queue.into(),
                        Default::default(),
                        b"job",
                        Default::default(),
                    )
                    .await
                    .unwrap();
            }
        });
    }

    /// Consumers of `queue` and messages that wait in it; `None` where there is no such queue.
    pub(crate) fn queue(&self, queue: &str) -> Option<(u32, u32)> {
        self.talk(async |channel| {
            let passive =
                lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
            let found = channel.queue_declare(queue.into(), passive, Default::default()).await;
            found.ok().map(|found| (found.consumer_count(), found.message_count()))
        })
    }

    fn talk<T>(&self, say: impl AsyncFnOnce(lapin::Channel) -> T) -> T {
        let uri = self.own_uri();
        runtime().block_on(async {
            let talking = async {
                let connection =
                    Connection::connect(&uri, ConnectionProperties::default()).await.unwrap();
                (say(connection.create_channel().await.unwrap()).await, connection)
            };
            let (said, connection) =
                timeout(ANSWER, talking).await.expect("an answer from the broker");
            // lapin 4.12 sometimes has closed the socket and waits for ever.
            let _ended = timeout(CLOSE, connection.close(200, "".into())).await;
            said
        })
    }

    fn own_uri(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.ports.amqp)
    }

    fn answers(&self) -> bool {
        let uri = self.own_uri();
        runtime().block_on(async {
            let connected = Connection::connect(&uri, ConnectionProperties::default());
            match timeout(Duration::from_secs(5), connected).await {
                Ok(Ok(connection)) => {
                    let _ended = timeout(CLOSE, connection.close(200, "".into())).await;
                    true
                }
                _ => false,
            }
        })
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("server.log")
    }

    fn command(&self, program: &str) -> Command {
        let Ports { amqp, distribution, names, .. } = self.ports;
        let home = self.home.path();
        // The workers and what watches them come first: their ticks are what is measured.
        let mut command = Command::new("nice");
        command
            .args(["-n", "10", program])
            .env("HOME", home)
            .env("RABBITMQ_NODENAME", format!("tickmark{amqp}@localhost"))
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", names.to_string())
            .env("RABBITMQ_MNESIA_BASE", home.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", home.join("log"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", home.join("plugins"))
            .env("RABBITMQ_CONFIG_FILE", home.join("rabbitmq"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", home.join("advanced.config"))
            // The machine's own settings are not ours.
            .env("RABBITMQ_CONF_ENV_FILE", home.join("absent"))
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                // One scheduler that does not wait busily: seven brokers share two processors.
                "-kernel inet_dist_use_interface {127,0,0,1} \
                 +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
            );
        command
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        let _ended = self.epmd.kill();
        let _reaped = self.epmd.wait();
    }
}

impl Ports {
    /// Nothing listens on them now; all are held until all are known. They are below those that a
    /// connection gets for its own end (ip(7): from 32768 on), so that a broker which was killed finds
    /// its own again.
    fn free() -> Ports {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        let held = [(); 6].map(|()| {
            loop {
                let next = std::process::id() * 97 + TRIED.fetch_add(1, Ordering::Relaxed);
                let port = u16::try_from(20_000 + next % 10_000).unwrap();
                if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
                    return listener;
                }
            }
        });
        let [amqp, work, cut, distribution, names, metrics] =
            held.each_ref().map(|listener| listener.local_addr().unwrap().port());
        Ports { amqp, work, cut, distribution, names, metrics }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
