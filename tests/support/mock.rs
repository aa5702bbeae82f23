//! A broker inside the test, to inject errors that a real one cannot be made to give.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::kafka::Kafka;

/// Its brokers are numbered from 1.
pub(crate) struct Mock {
    pub(crate) cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Mock {
    pub(crate) fn start(brokers: i32) -> Self {
        Mock { cluster: MockCluster::new(brokers).unwrap() }
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(&self.cluster.bootstrap_servers())
    }

    /// Makes a topic whose partitions all live on one broker.
    pub(crate) fn create_topic(&self, topic: &str, partitions: i32, broker: i32) {
        self.cluster.create_topic(topic, partitions, 1).unwrap();
        for partition in 0..partitions {
            self.cluster.partition_leader(topic, partition, Some(broker)).unwrap();
        }
    }
}
