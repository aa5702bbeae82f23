//! Whether a client has lost sight of brokers that a new one finds.
//!
//! A broker that has just come back may say for a moment that there are none. librdkafka then forgets all that it knew, those
//! of `bootstrap.servers` too, and finds no way back (its issue 5301). Only another client helps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};

use super::background_probe::BackgroundProbe;
use super::{LOOK_TIMEOUT, properties};

/// How long a new client may take to find them.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// So many times in a row: one that connects again just now is no case of it.
const MISSES: u32 = 3;

/// What the looks have found.
#[derive(Debug, Default)]
pub(super) struct StaleMetadata {
    aside: BackgroundProbe,
    misses: AtomicU32,
}

impl StaleMetadata {
    /// Looks without being waited for; `lost` is called if it is so. `topic_cache` asks the client itself.
    pub(super) fn look(
        self: &Arc<Self>,
        settings: ClientConfig,
        known: impl FnOnce(Duration) -> bool + Send + 'static,
        lost: impl FnOnce() + Send + 'static,
    ) {
        let this = Arc::clone(self);
        self.aside.look(move || {
            if known(LOOK_TIMEOUT) || !found_anew(&settings) {
                this.misses.store(0, Ordering::Relaxed);
            } else if this.misses.fetch_add(1, Ordering::Relaxed) + 1 >= MISSES {
                this.misses.store(0, Ordering::Relaxed);
                lost();
            }
        });
    }
}

/// Whether a client knows of any broker. One that does not answer in time is known: it answers a connection's requests one
/// after the other, and keeps a batch for as long as replicas are missing.
pub(super) fn knows_brokers<C: ClientContext>(client: &Client<C>, timeout: Duration) -> bool {
    match client.fetch_metadata(None, timeout) {
        Ok(metadata) => !metadata.brokers().is_empty(),
        Err(KafkaError::MetadataFetch(code)) => code == RDKafkaErrorCode::OperationTimedOut,
        Err(_) => false,
    }
}

fn found_anew(settings: &ClientConfig) -> bool {
    properties::make::<Silent, BaseProducer<Silent>>(settings, Silent).is_ok_and(|producer| {
        producer
            .client()
            .fetch_metadata(None, FIND_TIMEOUT)
            .is_ok_and(|metadata| !metadata.brokers().is_empty())
    })
}

/// What it has to say is what the client that is looked after has said.
struct Silent;

impl ClientContext for Silent {
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext for Silent {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use rdkafka::mocking::MockCluster;

    async fn looked(sight: &Arc<StaleMetadata>, settings: &ClientConfig, finds: bool) -> bool {
        let called = Arc::new(AtomicBool::new(false));
        let lost = Arc::clone(&called);
        sight.look(settings.clone(), move |_| finds, move || lost.store(true, Ordering::Release));
        while sight.aside.is_under_way() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        called.load(Ordering::Acquire)
    }

    #[tokio::test]
    async fn three_misses_in_a_row_that_a_new_client_does_not_share_are_lost_sight() {
        let brokers = MockCluster::new(1).unwrap();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", brokers.bootstrap_servers());
        let sight = Arc::default();
        for (finds, lost) in [
            (false, false),
            (false, false),
            (true, false),
            (false, false),
            (false, false),
            (false, true),
            (false, false),
        ] {
            assert_eq!(looked(&sight, &settings, finds).await, lost);
        }
    }

    #[test]
    fn brokers_that_are_late_are_known_and_those_that_no_longer_listen_are_not() {
        const SOON: Duration = Duration::from_millis(500);
        let brokers = MockCluster::new(1).unwrap();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", brokers.bootstrap_servers());
        let producer: BaseProducer<Silent> = properties::make(&settings, Silent).unwrap();
        assert!(producer.client().fetch_metadata(None, FIND_TIMEOUT).is_ok());
        brokers.broker_round_trip_time(1, 4 * SOON).unwrap();
        assert!((0..20).any(|_| knows_brokers(producer.client(), SOON)));
        assert!(producer.client().fetch_metadata(None, SOON).is_err());
        brokers.broker_round_trip_time(1, Duration::ZERO).unwrap();
        brokers.broker_down(1).unwrap();
        assert!((0..20).any(|_| !knows_brokers(producer.client(), SOON)));
    }

    #[tokio::test]
    async fn brokers_that_no_client_finds_are_away() {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", "127.0.0.1:1");
        let sight = Arc::default();
        for _ in 0..4 {
            assert!(!looked(&sight, &settings, false).await);
        }
    }
}
