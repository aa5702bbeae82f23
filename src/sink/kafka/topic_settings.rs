//! The settings of topics that decide whether a record is accepted, and how safe it is.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::context::AdminContext;
use super::durability::TopicDurability;
use super::record_limits::TopicLimits;

/// How many topics one request describes. The answer takes about 15 kB for each, because it has all of a topic's settings.
const PER_REQUEST: usize = 25;

/// Describes topics that exist. Any `broker` knows their settings; librdkafka would ask the controller, which is not reachable in every
/// cluster.
///
/// # Errors
/// The brokers' answer for a topic, or for all of them.
pub(super) async fn describe(
    admin: &AdminClient<AdminContext>,
    topics: &[&str],
    broker: Option<i32>,
    timeout: Duration,
) -> Vec<Result<TopicLimits, KafkaError>> {
    let mut limits = Vec::with_capacity(topics.len());
    for topics in topics.chunks(PER_REQUEST) {
        limits.extend(describe_some(admin, topics, broker, timeout).await);
    }
    limits
}

async fn describe_some(
    admin: &AdminClient<AdminContext>,
    topics: &[&str],
    broker: Option<i32>,
    timeout: Duration,
) -> Vec<Result<TopicLimits, KafkaError>> {
    let specifiers: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let options = AdminOptions::new().request_timeout(Some(timeout)).broker_id(broker);
    let described = match admin.describe_configs(&specifiers, &options).await {
        Ok(described) => described,
        Err(KafkaError::AdminOp(Code::UnsupportedFeature)) => {
            warn(topics, "the broker does not support DescribeConfigs, so the topic's limits are unknown");
            return vec![Ok(TopicLimits::default()); topics.len()];
        }
        Err(error) => return topics.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut described = described.into_iter();
    let mut denied = Vec::new();
    let limits = topics.iter().map(|topic| match described.next() {
        Some(Ok(resource)) => Ok(limits(&resource)),
        Some(Err(Code::TopicAuthorizationFailed)) | None => {
            denied.push(*topic);
            Ok(TopicLimits::default())
        }
        Some(Err(code)) => Err(KafkaError::AdminOp(code)),
    });
    let limits = limits.collect();
    warn(&denied, "the router may not DESCRIBE_CONFIGS, so the topic's limits are unknown");
    limits
}

/// Logs a warning for the first of these topics.
fn warn(topics: &[&str], what: &str) {
    match topics {
        [] => {}
        [topic] => tracing::warn!(topic, "{what}"),
        [topic, more @ ..] => tracing::warn!(topic, and_others = more.len(), "{what}"),
    }
}

fn limits(resource: &ConfigResource) -> TopicLimits {
    let number = |name: &str| -> Option<i64> { resource.get(name)?.value.as_ref()?.parse().ok() };
    // Long.MAX_VALUE means no bound; before Kafka 3.6 one property stood for both directions
    let bound = |name: &str| {
        number(name)
            .or_else(|| number("message.timestamp.difference.max.ms"))
            .filter(|bound| *bound != i64::MAX)
    };
    let unclean = resource.get("unclean.leader.election.enable").and_then(|entry| entry.value.as_deref());
    TopicLimits {
        durability: TopicDurability {
            replicas: None,
            min_insync: number("min.insync.replicas"),
            capped: None,
            unclean: unclean == Some("true"),
        },
        cleanup_policy: resource.get("cleanup.policy").and_then(|entry| entry.value.clone()),
        max_message_bytes: number("max.message.bytes").and_then(|bytes| usize::try_from(bytes).ok()),
        timestamp_before_ms: bound("message.timestamp.before.max.ms"),
        timestamp_after_ms: bound("message.timestamp.after.max.ms"),
        ..TopicLimits::default()
    }
}
