//! Consumers of RabbitMQ through lapin 4. A task takes each delivery at once, so that the end of
//! a consumer and its errors are known when they happen, and not when the application next polls.
//!
//! ```no_run
//! # async fn work() -> Result<(), Box<dyn std::error::Error>> {
//! use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
//! use lapin::types::FieldTable;
//!
//! let liveness = tickmark::Liveness::builder().consumers(1).start()?;
//! let connection = tickmark::lapin::properties().connect("amqp://127.0.0.1").await?;
//! let channel = connection.create_channel().await?;
//! channel.basic_qos(10, BasicQosOptions::default()).await?;
//! let mut orders = connection
//!     .watched_by(&liveness)?
//!     .consume(&channel, "orders", "", BasicConsumeOptions::default(), FieldTable::default())
//!     .await?;
//! while let Some(delivery) = orders.next().await {
//!     delivery?.ack(BasicAckOptions::default()).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What a consumer is doing is read from lapin's connection and channel and from that task:
//!
//! | connection | channel | task | |
//! |---|---|---|---|
//! | connecting, reconnecting | any | has seen neither end nor error | recovering |
//! | any | reconnecting | has seen neither end nor error | recovering |
//! | connected | connected | has seen neither end nor error | consuming |
//! | otherwise | | | stopped |
//!
//! lapin 4.12 takes a consumer off its channel with the error that it sends it, so one that has
//! seen an error gets no more deliveries, on whatever connection.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::string::String;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use lapin::message::Delivery;
use lapin::options::BasicConsumeOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ConnectionProperties, ConnectionStatus};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::error::{Error, Kind};
use crate::liveness::Liveness;
use crate::registry::{ConsumerState, Registration};

/// The longest pause between two attempts to reconnect, before the jitter, which at most doubles it: a
/// broker that is back after an hour's outage should have its consumers back within a tick of 10 s.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Deliveries that wait between the task and the application where no prefetch bounds them.
const UNBOUNDED_PREFETCH: usize = 32;

/// Properties of a connection that recovers by itself and never gives up: lapin's own default is
/// not to recover, and with recovery to give up after 16 attempts and read *connecting* for ever.
pub fn properties() -> Properties {
    Properties(
        ConnectionProperties::default()
            .configure_backoff(|backoff| backoff.with_max_delay(LONGEST_PAUSE).with_jitter()),
    )
}

/// What [`properties`] makes.
#[derive(Debug, Clone)]
#[must_use]
pub struct Properties(ConnectionProperties);

impl Properties {
    /// Changes anything but that the connection recovers, and that it never gives up.
    pub fn configure(
        self,
        change: impl FnOnce(ConnectionProperties) -> ConnectionProperties,
    ) -> Properties {
        Properties(change(self.0))
    }

    /// Connects to `uri`, as [`lapin::Connection::connect`]. While the broker is unreachable it
    /// does not return: the first attempt is repeated like the later ones.
    ///
    /// # Errors
    /// What lapin returns, such as a refused login.
    pub async fn connect(self, uri: &str) -> lapin::Result<Connection> {
        self.connect_by(|properties| lapin::Connection::connect(uri, properties)).await
    }

    /// Connects with another of lapin's functions, which must be given these properties: one
    /// with a TLS configuration, with a parsed URI or with a runtime.
    ///
    /// # Errors
    /// What `connect` returns.
    pub async fn connect_by<F>(
        self,
        connect: impl FnOnce(ConnectionProperties) -> F,
    ) -> lapin::Result<Connection>
    where
        F: Future<Output = lapin::Result<lapin::Connection>>,
    {
        let connection = connect(self.into()).await?;
        Ok(Connection { connection, gives_up: false })
    }
}

impl From<Properties> for ConnectionProperties {
    fn from(properties: Properties) -> ConnectionProperties {
        properties
            .0
            .configure_backoff(|backoff| backoff.without_max_times().with_total_delay(None))
            .enable_auto_recover()
    }
}

/// A connection of lapin's, and whether it is known never to give up. One that was made without
/// [`properties`] is not; [`From`] wraps it.
#[derive(Debug)]
pub struct Connection {
    connection: lapin::Connection,
    gives_up: bool,
}

impl From<lapin::Connection> for Connection {
    fn from(connection: lapin::Connection) -> Connection {
        Connection { connection, gives_up: true }
    }
}

impl Deref for Connection {
    type Target = lapin::Connection;

    fn deref(&self) -> &lapin::Connection {
        &self.connection
    }
}

impl Connection {
    /// Whose consumers `liveness` judges.
    ///
    /// # Errors
    /// A connection that was made without [`properties`] may give up and still read
    /// *connecting*, so recovering must not count as healthy for ever: set
    /// [`recovery_grace`](crate::Builder::recovery_grace). [`Error::is_grace`].
    pub fn watched_by<'a>(&'a self, liveness: &'a Liveness) -> Result<Watched<'a>, Error> {
        if self.gives_up && liveness.recovery_grace.is_none() {
            let said = "recovering is healthy for ever on a connection that may give up: make it \
                        with tickmark::lapin::properties(), or set recovery_grace";
            return Err(Error::new(Kind::Grace, said.into()));
        }
        Ok(Watched { connection: self, liveness })
    }
}

/// A connection whose consumers are judged.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    connection: &'a Connection,
    liveness: &'a Liveness,
}

impl Watched<'_> {
    /// [`Channel::basic_consume`], registered under the queue's name until the deliveries are
    /// dropped. Must be called on a tokio runtime; `channel` must be of this connection, and its
    /// prefetch set before.
    ///
    /// Prefetch and back-pressure are the channel's: at most as many deliveries wait here as the
    /// broker sends without an acknowledgement. One that waited while its channel was lost is
    /// dropped, as lapin does with its own: the broker delivers it again.
    ///
    /// # Errors
    /// What lapin returns.
    pub async fn consume(
        &self,
        channel: &Channel,
        queue: &str,
        tag: &str,
        options: BasicConsumeOptions,
        arguments: FieldTable,
    ) -> lapin::Result<Deliveries> {
        let consumer = channel.basic_consume(queue.into(), tag.into(), options, arguments).await?;
        let tag = consumer.tag();
        let qos = channel.status().qos();
        let prefetch = qos.prefetch_count.or(qos.global_prefetch_count).unwrap_or(0);
        let capacity = if prefetch == 0 { UNBOUNDED_PREFETCH } else { prefetch.into() };
        let (sender, receiver) = mpsc::channel(capacity);
        let over = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(pump(consumer, sender, Over(Arc::clone(&over))));
        let connection = self.connection.status().clone();
        let status = channel.status().clone();
        let name = String::from(queue);
        let registration =
            self.liveness.register(&name, move || state(&connection, &status, &over));
        Ok(Deliveries {
            receiver,
            tag,
            acknowledged: !options.no_ack,
            task: task.abort_handle(),
            _registration: registration,
            _channel: channel.clone(),
        })
    }
}

fn state(
    connection: &ConnectionStatus,
    channel: &lapin::ChannelStatus,
    over: &AtomicBool,
) -> ConsumerState {
    if over.load(Ordering::Acquire) {
        ConsumerState::Stopped
    } else if connection.connecting() || connection.reconnecting() || channel.reconnecting() {
        ConsumerState::Recovering
    } else if connection.connected() && channel.connected() {
        ConsumerState::Consuming
    } else {
        ConsumerState::Stopped
    }
}

/// That the consumer gets no more deliveries; also when its task goes with its runtime.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

type Received = lapin::Result<Delivery>;

/// Moves deliveries to the application until the first error or the end. What the bounded
/// channel has no room for waits here: without a prefetch it would wait, as unbounded, in lapin.
async fn pump(mut consumer: lapin::Consumer, sender: mpsc::Sender<Received>, over: Over) {
    let mut waiting: VecDeque<Received> = VecDeque::new();
    let mut over = Some(over);
    loop {
        tokio::select! {
            // Fairness is of no use: whichever is ready is taken in the end.
            biased;
            permit = sender.reserve(), if !waiting.is_empty() => {
                let Ok(permit) = permit else { return };
                if let Some(received) = waiting.pop_front() {
                    permit.send(received);
                }
            }
            received = next(&mut consumer), if over.is_some() => match received {
                Some(Ok(delivery)) => waiting.push_back(Ok(delivery)),
                Some(Err(error)) => {
                    over = None;
                    waiting.push_back(Err(error));
                }
                None => over = None,
            },
            // Over, and the application has what there was.
            else => return,
        }
    }
}

async fn next(consumer: &mut lapin::Consumer) -> Option<Received> {
    poll_fn(|context| Pin::new(&mut *consumer).poll_next(context)).await
}

/// The deliveries of one consumer, for the application: a [`Stream`], like lapin's `Consumer`.
///
/// Ends after the consumer's end or its first error. Dropped, it cancels the consumer and takes
/// back its registration.
pub struct Deliveries {
    receiver: mpsc::Receiver<Received>,
    tag: ShortString,
    /// Whether the broker waits for acknowledgements.
    acknowledged: bool,
    task: AbortHandle,
    _registration: Registration,
    /// The task's consumer goes with its end, and would take the channel along on which the
    /// application still has to acknowledge.
    _channel: Channel,
}

impl Deliveries {
    /// The next delivery, or the error that ended the consumer; `None` once it is over.
    pub async fn next(&mut self) -> Option<lapin::Result<Delivery>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// The consumer's tag, for [`Channel::basic_cancel`]: what was delivered before it can then
    /// still be read here.
    #[must_use]
    pub fn tag(&self) -> &ShortString {
        &self.tag
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Received>> {
        loop {
            match self.receiver.poll_recv(context) {
                // The broker has it again; an answer to it would answer nothing.
                Poll::Ready(Some(Ok(delivery)))
                    if self.acknowledged && delivery.acker.poisoned() => {}
                other => return other,
            }
        }
    }
}

impl Stream for Deliveries {
    type Item = lapin::Result<Delivery>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context)
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        // With the task goes lapin's consumer, which cancels itself.
        self.task.abort();
    }
}

impl fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliveries").field("tag", &self.tag).finish_non_exhaustive()
    }
}
