//! A RabbitMQ of a test's own: its ports, its node name, its files; on the loopback device alone,
//! and ended by process id.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lapin::{Connection, ConnectionProperties};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// Not the wrapper on PATH, which changes the user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

const BOOT: Duration = Duration::from_secs(120);

/// Why these tests cannot run here.
pub(crate) fn missing() -> Option<String> {
    (!Path::new(SERVER).exists()).then(|| "rabbitmq-server is not installed".to_owned())
}

pub(crate) struct Broker {
    home: TempDir,
    ports: Ports,
    epmd: Child,
    server: Option<Child>,
}

#[derive(Clone, Copy)]
struct Ports {
    amqp: u16,
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
        let metrics = match plugins {
            "" => String::new(),
            _ => {
                format!("prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {}\n", ports.metrics)
            }
        };
        let settings = format!("{settings}\n{metrics}");
        fs::write(home.path().join("rabbitmq.conf"), settings).unwrap();
        let mut broker = Broker { home, ports, epmd, server: None };
        broker.start_again();
        broker
    }

    pub(crate) fn uri(&self) -> String {
        self.uri_for("guest", "guest")
    }

    pub(crate) fn uri_for(&self, user: &str, password: &str) -> String {
        format!("amqp://{user}:{password}@127.0.0.1:{}", self.ports.amqp)
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports.amqp
    }

    pub(crate) fn metrics_port(&self) -> u16 {
        self.ports.metrics
    }

    /// Starts the killed broker, with what it had on disk, and waits until it answers.
    pub(crate) fn start_again(&mut self) {
        assert!(self.server.is_none(), "still running");
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
        self.server = Some(server);
        let begun = Instant::now();
        while !self.answers() {
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < BOOT,
                "the broker does not start: {}",
                fs::read_to_string(self.log()).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// SIGKILL, to all of it.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
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
        let uri = self.uri();
        runtime().block_on(async {
            let connection =
                Connection::connect(&uri, ConnectionProperties::default()).await.unwrap();
            let said = say(connection.create_channel().await.unwrap()).await;
            let _ended = connection.close(200, "".into()).await;
            said
        })
    }

    fn answers(&self) -> bool {
        let uri = self.uri();
        runtime().block_on(async {
            let connected = Connection::connect(&uri, ConnectionProperties::default());
            match tokio::time::timeout(Duration::from_secs(5), connected).await {
                Ok(Ok(connection)) => {
                    let _ended = connection.close(200, "".into()).await;
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
        let mut command = Command::new(program);
        command
            .env("HOME", home)
            .env("RABBITMQ_NODENAME", format!("tickmark{amqp}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", amqp.to_string())
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
                "-kernel inet_dist_use_interface {127,0,0,1}",
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
    /// Nothing listens on them now; all four are held until all are known.
    fn free() -> Ports {
        let held = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [amqp, distribution, names, metrics] =
            held.each_ref().map(|listener| listener.local_addr().unwrap().port());
        Ports { amqp, distribution, names, metrics }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
