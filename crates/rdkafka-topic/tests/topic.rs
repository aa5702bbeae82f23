//! Tests with librdkafka's mock cluster. `scripts/sanitize` runs them with sanitizers.

// tests fail by panicking
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{
    DefaultProducerContext, DeliveryResult, Producer, ProducerContext, ThreadedProducer,
};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};
use rdkafka_topic::{NewTopic, Options, Record, Topic, create_topics};

const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// A delivery report: the opaque value, and the error.
type Report = (usize, Option<RDKafkaErrorCode>);

struct Reports(Sender<Report>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let error = result.as_ref().err().and_then(|(error, _)| error.rdkafka_error_code());
        // the test may have ended
        let _ = self.0.send((opaque, error));
    }
}

type NoHeaders = std::iter::Empty<(&'static str, Option<&'static [u8]>)>;

/// A record without headers.
fn record<'a>(key: &'a [u8], value: Option<&'a [u8]>, opaque: usize) -> Record<'a, NoHeaders> {
    Record { partition: Some(0), key: Some(key), value, timestamp: None, headers: std::iter::empty(), opaque }
}

struct Stage {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: ThreadedProducer<Reports>,
    reports: Receiver<Report>,
}

impl Stage {
    fn new(topics: &[&str]) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        for topic in topics {
            cluster.create_topic(topic, 2, 1).unwrap();
        }
        let (sender, reports) = channel();
        let producer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("queue.buffering.max.messages", "100")
            .set("message.max.bytes", "10000")
            .create_with_context(Reports(sender))
            .unwrap();
        Stage { cluster, producer, reports }
    }

    fn report(&self) -> Report {
        self.reports.recv_timeout(STEP_TIMEOUT).unwrap()
    }

    /// Key, value, timestamp and headers of the first `count` records of a partition.
    fn read(&self, topic: &str, partition: i32, count: usize) -> Vec<Seen> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.cluster.bootstrap_servers())
            .set("group.id", "test")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        consumer.assign(&assignment).unwrap();
        let mut seen = Vec::new();
        while seen.len() < count {
            let message = consumer.poll(STEP_TIMEOUT).expect("a record").unwrap();
            let headers = message.headers().map(|headers| {
                let header = |header: rdkafka::message::Header<'_, &[u8]>| {
                    (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
                };
                headers.iter().map(header).collect()
            });
            seen.push(Seen {
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                timestamp: message.timestamp().to_millis(),
                headers: headers.unwrap_or_default(),
            });
        }
        seen
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    timestamp: Option<i64>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

#[test]
fn a_record_arrives_as_it_was_sent() {
    let stage = Stage::new(&["order"]);
    let topic = Topic::new(&stage.producer, "order").unwrap();
    let headers =
        [("id", Some(&b"7"[..])), ("empty", Some(&b""[..])), ("null", None), ("na\u{ef}ve", Some(b"\0\xff"))];
    topic
        .send(Record {
            partition: Some(1),
            key: Some(b"key"),
            value: Some(b"value\0"),
            timestamp: Some(1_234_567),
            headers: headers.into_iter(),
            opaque: 42,
        })
        .unwrap();
    topic.send(Record { partition: Some(1), timestamp: Some(5), ..record(b"", None, usize::MAX) }).unwrap();
    assert_eq!((stage.report(), stage.report()), ((42, None), (usize::MAX, None)));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)));
    assert_eq!(
        stage.read("order", 1, 2),
        [
            Seen {
                key: Some(b"key".to_vec()),
                value: Some(b"value\0".to_vec()),
                timestamp: Some(1_234_567),
                headers: headers.to_vec()
            },
            Seen { key: Some(Vec::new()), value: None, timestamp: Some(5), headers: Vec::new() },
        ]
    );
}

#[test]
fn records_of_many_topics_keep_their_topics_and_order() {
    let names: Vec<String> = (0..50).map(|number| format!("topic-{number}")).collect();
    let stage = Stage::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let topics: Vec<_> = names.iter().map(|name| Topic::new(&stage.producer, name).unwrap()).collect();
    for turn in 0..2_u8 {
        for (number, topic) in topics.iter().enumerate() {
            topic.send(record(b"key", Some(&[turn, number as u8]), number)).unwrap();
        }
        for _ in &topics {
            assert_eq!(stage.report().1, None);
        }
    }
    for number in [0, 17, 49] {
        let seen = stage.read(&names[number], 0, 2);
        let values: Vec<_> = seen.into_iter().map(|seen| seen.value.unwrap()).collect();
        assert_eq!(values, [[0, number as u8], [1, number as u8]]);
    }
}

#[test]
fn a_refused_record_leaves_its_headers_with_the_caller() {
    let stage = Stage::new(&["order"]);
    let topic = Topic::new(&stage.producer, "order").unwrap();
    let code = |result: Result<(), KafkaError>| result.unwrap_err().rdkafka_error_code().unwrap();
    let large = vec![0; 20_000];
    let headers = [("id", Some(&b"7"[..]))];
    let with_headers = |value| Record {
        partition: Some(0),
        key: None,
        value,
        timestamp: None,
        headers: headers.into_iter(),
        opaque: 1,
    };
    assert_eq!(code(topic.send(with_headers(Some(&large)))), RDKafkaErrorCode::MessageSizeTooLarge);
    topic.send(with_headers(Some(b"fits"))).unwrap();
    assert_eq!(stage.report(), (1, None));
    // the partitions are known now
    let missing = Record { partition: Some(9), ..with_headers(Some(b"nowhere")) };
    assert_eq!(code(topic.send(missing)), RDKafkaErrorCode::UnknownPartition);
    // a record counts until some time after its report
    stage.producer.flush(STEP_TIMEOUT).unwrap();
    // nothing is accepted beyond the queue
    stage.cluster.broker_down(1).unwrap();
    let accepted = (0..200).take_while(|_| topic.send(with_headers(Some(b"waits"))).is_ok()).count();
    assert_eq!(accepted, 100);
    assert_eq!(code(topic.send(with_headers(Some(b"too many")))), RDKafkaErrorCode::QueueFull);
}

#[test]
fn a_name_that_librdkafka_cannot_have_is_an_error() {
    let stage = Stage::new(&[]);
    assert!(matches!(Topic::new(&stage.producer, "a\0b"), Err(KafkaError::Nul(_))));
    assert!(Topic::new(&stage.producer, &"x".repeat(513)).is_err());
}

#[test]
fn a_topic_outlives_the_other_references_to_its_producer() {
    let stage = Stage::new(&["order"]);
    let topic = Topic::new(&stage.producer, "order").unwrap();
    let Stage { cluster: _cluster, producer, reports } = stage;
    drop(producer);
    topic.send(record(b"key", Some(b"value"), 3)).unwrap();
    assert_eq!(reports.recv_timeout(STEP_TIMEOUT).unwrap(), (3, None));
    drop(topic);
    assert!(reports.recv_timeout(STEP_TIMEOUT).is_err(), "the producer has ended");
}

#[test]
fn one_topic_is_used_by_several_threads() {
    let stage = Stage::new(&["order"]);
    let first = Topic::new(&stage.producer, "order").unwrap();
    let second = Topic::new(&stage.producer, "order").unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let topic = if thread % 2 == 0 { &first } else { &second };
            scope.spawn(move || {
                for number in 0..20 {
                    topic.send(record(b"key", Some(b"value"), thread * 20 + number)).unwrap();
                }
            });
        }
    });
    let mut reported: Vec<_> = (0..80).map(|_| stage.report()).collect();
    reported.sort_unstable_by_key(|(opaque, _)| *opaque);
    assert_eq!(reported, (0..80).map(|number| (number, None)).collect::<Vec<_>>());
    // a handle that is dropped does not take the topic from another one
    drop(first);
    second.send(record(b"key", Some(b"value"), 80)).unwrap();
    assert_eq!(stage.report(), (80, None));
}

/// The mock cluster cannot create topics; the router's own tests create some on a broker.
#[test]
fn a_request_to_create_topics_ends_with_an_error_or_when_nobody_waits() {
    let cluster = MockCluster::new(1).unwrap();
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
    let topic = |name| NewTopic {
        name,
        partitions: Some(1),
        replicas: None,
        config: vec![("cleanup.policy", "compact"), ("segment.ms", "1000")],
    };
    let options = Options {
        request_timeout: Some(Duration::from_secs(1)),
        operation_timeout: Some(STEP_TIMEOUT),
        validate_only: true,
    };
    let create = |topics: &[NewTopic<'_>], wanted: bool| create_topics(&admin, topics, options, || wanted);
    let unanswered = create(&[topic("a"), topic("b")], true);
    assert_eq!(unanswered, Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut)));
    assert_eq!(create(&[topic("a")], false), Err(KafkaError::Canceled));
    assert!(matches!(create(&[topic("a\0b")], true), Err(KafkaError::Nul(_))));
    let many = NewTopic { partitions: Some(i32::MAX), ..topic("a") };
    assert_eq!(create(&[many], true), Err(KafkaError::AdminOp(RDKafkaErrorCode::InvalidArgument)));
}
