//! One worker process: a consumer for each queue, its jobs, and the liveness that judges them.
//! SIGTERM drains; the other signals are the switches that make it ill.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, ErrorKind};
use tickmark::lapin::{Connection, Deliveries};
use tickmark::{Jobs, Liveness};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::options::Options;
use crate::switch::Switch;

/// How long a drained worker waits for the broker's goodbye.
const CLOSE: Duration = Duration::from_secs(2);

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = runtime(options.threads)?;
    runtime.block_on(work(options))
}

fn runtime(threads: usize) -> std::io::Result<Runtime> {
    match threads {
        1 => Builder::new_current_thread().enable_all().build(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

/// What a switch has turned on.
#[derive(Default)]
struct Illness {
    endless_jobs: AtomicBool,
    refuse_drain: AtomicBool,
}

/// A consumer, to be cancelled: what it has in hand it still works on.
#[derive(Clone)]
struct Subscribed {
    channel: Channel,
    tag: lapin::types::ShortString,
}

impl Subscribed {
    async fn cancel(&self) {
        let _ = self.channel.basic_cancel(self.tag.clone(), BasicCancelOptions::default()).await;
    }
}

async fn work(options: &Options) -> Result<(), Failure> {
    // Before anything slow: PID 1 has no default action, so an early SIGTERM would be lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let illness = Arc::new(Illness::default());
    let mut switches = Switches::new()?;

    let places = usize::from(options.prefetch) * options.queues.len();
    let mut settings =
        Liveness::builder().consumers(options.queues.len()).jobs(places, options.deadline);
    if let Some(grace) = options.recovery_grace {
        settings = settings.recovery_grace(grace);
    }
    if let Some(tick) = options.tick {
        settings = settings.tick(tick);
    }
    let liveness = settings.start()?;
    let _runtime = liveness.watch_runtime("tokio", &Handle::current());

    let connecting = connect(options);
    tokio::pin!(connecting);
    let connection = loop {
        tokio::select! {
            connection = &mut connecting => break connection?,
            // Nothing is subscribed yet, so nothing has to be drained.
            _ = terminate.recv() => {
                liveness.stopping();
                return Ok(());
            }
            Some(switch) = switches.next() => illness.take(switch, &mut Vec::new(), options).await,
        }
    };
    let (stop, stopping) = watch::channel(false);
    let mut consumers = JoinSet::new();
    let mut subscribed = Vec::new();
    for queue in &options.queues {
        let (channel, deliveries) = subscribe(&liveness, &connection, queue, options).await?;
        let consumer = Subscribed { channel, tag: deliveries.tag().clone() };
        subscribed.push(consumer.clone());
        let jobs = liveness.jobs().clone();
        let (illness, stopping) = (Arc::clone(&illness), stopping.clone());
        consumers.spawn(consume(consumer, deliveries, jobs, illness, options.job, stopping));
    }

    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            Some(switch) = switches.next() => illness.take(switch, &mut subscribed, options).await,
        }
    }

    liveness.stopping();
    tracing::info!("draining");
    stop.send_replace(true);
    while let Some(ended) = consumers.join_next().await {
        ended?;
    }
    if illness.refuse_drain.load(Ordering::Relaxed) {
        tracing::info!("draining for ever: this worker is stuck");
        std::future::pending::<()>().await;
    }
    // The broker may be away, and lapin 4.12 sometimes has closed the socket and waits for ever.
    let _ = timeout(CLOSE, connection.close(200, "drained".into())).await;
    tracing::info!("drained");
    Ok(())
}

async fn connect(options: &Options) -> lapin::Result<Connection> {
    tickmark::lapin::properties()
        .configure(|properties| properties.with_connection_name("tickmark-lapin-worker".into()))
        .connect(&options.uri)
        .await
}

/// A channel of its own for each queue, so that an error on one leaves the others.
async fn subscribe(
    liveness: &Liveness,
    connection: &Connection,
    queue: &str,
    options: &Options,
) -> Result<(Channel, Deliveries), Failure> {
    let channel = connection.create_channel().await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), durable, FieldTable::default()).await?;
    channel.basic_qos(options.prefetch, BasicQosOptions::default()).await?;
    let deliveries = connection
        .watched_by(liveness)?
        .consume(&channel, queue, "", BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    Ok((channel, deliveries))
}

/// Works on each delivery in a task of its own, until there are no more or the worker stops, and
/// all have ended. The deliveries come back, and with them the registration: a consumer that is
/// lost must be seen.
async fn consume(
    consumer: Subscribed,
    mut deliveries: Deliveries,
    counted: Jobs,
    illness: Arc<Illness>,
    takes: Duration,
    mut stopping: watch::Receiver<bool>,
) -> Deliveries {
    let mut jobs = JoinSet::new();
    loop {
        let received = tokio::select! {
            biased;
            _ = stopping.wait_for(|&stopping| stopping) => break,
            received = deliveries.next() => received,
            Some(_ended) = jobs.join_next() => continue,
        };
        match received {
            Some(Ok(delivery)) => {
                let job = counted.start();
                let endless = illness.endless_jobs.load(Ordering::Relaxed);
                jobs.spawn(async move {
                    let _job = job;
                    if endless {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(takes).await;
                    // Lost with its channel: the broker delivers it again.
                    let _ = delivery.ack(BasicAckOptions::default()).await;
                });
            }
            Some(Err(error)) => tell(&error),
            None => break,
        }
    }
    let drained = async { while jobs.join_next().await.is_some() {} };
    tokio::select! {
        () = drained => {}
        // May wait for the broker; the jobs do not.
        never = unsubscribe(&consumer, &mut deliveries) => match never {},
    }
    deliveries
}

/// Takes nothing more, and gives back at once what was delivered and not begun: another worker is
/// free for it. Never ends.
async fn unsubscribe(consumer: &Subscribed, deliveries: &mut Deliveries) -> Infallible {
    consumer.cancel().await;
    while let Some(received) = deliveries.next().await {
        if let Ok(delivery) = received {
            let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
            let _ = delivery.nack(again).await;
        }
    }
    std::future::pending().await
}

fn tell(error: &lapin::Error) {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            tracing::warn!("consumer lost: {}: {}", error.get_id(), error.get_message());
        }
        _ => tracing::warn!("consumer lost: {error}"),
    }
}

impl Illness {
    async fn take(&self, switch: Switch, subscribed: &mut Vec<Subscribed>, options: &Options) {
        tracing::info!("{}", switch.name());
        match switch {
            Switch::StopConsumer => {
                if subscribed.is_empty() {
                    return;
                }
                subscribed.remove(0).cancel().await;
            }
            Switch::BlockRuntime => {
                // This is none of the pool's threads, where there is a pool.
                if options.threads > 1 {
                    for _ in 0..options.threads {
                        tokio::spawn(async { block() });
                    }
                }
                block();
            }
            Switch::EndlessJobs => self.endless_jobs.store(true, Ordering::Relaxed),
            Switch::RefuseDrain => self.refuse_drain.store(true, Ordering::Relaxed),
        }
    }
}

fn block() {
    loop {
        thread::park();
    }
}

struct Switches([(Switch, Signal); 4]);

impl Switches {
    fn new() -> std::io::Result<Switches> {
        let listen = |switch: Switch| {
            Ok::<_, std::io::Error>((
                switch,
                signal(SignalKind::from_raw(switch.signal().as_raw()))?,
            ))
        };
        let [stop, block, endless, refuse] = Switch::ALL;
        Ok(Switches([listen(stop)?, listen(block)?, listen(endless)?, listen(refuse)?]))
    }

    async fn next(&mut self) -> Option<Switch> {
        let [stop, block, endless, refuse] = &mut self.0;
        tokio::select! {
            Some(()) = stop.1.recv() => Some(stop.0),
            Some(()) = block.1.recv() => Some(block.0),
            Some(()) = endless.1.recv() => Some(endless.0),
            Some(()) = refuse.1.recv() => Some(refuse.0),
            else => None,
        }
    }
}
