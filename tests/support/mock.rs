//! Mock brokers inside the test process, for errors that a real broker cannot be made to return.

use std::net::SocketAddr;
use std::sync::Mutex;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use socket2::{Domain, Socket, Type};

use super::kafka::Kafka;
use super::process;

/// A cluster of mock brokers, numbered from 1.
pub(crate) struct Mock {
    pub(crate) cluster: MockCluster<'static, DefaultProducerContext>,
    /// Sockets that keep the ports of brokers that are down. If a mock broker cannot bind its port again, it ends the whole
    /// process.
    held: Mutex<Vec<(i32, Socket)>>,
}

impl Mock {
    pub(crate) fn start(brokers: i32) -> Self {
        let mock = Mock { cluster: MockCluster::new(brokers).unwrap(), held: Mutex::default() };
        mock.create_topic("outbox-router.positions", 1, 1);
        mock
    }

    pub(crate) fn client(&self) -> Kafka {
        Kafka::at(&self.cluster.bootstrap_servers())
    }

    /// Creates a topic whose partitions are all on one broker.
    pub(crate) fn create_topic(&self, topic: &str, partitions: i32, broker: i32) {
        self.cluster.create_topic(topic, partitions, 1).unwrap();
        for partition in 0..partitions {
            self.cluster.partition_leader(topic, partition, Some(broker)).unwrap();
        }
    }

    /// Shuts a broker down, and keeps its port reserved.
    pub(crate) fn down(&self, broker: i32) {
        // the broker closes its port and binds it again at once, and ends the whole process if that fails
        process::while_nothing_starts(|| self.cluster.broker_down(broker)).unwrap();
        let servers = self.cluster.bootstrap_servers();
        let place = servers.split(',').nth(usize::try_from(broker).unwrap() - 1).unwrap();
        let port = place.rsplit_once(':').unwrap().1.parse().unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // the mock broker sets this option too, so it can listen while this socket only reserves the port
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
        self.held.lock().unwrap().push((broker, socket));
    }

    /// Starts the broker again.
    pub(crate) fn up(&self, broker: i32) {
        self.cluster.broker_up(broker).unwrap();
        self.held.lock().unwrap().retain(|(held, _)| *held != broker);
    }
}
