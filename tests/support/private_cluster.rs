//! A private cluster of three brokers.

use super::eventually::eventually;
use super::instance::Instance;
use super::kafka::Kafka;

/// The names of the brokers in `scripts/services`. Kafka numbers them from 1.
const NAMES: [&str; 3] = ["kafka", "kafka-2", "kafka-3"];

/// Three brokers, which are also the controllers, so that any one may fail. Topics get three replicas, and `min.insync.replicas`
/// is 2. Deleted on drop.
pub(crate) struct PrivateCluster {
    instance: Instance,
}

impl PrivateCluster {
    pub(crate) async fn start() -> Self {
        PrivateCluster { instance: Instance::up("kafka", &["--brokers", "3"], &[]) }
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(self.instance.variable("TEST_KAFKA"))
    }

    /// Returns when the broker has stopped.
    pub(crate) fn stop(&self, broker: i32) {
        self.instance.run_for(name(broker), "stop");
    }

    pub(crate) fn kill(&self, broker: i32) {
        self.instance.run_for(name(broker), "kill");
    }

    /// Returns when the broker accepts connections, with the same data and port.
    pub(crate) fn start_again(&self, broker: i32) {
        self.instance.run_for(name(broker), "start");
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
