//! Information about brokers and topics for `check`. Nothing is sent or created.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};
use rdkafka_topic::NotCreated;

use super::acls::Grants;
use super::checkpoint_topic::{TopicSettings, refusal_of_all, what};
use super::client::Client;
use super::context::{is_refusal, log, token_error_code, token_status, without_times};
use super::error_policy::{error_of_code, error_of_kafka, error_of_request, with_words};
use super::topic_creation::{self, is_about_settings, only_ask};
use super::unreachable::no_answer;
use super::{PROBE_TIMEOUT, properties};
use crate::config::kafka_properties::without_users_of_urls;
use crate::config::{Config, Topics};
use crate::error::{Error, Exit, Peer};

/// How long an answer may take. `check` asks only once, and a busy broker is no fault of the configuration.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection for queries.
pub struct ClusterInfo {
    admin: Client<Arc<AdminClient<Quiet>>>,
    /// Reports why it cannot connect, which the administrative client does not.
    producer: Arc<BaseProducer<Quiet>>,
    config: Config,
    grants: Grants,
}

/// The brokers and topics of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The brokers' ids.
    pub brokers: Vec<i32>,
    /// The topics that the principal may see.
    pub topics: Vec<TopicInfo>,
}

/// A topic as described by the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    pub partitions: usize,
    /// The replicas of the partition that has the fewest.
    pub replicas: usize,
    /// Partitions without a leader: nothing can be written to them now.
    pub leaderless: usize,
}

/// The settings of a topic or a broker, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// A setting as text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A setting that is a number.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }
}

impl ClusterInfo {
    /// Waits for the first answer of a broker.
    ///
    /// # Errors
    /// None answers, or the credentials are refused.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let settings = properties::client(config);
        let context = Quiet::default();
        let last_error = Arc::clone(&context.last_error);
        let producer = Arc::new(properties::make(&settings, context)?);
        let admin = Client::new(Arc::new(properties::make(&settings, Quiet::default())?));
        let cluster_info =
            ClusterInfo { admin, producer, config: config.clone(), grants: Grants::of(config) };
        let heard = Arc::clone(&last_error);
        let answered = cluster_info.ask(move |producer| {
            let deadline = Instant::now() + ANSWER_TIMEOUT;
            loop {
                let answered = producer.client().fetch_cluster_id(PROBE_TIMEOUT).is_some();
                // each call passes some of the errors to the context
                (0..100).for_each(|_| producer.poll(Duration::ZERO));
                // no answer and no error may just be a busy broker
                let refused = heard.lock().unwrap_or_else(PoisonError::into_inner).is_some();
                if answered || refused || Instant::now() >= deadline {
                    return answered;
                }
            }
        });
        if answered.await == Some(true) {
            return Ok(cluster_info);
        }
        let last_error = last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(no_answer(config, last_error))
    }

    /// Brokers and topics.
    ///
    /// # Errors
    /// No answer in time.
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        let fetched = self.ask(|producer| producer.client().fetch_metadata(None, ANSWER_TIMEOUT)).await;
        let metadata = match fetched {
            Some(Ok(metadata)) => metadata,
            Some(Err(error)) => return Err(error_of_kafka("list the topics", &error, Exit::Refused)),
            None => return Err(Error::transient(Peer::Kafka, "cannot list the topics")),
        };
        let seen = metadata.topics().iter().filter(|topic| topic.error().is_none()).map(|topic| TopicInfo {
            name: topic.name().to_owned(),
            partitions: topic.partitions().len(),
            replicas: topic
                .partitions()
                .iter()
                .map(|partition| partition.replicas().len())
                .min()
                .unwrap_or(0),
            leaderless: topic.partitions().iter().filter(|partition| partition.leader() < 0).count(),
        });
        Ok(Cluster {
            brokers: metadata.brokers().iter().map(|broker| broker.id()).collect(),
            topics: seen.collect(),
        })
    }

    /// The settings of topics, in the order of `names`.
    ///
    /// # Errors
    /// No answer in time. For a single topic: no privilege.
    pub async fn topic_settings(&self, names: &[&str]) -> Result<Vec<Result<Settings, Error>>, Error> {
        let specifiers: Vec<ResourceSpecifier<'_>> =
            names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        self.settings(&specifiers).await
    }

    /// The settings of a broker, which topics without settings of their own inherit.
    ///
    /// # Errors
    /// No answer in time, or no privilege.
    pub async fn broker_settings(&self, id: i32) -> Result<Settings, Error> {
        let settings = self.settings(&[ResourceSpecifier::Broker(id)]).await?;
        settings.into_iter().next().unwrap_or_else(|| Ok(Settings::default()))
    }

    async fn settings(
        &self,
        specifiers: &[ResourceSpecifier<'_>],
    ) -> Result<Vec<Result<Settings, Error>>, Error> {
        let options = AdminOptions::new().request_timeout(Some(ANSWER_TIMEOUT));
        let described = self.admin.describe_configs(specifiers, &options).await;
        let described =
            described.map_err(|error| error_of_kafka("describe settings", &error, Exit::Refused))?;
        let settings = described.into_iter().map(|resource| match resource {
            Ok(resource) => {
                let entries = resource.entries.into_iter();
                Ok(Settings(entries.filter_map(|entry| Some((entry.name, entry.value?))).collect()))
            }
            Err(code) => Err(error_of_code("describe settings", code, Exit::Refused)),
        });
        Ok(settings.collect())
    }

    /// Asks whether `topic` could be created as `[topics]` says, without creating it.
    ///
    /// # Errors
    /// It could not be created.
    pub async fn may_create(&self, topic: &str) -> Result<(), Error> {
        self.may_create_each(&[topic]).await.pop().unwrap_or(Ok(()))
    }

    /// Asks the same question about each of several topics, in one request. The answers are in their order.
    pub async fn may_create_each(&self, topics: &[&str]) -> Vec<Result<(), Error>> {
        let what = |topic: &str| format!("create a topic like {topic}");
        let answers = self.ask_to_create(topics, &self.config.topics, what).await;
        let error = |(error, refused): (Error, Option<NotCreated>)| {
            with_words(error, refused.and_then(|refused| refused.words).as_deref())
        };
        answers.into_iter().map(|answer| answer.map_err(error)).collect()
    }

    /// With which settings the router would create the positions topic, and why not with more of its own.
    ///
    /// # Errors
    /// It could not be created.
    pub async fn may_create_positions(&self, topic: &str) -> Result<(TopicSettings, Option<String>), Error> {
        let mut errors = Vec::new();
        for settings in TopicSettings::ALL {
            let wanted = settings.of(&self.config);
            let create = |topic: &str| format!("create the topic {topic}");
            let answer = self.ask_to_create(&[topic], &wanted, create).await.pop();
            let Some(Err((error, refused))) = answer else {
                return Ok((settings, errors.last().map(|error| what(error).to_owned())));
            };
            let other_settings = refused.as_ref().is_some_and(|refused| is_about_settings(refused.code));
            errors.push(match refused {
                Some(refused) => topic_creation::refused(error, &refused, &self.config, topic, &wanted),
                None => error,
            });
            if !other_settings {
                break;
            }
        }
        Err(refusal_of_all(&self.config, errors))
    }

    /// Asks whether topics could be created with these settings. An error comes with the brokers' answer, if they have answered.
    async fn ask_to_create(
        &self,
        topics: &[&str],
        wanted: &Topics,
        what: impl Fn(&str) -> String,
    ) -> Vec<Result<(), (Error, Option<NotCreated>)>> {
        let names: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let admin = Client::new(Arc::clone(&self.admin));
        let mut answers: BTreeMap<String, _> =
            match topic_creation::create(admin, names, wanted, only_ask(ANSWER_TIMEOUT)).await {
                Ok(answers) => answers.into_iter().collect(),
                Err(error) => {
                    let failed = |topic: &&str| error_of_kafka(&what(topic), &error, Exit::Refused);
                    return topics.iter().map(|topic| Err((failed(topic), None))).collect();
                }
            };
        let answer = |topic: &&str| match answers.remove(*topic) {
            Some(Err(refused)) if refused.code != Code::TopicAlreadyExists => {
                let missing = || self.grants.missing_on_topic("CREATE", topic);
                let error = error_of_request(&what(topic), refused.code, Exit::Refused, missing);
                Err((error, Some(refused)))
            }
            _ => Ok(()),
        };
        topics.iter().map(answer).collect()
    }

    /// Runs a call of librdkafka that blocks.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&BaseProducer<Quiet>) -> T + Send + 'static,
    ) -> Option<T> {
        let producer = Arc::clone(&self.producer);
        tokio::task::spawn_blocking(move || call(&producer)).await.ok()
    }
}

/// Checks the properties under `[kafka]` by creating a producer without brokers.
///
/// # Errors
/// librdkafka refuses them: exit code 2.
pub fn verify(config: &Config) -> Result<(), Error> {
    let mut settings = properties::producer(config, properties::DEFAULT_BATCH_BYTES);
    settings.remove("bootstrap.servers");
    properties::make(&settings, Quiet::default()).map(|_: BaseProducer<_>| ())
}

/// Keeps errors for `check` to report, instead of logging them.
#[derive(Debug, Default)]
struct Quiet {
    token_refused: AtomicBool,
    last_error: Arc<Mutex<Option<(Code, String)>>>,
}

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        if let Some(status) = token_status(facility, message) {
            self.token_refused.store(is_refusal(status), Ordering::Relaxed);
        }
        log(RDKafkaLogLevel::Debug, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let code = token_error_code(code, reason, self.token_refused.load(Ordering::Relaxed));
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        // "all brokers down" follows the reason and says less
        if code != Code::AllBrokersDown || last.is_none() {
            *last = Some((code, without_users_of_urls(&without_times(reason)).into_owned()));
        }
    }
}

impl ProducerContext for Quiet {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
