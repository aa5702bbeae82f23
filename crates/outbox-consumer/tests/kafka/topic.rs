//! A topic of a test, its consumers, and their handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_consumer::Inbox;
use outbox_consumer::kafka::{ConsumeError, Event, Handler, KafkaConsumer};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, NoTls};

use crate::support::{Database, Session};

/// A topic and a database, both dropped with this.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) brokers: String,
    pub(crate) database: Database,
    pub(crate) producer: FutureProducer,
}

impl Topic {
    /// On the shared broker. Effects are in `effects`, in their order.
    pub(crate) async fn new(partitions: i32) -> Self {
        let brokers = std::env::var("TEST_KAFKA").expect("TEST_KAFKA: run scripts/test");
        Self::on(&brokers, Database::new().await, partitions).await
    }

    pub(crate) async fn on(brokers: &str, database: Database, partitions: i32) -> Self {
        let name = database.url().rsplit_once('/').unwrap().1.to_owned();
        let sql = "ALTER TABLE effects ADD n bigint GENERATED ALWAYS AS IDENTITY, ADD aggregate text, ADD value text";
        database.session().await.ok(sql).await;
        let topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
        let created = admin(brokers).create_topics([&topic], &AdminOptions::new()).await.unwrap();
        assert_eq!(created, [Ok(name.clone())]);
        let producer = client(brokers).create().unwrap();
        Topic { name, brokers: brokers.to_owned(), database, producer }
    }

    /// Sends an event and waits for its acknowledgement.
    pub(crate) async fn send(&self, id: &str, key: &str, value: &str) {
        self.send_with(&self.producer, id, key, value).await;
    }

    pub(crate) async fn send_with(&self, producer: &FutureProducer, id: &str, key: &str, value: &str) {
        let headers = OwnedHeaders::new().insert(Header { key: "id", value: Some(id) });
        let record = FutureRecord::to(&self.name).key(key).payload(value).headers(headers);
        producer.send(record, Duration::from_secs(60)).await.unwrap();
    }

    /// Sends an event whose key is the number of its partition.
    pub(crate) async fn send_to(&self, partition: i32, id: &str, value: &str) {
        let (key, headers) =
            (partition.to_string(), OwnedHeaders::new().insert(Header { key: "id", value: Some(id) }));
        let record =
            FutureRecord::to(&self.name).partition(partition).key(&key).payload(value).headers(headers);
        self.producer.send(record, Duration::from_secs(60)).await.unwrap();
    }

    /// Waits until the group has committed this offset.
    pub(crate) async fn until_committed(&self, partition: i32, offset: i64) {
        let mut config = client(&self.brokers);
        let reader: BaseConsumer = config.set("group.id", &self.name).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.name, partition);
        let (name, started) = (self.name.clone(), Instant::now());
        let committed = move || {
            let found = reader.committed_offsets(list.clone(), Duration::from_secs(60)).unwrap();
            found.find_partition(&name, partition).unwrap().offset()
        };
        let until = move || {
            while committed() != Offset::Offset(offset) {
                assert!(started.elapsed() < Duration::from_secs(180), "{:?} is committed", committed());
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        tokio::task::spawn_blocking(until).await.unwrap();
    }

    /// A producer of transactions.
    pub(crate) fn transactional(&self) -> FutureProducer {
        let mut config = client(&self.brokers);
        let producer: FutureProducer = config.set("transactional.id", &self.name).create().unwrap();
        producer.init_transactions(Duration::from_secs(60)).unwrap();
        producer
    }

    /// A member of the group that is named after the topic.
    pub(crate) fn consumer(&self) -> KafkaConsumer {
        consumer(&self.name, &self.brokers, &self.database.url())
    }

    pub(crate) async fn session(&self) -> Session {
        self.database.session().await
    }

    /// Waits until this many events had an effect.
    pub(crate) async fn until_effects(&self, count: usize) {
        let started = Instant::now();
        let session = self.session().await;
        loop {
            let found = session.ok("SELECT event_id FROM effects ORDER BY n").await;
            let found: Vec<&str> = found.lines().collect();
            assert!(found.len() <= count, "more than {count} effects: {found:?}");
            if found.len() == count {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(180), "{} of {count} effects", found.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The ids of the events that had an effect, in the order of their effects.
    pub(crate) async fn effects(&self) -> Vec<String> {
        let ids = self.session().await.ok("SELECT event_id FROM effects ORDER BY n").await;
        ids.lines().map(str::to_owned).collect()
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        let (brokers, name) = (self.brokers.clone(), self.name.clone());
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            drop(runtime.block_on(admin(&brokers).delete_topics(&[&name], &AdminOptions::new())));
        });
        drop(deleted.join());
    }
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    client(brokers).create().unwrap()
}

/// A member of the group `name`, which consumes the topic `name`.
pub(crate) fn consumer(name: &str, brokers: &str, url: &str) -> KafkaConsumer {
    consumer_with(name, brokers, url, &[])
}

/// The same with further properties.
pub(crate) fn consumer_with(
    name: &str,
    brokers: &str,
    url: &str,
    properties: &[(&str, &str)],
) -> KafkaConsumer {
    let mut config = client(brokers);
    for (name, value) in properties {
        config.set(*name, *value);
    }
    // as short as brokers allow
    config.set("group.id", name).set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "500");
    let url: Arc<str> = url.into();
    KafkaConsumer::new(config, &[name], Inbox::new("c"), move || connect(Arc::clone(&url)))
}

async fn connect(url: Arc<str>) -> Result<Box<Client>, Error> {
    let mut config: tokio_postgres::Config = url.parse()?;
    if config.get_application_name().is_none() {
        config.application_name("member");
    }
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(Box::new(client))
}

/// Writes an effect, or does what the value of the event says instead.
pub(crate) struct Effects;

impl Handler for Effects {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    async fn handle(&self, transaction: &Client, event: &Event) -> Result<(), Self::Error> {
        let text = |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().unwrap()).unwrap();
        let (key, value) = (text(&event.key), text(&event.value));
        let insert = "INSERT INTO effects (event_id, aggregate, value) VALUES ($1, $2, $3)";
        transaction.execute(insert, &[&event.id, &key, &value]).await?;
        if value.starts_with("fail") {
            // until the table is there
            transaction.batch_execute("SELECT FROM cure").await.map_err(|_| "there is no cure")?;
        }
        let sql = match value.as_str() {
            "swallow" => {
                drop(transaction.batch_execute("SELECT 1 / 0").await);
                return Ok(());
            }
            "no-row" => {
                transaction.query_one("SELECT WHERE false", &[]).await?;
                return Ok(());
            }
            "panic" => panic!("a handler that panics"),
            "slow" => "SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)",
            "end" => "ROLLBACK",
            "commit" | "fail-then-commit" => "COMMIT",
            "divide" => "SELECT 1 / 0",
            "kill" => "SELECT pg_terminate_backend(pg_backend_pid())",
            _ => return Ok(()),
        };
        Ok(transaction.batch_execute(sql).await?)
    }
}

/// A consumer in this process.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ConsumeError>>,
}

impl Running {
    pub(crate) fn start(consumer: KafkaConsumer) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(consumer.run(Effects, async { drop(stopped.await) }));
        Running { stop, task }
    }

    /// Asks it to stop.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }

    /// Waits until it stops by itself, and returns the message with its causes.
    pub(crate) async fn error(self) -> String {
        let ended = tokio::time::timeout(Duration::from_secs(180), self.task).await;
        let error = ended.expect("it does not stop").unwrap().unwrap_err();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
