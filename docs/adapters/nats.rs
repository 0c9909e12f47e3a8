//! An adapter for a NATS subscription through async-nats: the example that docs/SETUP.md shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

// The adapter.
use async_nats::{Client, connection::State};
use tickmark::{Consumer, ConsumerState};

struct Subscription {
    client: Client,
    /// Set by the loop that reads the subscriber, when `next` gave `None`.
    ended: Arc<AtomicBool>,
}

impl Consumer for Subscription {
    fn state(&self) -> ConsumerState {
        if self.ended.load(Ordering::Relaxed) {
            return ConsumerState::Stopped;
        }
        match self.client.connection_state() {
            State::Connected => ConsumerState::Consuming,
            // async-nats reconnects by itself, and subscribes again when it has.
            State::Pending | State::Disconnected => ConsumerState::Recovering,
        }
    }
}
// Its end.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let liveness = tickmark::Liveness::builder().consumers(1).start()?;
    let client = async_nats::connect("nats://127.0.0.1:4222").await?;
    let mut orders = client.subscribe("orders").await?;
    let ended = Arc::new(AtomicBool::new(false));
    let subscription = Subscription { client, ended: Arc::clone(&ended) };
    let _registered = liveness.register("orders", subscription);
    while let Some(_order) = next(&mut orders).await {
        let _job = liveness.jobs().start();
        // … work …
    }
    ended.store(true, Ordering::Relaxed);
    Ok(())
}

async fn next(orders: &mut async_nats::Subscriber) -> Option<async_nats::Message> {
    use futures_core::Stream as _;
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *orders).poll_next(context)).await
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_shows_this_file() {
        let this = include_str!("nats.rs");
        let adapter = this.split("// The adapter.\n").nth(1).unwrap();
        let adapter = adapter.split("// Its end.").next().unwrap();
        assert!(include_str!("../SETUP.md").contains(adapter));
    }
}
