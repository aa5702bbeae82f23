//! Requests to create topics, and what the brokers say about those that they refuse.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use pg_logical::Secret;
use rdkafka::ClientContext;
use rdkafka::admin::AdminClient;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka_topic::{Answer, NewTopic, NotCreated, Options, create_topics};
use tokio_util::sync::CancellationToken;

use super::error_policy::{ErrorPolicy, error_policy, with_words};
use crate::config::{Config, Topics};
use crate::error::{Definite, Error, shell_word};

/// How many topics are created together at most.
const MAX_BATCH: usize = 500;

/// How many records of the cluster's metadata a request to create topics may need. Brokers take 10,000 and refuse all topics of
/// a larger request (`MAX_RECORDS_PER_USER_OP` of their controller).
const MAX_METADATA_RECORDS: usize = 2_000;

/// The brokers' default number of partitions is hardly larger, and there is room for a much larger one.
const DEFAULT_PARTITIONS: usize = 20;

/// How many topics with these settings one request may create.
pub(super) fn batch(wanted: &Topics) -> usize {
    let partitions = wanted.partitions.and_then(|count| usize::try_from(count).ok());
    let records = 1 + partitions.unwrap_or(DEFAULT_PARTITIONS) + wanted.config.len();
    (MAX_METADATA_RECORDS / records).clamp(1, MAX_BATCH)
}

/// Creates topics with the settings of `[topics]` by one request.
///
/// # Errors
/// No broker has answered.
pub(super) async fn create<A, C>(
    admin: A,
    topics: Vec<String>,
    wanted: &Topics,
    options: Options,
) -> Result<Vec<Answer>, KafkaError>
where
    A: Deref<Target = Arc<AdminClient<C>>> + Send + 'static,
    C: ClientContext,
{
    let (wanted, stop) = (wanted.clone(), CancellationToken::new());
    // if nobody waits any more, the thread ends
    let _stops = stop.clone().drop_guard();
    let created = tokio::task::spawn_blocking(move || {
        let new: Vec<_> = topics.iter().map(|topic| new_topic(topic, &wanted)).collect();
        create_topics(&admin, &new, options, || !stop.is_cancelled())
    });
    // fails only while the runtime shuts down
    created.await.unwrap_or(Err(KafkaError::Canceled))
}

/// The options of a request that only asks.
pub(super) fn only_ask(timeout: Duration) -> Options {
    Options { request_timeout: Some(timeout), operation_timeout: Some(timeout), validate_only: true }
}

fn new_topic<'a>(name: &'a str, wanted: &'a Topics) -> NewTopic<'a> {
    NewTopic {
        name,
        partitions: wanted.partitions,
        replicas: wanted.replication_factor,
        config: wanted.config.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
    }
}

/// The error with the brokers' words, and with the command by which somebody else may create the topic.
pub(super) fn refused(
    error: Error,
    refused: &NotCreated,
    config: &Config,
    topic: &str,
    wanted: &Topics,
) -> Error {
    match with_words(error, refused.words.as_deref()) {
        Error::Definite(error) if error_policy(refused.code) != ErrorPolicy::Denied => {
            let command = create_command(config, topic, wanted);
            let remedy =
                format!("{}, or create it with settings that the brokers accept: `{command}`", error.remedy);
            Definite { remedy: remedy.into(), ..error }.into()
        }
        error => error,
    }
}

/// Whether the brokers may create the topic with other settings.
pub(super) fn is_about_settings(code: Code) -> bool {
    matches!(code, Code::PolicyViolation | Code::InvalidConfig | Code::InvalidPartitions)
}

/// The command that creates a topic with the settings of `[topics]`.
pub fn create_command(config: &Config, topic: &str, wanted: &Topics) -> String {
    let servers = config.kafka.properties.get("bootstrap.servers").map_or("", Secret::reveal);
    let mut command = format!(
        "kafka-topics.sh --bootstrap-server {} --create --topic {}",
        shell_word(servers),
        shell_word(topic)
    );
    if let Some(partitions) = wanted.partitions {
        command += &format!(" --partitions {partitions}");
    }
    if let Some(replicas) = wanted.replication_factor {
        command += &format!(" --replication-factor {replicas}");
    }
    for (name, value) in &wanted.config {
        command += &format!(" --config {}", shell_word(&format!("{name}={value}")));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::minimal_with;

    #[test]
    fn a_batch_is_bounded_by_what_a_controller_takes_in_one_request() {
        let of = |partitions| batch(&Topics { partitions, ..Topics::default() });
        assert_eq!([Some(1), None, Some(12), Some(150), Some(9_000)].map(of), [500, 95, 153, 13, 1]);
        let config = (0..18).map(|number| (number.to_string(), String::new())).collect();
        assert_eq!(batch(&Topics { partitions: Some(1), config, ..Topics::default() }), 100);
    }

    #[test]
    fn the_command_has_all_settings() {
        let config = minimal_with("name = \"r\"");
        let of = |topics: &Topics| {
            let command = create_command(&config, "shop.order", topics);
            command.split_once(" --topic ").map(|(_, settings)| settings.to_owned()).unwrap()
        };
        assert_eq!(of(&Topics::default()), "shop.order");
        let config = [("a", "1"), ("b", "x y")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let all = Topics {
            partitions: Some(6),
            replication_factor: Some(3),
            config: config.into(),
            ..Topics::default()
        };
        assert_eq!(
            of(&all),
            "shop.order --partitions 6 --replication-factor 3 --config 'a=1' --config 'b=x y'"
        );
    }
}
