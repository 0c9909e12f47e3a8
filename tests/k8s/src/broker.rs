//! A RabbitMQ on this machine, where the pods reach it: ports, node name and files of its own, a
//! virtual host for each scenario, ended by process id.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::{Channel, Connection, ConnectionProperties};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::answer::{Doing as _, Stop};

/// Not the wrapper on PATH, which changes the user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const USER: &str = "verify";
const BOOT: Duration = Duration::from_secs(120);

/// Why there can be no broker here.
pub(crate) fn missing() -> Option<String> {
    if Path::new(SERVER).exists() {
        return None;
    }
    Some(format!("there is no {SERVER} (Debian: rabbitmq-server)"))
}

pub(crate) struct Broker {
    home: TempDir,
    /// The address that the pods call it by.
    pub(crate) address: IpAddr,
    listens_on: IpAddr,
    ports: Ports,
    password: String,
    epmd: Child,
    server: Mutex<Option<Child>>,
    runtime: Runtime,
}

#[derive(Clone, Copy)]
struct Ports {
    amqp: u16,
    distribution: u16,
    names: u16,
    metrics: u16,
}

impl Broker {
    /// A broker that answers, with these virtual hosts.
    pub(crate) fn start(
        address: IpAddr,
        hosts: &[String],
        interrupted: &AtomicBool,
    ) -> Result<Broker, Stop> {
        let home = tempfile::Builder::new().prefix("tickmark-verify-broker.").tempdir();
        let home = home.doing("make a directory for the broker")?;
        // An address of another machine's, such as a virtual one of Docker Desktop, leads to this
        // machine's loopback.
        let is_ours = TcpListener::bind((address, 0)).is_ok();
        let listens_on = if is_ours { address } else { IpAddr::from([127, 0, 0, 1]) };
        let ports = Ports::free(listens_on)?;
        let seed = fs::read_to_string("/proc/sys/kernel/random/uuid").doing("make a password")?;
        let password = seed.trim().replace('-', "");
        let permissions: Vec<_> = hosts
            .iter()
            .map(|host| {
                json!({ "user": USER, "vhost": host, "configure": ".*", "write": ".*", "read": ".*" })
            })
            .collect();
        let vhosts: Vec<_> = hosts.iter().map(|host| json!({ "name": host })).collect();
        let definitions = json!({
            "vhosts": vhosts,
            "users": [{ "name": USER, "password": password, "tags": "" }],
            "permissions": permissions,
        });
        let write = |name: &str, text: String| {
            let file = home.path().join(name);
            fs::write(&file, text).doing(format_args!("write {}", file.display()))
        };
        write("definitions.json", definitions.to_string())?;
        write("plugins", "[rabbitmq_prometheus].\n".to_owned())?;
        write(
            "rabbitmq.conf",
            format!(
                "loopback_users = none\n\
                 load_definitions = {}\n\
                 collect_statistics_interval = 1000\n\
                 prometheus.tcp.ip = 127.0.0.1\n\
                 prometheus.tcp.port = {}\n",
                home.path().join("definitions.json").display(),
                ports.metrics
            ),
        )?;
        // Started here rather than by Erlang, which would leave it running.
        let epmd = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &ports.names.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .doing("run epmd")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .doing("start a runtime")?;
        let server = Mutex::new(None);
        let broker = Broker { home, address, listens_on, ports, password, epmd, server, runtime };
        broker.start_again(interrupted)?;
        Ok(broker)
    }

    /// What a worker is told.
    pub(crate) fn uri(&self, host: &str) -> String {
        self.uri_with(self.address, host, &self.password)
    }

    /// The same with a password that is not right.
    pub(crate) fn uri_refused(&self, host: &str) -> String {
        self.uri_with(self.address, host, "wrong")
    }

    fn uri_with(&self, address: IpAddr, host: &str, password: &str) -> String {
        format!("amqp://{USER}:{password}@{address}:{}/{host}", self.ports.amqp)
    }

    /// Starts the killed broker, with what it had on disk, and waits until it answers.
    pub(crate) fn start_again(&self, interrupted: &AtomicBool) -> Result<(), Stop> {
        let log = self.home.path().join("server.log");
        let file = File::options().create(true).append(true).open(&log).doing("open its log")?;
        let Ports { amqp, distribution, names, .. } = self.ports;
        let home = self.home.path();
        let child = Command::new(SERVER)
            .env("HOME", home)
            .env("RABBITMQ_NODENAME", format!("tickmark{amqp}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", self.listens_on.to_string())
            .env("RABBITMQ_NODE_PORT", amqp.to_string())
            .env("RABBITMQ_DIST_PORT", distribution.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", names.to_string())
            .env("RABBITMQ_MNESIA_BASE", home.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", home.join("log"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", home.join("plugins"))
            .env("RABBITMQ_CONFIG_FILE", home.join("rabbitmq"))
            // The machine's own settings are not ours.
            .env("RABBITMQ_CONF_ENV_FILE", home.join("absent"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", home.join("absent"))
            // It shares few processors with a cluster: no thread of it waits by spinning.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none",
            )
            .stdin(Stdio::null())
            .stdout(file.try_clone().doing("open its log")?)
            .stderr(file)
            // Erlang is a child of a shell: they are killed together.
            .process_group(0)
            .spawn()
            .doing("run rabbitmq-server")?;
        *self.server() = Some(child);
        let begun = Instant::now();
        while !self.answers() {
            let ended = match self.server().as_mut() {
                Some(child) => child.try_wait().doing("wait for the broker")?.is_some(),
                None => true,
            };
            if ended || begun.elapsed() > BOOT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(Stop::Failed(format!("the broker does not start: {said}")));
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    /// SIGKILL, to all of it.
    pub(crate) fn kill(&self) {
        if let Some(mut server) = self.server().take() {
            if let Ok(group) = i32::try_from(server.id()) {
                let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
            }
            let _reaped = server.wait();
        }
    }

    fn server(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn delete_queue(&self, host: &str, queue: &str) -> Result<(), Stop> {
        self.talk(host, async |channel| {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.map(drop)
        })
    }

    pub(crate) fn publish(&self, host: &str, queue: &str, messages: usize) -> Result<(), Stop> {
        self.talk(host, async |channel| {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            for _ in 0..messages {
                let options = BasicPublishOptions::default();
                channel
                    .basic_publish("".into(), queue.into(), options, b"job", Default::default())
                    .await?
                    .await?;
            }
            Ok(())
        })
    }

    /// How many consume `queue`; `None` where there is no such queue.
    pub(crate) fn consumers(&self, host: &str, queue: &str) -> Result<Option<u32>, Stop> {
        self.talk(host, async |channel| Ok(count(&channel, queue).await.ok()))
    }

    /// Counts again and again, on one connection, until `done`; the counts in a row, each only where
    /// it differs from the one before it.
    pub(crate) fn follow_consumers(
        &self,
        host: &str,
        queue: &str,
        done: impl Fn() -> bool,
    ) -> Result<Vec<u32>, Stop> {
        self.talk(host, async |channel| {
            let mut counts = Vec::new();
            while !done() {
                let now = count(&channel, queue).await?;
                if counts.last() != Some(&now) {
                    counts.push(now);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(counts)
        })
    }

    fn talk<T>(
        &self,
        host: &str,
        say: impl AsyncFnOnce(Channel) -> lapin::Result<T>,
    ) -> Result<T, Stop> {
        let uri = self.uri_with(self.listens_on, host, &self.password);
        self.runtime
            .block_on(async {
                let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
                let said = say(connection.create_channel().await?).await;
                let _ended = connection.close(200, "".into()).await;
                said
            })
            .doing("talk to the broker")
    }

    fn answers(&self) -> bool {
        if TcpStream::connect((self.listens_on, self.ports.amqp)).is_err() {
            return false;
        }
        // It opens its port before it has read the virtual hosts.
        self.get("/metrics").is_ok()
    }

    /// A page of the plugin's, for the path that the scrape configuration names.
    pub(crate) fn get(&self, path: &str) -> Result<String, Stop> {
        let page = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.ports.metrics))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            if answer.starts_with("HTTP/1.1 200") {
                return Ok(answer);
            }
            Err(std::io::Error::other(answer))
        };
        page().doing(format_args!("get {path} of the broker"))
    }
}

async fn count(channel: &Channel, queue: &str) -> lapin::Result<u32> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), passive, Default::default()).await?;
    Ok(found.consumer_count())
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        let _ended = self.epmd.kill();
        let _reaped = self.epmd.wait();
    }
}

impl Ports {
    /// Nothing listens on them now; all four are held until all are known. They are below those that a
    /// connection gets for its own end (ip(7): from 32768 on), so that a broker which was killed finds
    /// its own again.
    fn free(address: IpAddr) -> Result<Ports, Stop> {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut held = Vec::new();
        let mut free = |address| {
            let found = (0..10_000).find_map(|_| {
                let next = std::process::id() * 97 + TRIED.fetch_add(1, Ordering::Relaxed);
                let port = u16::try_from(20_000 + next % 10_000).ok()?;
                TcpListener::bind((address, port)).ok().map(|listener| (port, listener))
            });
            let (port, listener) = found.ok_or_else(|| Stop::failed("there is no free port"))?;
            held.push(listener);
            Ok::<_, Stop>(port)
        };
        Ok(Ports {
            amqp: free(address)?,
            distribution: free(loopback)?,
            names: free(loopback)?,
            metrics: free(loopback)?,
        })
    }
}
