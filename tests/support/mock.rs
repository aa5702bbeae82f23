//! A broker inside the test, to inject errors that a real one cannot be made to give.

use std::net::SocketAddr;
use std::sync::Mutex;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use socket2::{Domain, Socket, Type};

use super::kafka::Kafka;
use super::process;

/// Its brokers are numbered from 1.
pub(crate) struct Mock {
    pub(crate) cluster: MockCluster<'static, DefaultProducerContext>,
    /// The ports of brokers that are away. A mock broker whose port another took meanwhile ends the whole process.
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

    /// Makes a topic whose partitions all live on one broker.
    pub(crate) fn create_topic(&self, topic: &str, partitions: i32, broker: i32) {
        self.cluster.create_topic(topic, partitions, 1).unwrap();
        for partition in 0..partitions {
            self.cluster.partition_leader(topic, partition, Some(broker)).unwrap();
        }
    }

    /// Takes a broker away, and keeps its port for it.
    pub(crate) fn down(&self, broker: i32) {
        // it closes its port and takes it again at once, and ends the whole process if it cannot
        process::while_nothing_starts(|| self.cluster.broker_down(broker)).unwrap();
        let servers = self.cluster.bootstrap_servers();
        let place = servers.split(',').nth(usize::try_from(broker).unwrap() - 1).unwrap();
        let port = place.rsplit_once(':').unwrap().1.parse().unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        // the mock broker sets it too, so that it can listen while this only holds on to the port
        socket.set_reuse_address(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
        self.held.lock().unwrap().push((broker, socket));
    }

    /// Lets it come back.
    pub(crate) fn up(&self, broker: i32) {
        self.cluster.broker_up(broker).unwrap();
        self.held.lock().unwrap().retain(|(held, _)| *held != broker);
    }
}
