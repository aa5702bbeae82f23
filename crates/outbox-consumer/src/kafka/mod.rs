//! A loop that consumes topics: the effects of each event happen once.
//!
//! ```no_run
//! # async fn consume() -> Result<(), Box<dyn std::error::Error>> {
//! use outbox_consumer::Inbox;
//! use outbox_consumer::kafka::{Event, Handler, KafkaConsumer};
//! use tokio_postgres::{Client, Error, NoTls};
//!
//! struct Shipping;
//!
//! impl Handler for Shipping {
//!     type Error = Error;
//!
//!     async fn handle(&self, transaction: &Client, event: &Event) -> Result<(), Error> {
//!         transaction.execute("INSERT INTO parcels (order_id) VALUES ($1)", &[&event.value]).await.map(drop)
//!     }
//! }
//!
//! let connect = || async {
//!     let (client, connection) = tokio_postgres::connect("host=db dbname=shipping", NoTls).await?;
//!     tokio::spawn(connection);
//!     Ok::<_, Error>(Box::new(client))
//! };
//! let mut config = rdkafka::ClientConfig::new();
//! config.set("bootstrap.servers", "kafka:9092").set("group.id", "shipping");
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! KafkaConsumer::new(config, &["orders"], Inbox::new("shipping"), connect).run(Shipping, stop).await?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  receive                 what has arrived, into a buffer for each partition
//!    for each partition    one transaction at a time: claim the ids, handle the fresh events, COMMIT
//!  store the offset        when a partition's transaction is committed; Kafka gets it within a second, and at the end
//! ```
//!
//! What was committed to Postgres and not to Kafka arrives again, and its ids are no longer fresh. Only committed transactions
//! are read.
//!
//! Metrics: `outbox_consumer_claims_total{outcome}` and `outbox_consumer_parked_total`.

mod assignment;
mod buffers;
mod counters;
mod error;
mod event;
mod failed;
mod parked;
mod partition;
mod run;
mod transaction;

use std::ops::DerefMut;

use rdkafka::ClientConfig;
use tokio_postgres::Client;

use crate::Inbox;
use crate::session::{BoxError, Connect};

pub use error::ConsumeError;
pub use event::Event;

/// What is done with an event.
pub trait Handler: Send + Sync + 'static {
    /// Why it could not be done.
    type Error: Into<BoxError> + Send;

    /// Handles an event in the transaction, which the caller commits or rolls back, and this must not end. Return every error of a statement: after an error
    /// the transaction cannot be committed.
    ///
    /// The error of a later event rolls the batch back, and then this is called again for the events before it. So effects
    /// outside of the transaction can happen again: give the other system the event's id.
    fn handle(
        &self,
        transaction: &Client,
        event: &Event,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// A member of a consumer group.
pub struct KafkaConsumer {
    config: ClientConfig,
    topics: Vec<String>,
    inbox: Inbox,
    connect: Connect,
    id_header: String,
    max_events: usize,
    parallel: usize,
    attempts: u32,
    park: bool,
}

impl std::fmt::Debug for KafkaConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaConsumer").field("topics", &self.topics).finish_non_exhaustive()
    }
}

impl KafkaConsumer {
    /// `config` needs `bootstrap.servers` and `group.id`. `isolation.level`, `enable.auto.commit` and `enable.auto.offset.store`
    /// are set here, and unless they are set `auto.offset.reset` to `earliest` and `auto.commit.interval.ms` to 1000. `connect` opens a
    /// session: one for each partition that is worked on, and with [`KafkaConsumer::park`] one more. The id of an event must be
    /// unique in all topics.
    pub fn new<C, F, S, E>(config: ClientConfig, topics: &[&str], inbox: Inbox, connect: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<S, E>> + Send + 'static,
        S: DerefMut<Target = Client> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        counters::register();
        KafkaConsumer {
            config,
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            inbox,
            connect: Connect::new(connect),
            id_header: "id".to_owned(),
            max_events: 500,
            parallel: 4,
            attempts: 5,
            park: false,
        }
    }

    /// The header with the id of an event; `id` by default.
    #[must_use]
    pub fn id_header(mut self, name: impl Into<String>) -> Self {
        self.id_header = name.into();
        self
    }

    /// The largest batch of a partition, 1 to 10,000 events; 500 by default. It ends earlier at 16 MiB, or when no more events have
    /// arrived.
    #[must_use]
    pub fn max_events(mut self, events: usize) -> Self {
        self.max_events = events.clamp(1, 10_000);
        self
    }

    /// How many partitions are worked on at a time, each with a session of its own; 4 by default.
    #[must_use]
    pub fn parallel(mut self, partitions: usize) -> Self {
        self.parallel = partitions.max(1);
        self
    }

    /// How often an event is tried before the loop stops or parks it; 5 by default, and four times as often if the session ends while
    /// the handler works. While the database is away, or another transaction is in the way, attempts do not count.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Puts an event whose handler keeps failing into the queue of the inbox, and the later ones of its aggregate, the key,
    /// behind it, instead of stopping. The loop tries them again when they are due; after eight attempts they wait for an
    /// operator. Nothing else may put events into this inbox's queue. An event that the queue refuses, with a key of more than 1,000
    /// characters or more than 16 MiB as JSON, stops the loop.
    #[must_use]
    pub fn park(mut self) -> Self {
        self.park = true;
        self
    }
}
