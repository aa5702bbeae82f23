//! Three brokers of a test's own.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::eventually::eventually;
use super::instance::Instance;
use super::kafka::Kafka;

/// Three Java machines are enough at a time.
static PLACES: Semaphore = Semaphore::const_new(1);

/// How `scripts/services` calls them; Kafka counts them from 1.
const NAMES: [&str; 3] = ["kafka", "kafka-2", "kafka-3"];

/// The brokers, each a controller too: any one may go. Topics get three replicas, `min.insync.replicas` is 2. Dropped,
/// they are gone with their data.
pub(crate) struct PrivateCluster {
    instance: Instance,
    _place: SemaphorePermit<'static>,
}

impl PrivateCluster {
    pub(crate) async fn start() -> Self {
        let place = PLACES.acquire().await.unwrap();
        PrivateCluster { instance: Instance::up("kafka", &["--brokers", "3"], &[]), _place: place }
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(self.instance.variable("TEST_KAFKA"))
    }

    /// Comes back when the broker is down.
    pub(crate) fn stop(&self, broker: i32) {
        self.instance.one("stop", name(broker));
    }

    pub(crate) fn kill(&self, broker: i32) {
        self.instance.one("kill", name(broker));
    }

    /// Comes back when the broker serves, with the same data and port.
    pub(crate) fn start_again(&self, broker: i32) {
        self.instance.one("start", name(broker));
    }

    /// Waits until every partition of a test's topics has all of its replicas in sync.
    pub(crate) async fn in_sync(&self, prefix: &str) {
        let kafka = self.client();
        eventually("all replicas are in sync", async || {
            let partitions = kafka.replicas(prefix).await.ok()?;
            partitions.iter().all(|partition| partition.in_sync == partition.all).then_some(())
        })
        .await;
    }
}

fn name(broker: i32) -> &'static str {
    NAMES[usize::try_from(broker).unwrap() - 1]
}
