//! Detects a client that no longer finds the brokers although a new one does.
//!
//! A broker that has just restarted may report for a moment that there are no brokers. librdkafka then forgets all of them,
//! including `bootstrap.servers`, and does not recover (its issue 5301). Only a new client helps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};

use super::background_probe::BackgroundProbe;
use super::{METADATA_TIMEOUT, properties};

/// How long a new client may take to find the brokers.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// The number of failed checks in a row that count: a client may just be reconnecting.
const FAILURES: u32 = 3;

/// The checks of one client.
#[derive(Debug, Default)]
pub(super) struct StaleMetadata {
    probe: BackgroundProbe,
    failures: AtomicU32,
}

impl StaleMetadata {
    /// Starts a check in the background. Calls `lost` if the client has stale metadata. `knows_brokers` asks the client itself.
    pub(super) fn check(
        self: &Arc<Self>,
        settings: ClientConfig,
        knows_brokers: impl FnOnce(Duration) -> bool + Send + 'static,
        lost: impl FnOnce() + Send + 'static,
    ) {
        let this = Arc::clone(self);
        self.probe.start(move || {
            if knows_brokers(METADATA_TIMEOUT) || !new_client_finds_brokers(&settings) {
                this.failures.store(0, Ordering::Relaxed);
            } else if this.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
                this.failures.store(0, Ordering::Relaxed);
                lost();
            }
        });
    }
}

/// Whether a client knows any broker. A late answer counts as one: a broker answers the requests of a connection in turn,
/// and keeps a batch while replicas are missing.
pub(super) fn knows_brokers<C: ClientContext>(client: &Client<C>, timeout: Duration) -> bool {
    match client.fetch_metadata(None, timeout) {
        Ok(metadata) => !metadata.brokers().is_empty(),
        Err(KafkaError::MetadataFetch(code)) => code == RDKafkaErrorCode::OperationTimedOut,
        Err(_) => false,
    }
}

fn new_client_finds_brokers(settings: &ClientConfig) -> bool {
    properties::make::<Silent, BaseProducer<Silent>>(settings, Silent).is_ok_and(|producer| {
        producer
            .client()
            .fetch_metadata(None, FIND_TIMEOUT)
            .is_ok_and(|metadata| !metadata.brokers().is_empty())
    })
}

/// Ignores errors, which the client under test reports itself.
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

    async fn finds_stale_metadata(checks: &Arc<StaleMetadata>, settings: &ClientConfig, finds: bool) -> bool {
        let called = Arc::new(AtomicBool::new(false));
        let lost = Arc::clone(&called);
        checks.check(settings.clone(), move |_| finds, move || lost.store(true, Ordering::Release));
        while checks.probe.is_running() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        called.load(Ordering::Acquire)
    }

    #[tokio::test]
    async fn three_failures_in_a_row_are_stale_metadata_if_a_new_client_finds_brokers() {
        let brokers = MockCluster::new(1).unwrap();
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", brokers.bootstrap_servers());
        let checks = Arc::default();
        for (finds, lost) in [
            (false, false),
            (false, false),
            (true, false),
            (false, false),
            (false, false),
            (false, true),
            (false, false),
        ] {
            assert_eq!(finds_stale_metadata(&checks, &settings, finds).await, lost);
        }
    }

    #[test]
    fn late_brokers_are_known_and_closed_ones_are_not() {
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
    async fn brokers_that_no_client_finds_are_not_stale_metadata() {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", "127.0.0.1:1");
        let checks = Arc::default();
        for _ in 0..4 {
            assert!(!finds_stale_metadata(&checks, &settings, false).await);
        }
    }
}
