//! Whether the topics accept every event, and retain it.

use super::allowed_topics;
use super::finding::Findings;
use super::kafka::KafkaState;
use super::outbox::OutboxFacts;
use crate::config::Config;
use crate::config::template::Template;
use crate::error::{Definite, Error, ErrorCode, Remedy, Step, Transient};
use crate::quantity::{bytes, counted};
use crate::sink::kafka::cluster_info::{Settings, TopicInfo};
use crate::sink::kafka::durability::TopicDurability;
use crate::sink::kafka::properties;
use crate::sink::kafka::topic_creation::create_command;

/// The size of a record and its batch, in bytes, beyond the row's values: header names, lengths, checksums.
const OVERHEAD: u64 = 200;

/// How many further topics that cannot be created are named.
const NAMED: usize = 5;

/// A consumer that is away for a day should still find its events.
const SHORT_RETENTION_MS: i64 = 24 * 3_600_000;

/// Checks the topics that exist, and how new ones would be created.
pub(super) fn check(
    config: &Config,
    kafka_state: &KafkaState,
    outbox: Option<&OutboxFacts>,
    findings: &mut Findings,
) {
    for template in config.route.topics() {
        presence(config, template, kafka_state, findings);
    }
    if let Some(error) = not_created(&kafka_state.may_create) {
        findings.failure("topic_creation", error, "Check `[topics]` and the brokers' logs");
    }
    let before = findings.0.len();
    for (topic, settings) in &kafka_state.topics {
        durability(topic, settings.as_ref(), kafka_state.capped, findings);
        match settings {
            Some(settings) => check_settings(config, &topic.name, settings, outbox, findings),
            None => findings.skipped(
                "topic_settings",
                format!("no right to read the settings of the topic {} (DESCRIBE_CONFIGS)", topic.name),
            ),
        }
    }
    if !kafka_state.topics.is_empty() && findings.0.len() == before {
        findings.ok(
            "topic_settings",
            "replicas, min.insync.replicas, max.message.bytes and retention.ms are sufficient",
        );
    }
    if !kafka_state.may_create.is_empty() {
        new_topics(config, kafka_state, outbox, findings);
    }
}

fn presence(config: &Config, template: &Template, kafka_state: &KafkaState, findings: &mut Findings) {
    if !allowed_topics::may_be_written(config, template) {
        return;
    }
    let count = kafka_state.names.iter().filter(|name| template.may_produce(name)).count();
    let refused =
        |topic: &str| kafka_state.may_create.iter().any(|(name, may)| name == topic && may.is_err());
    match (template.fixed(), count) {
        (Some(fixed), 0) if !config.topics.create => {
            findings.error(
                "topics",
                ErrorCode::EventTopic,
                format!("the topic {fixed} does not exist and `[topics] create` is false"),
                Remedy::steps([Step::new("Create it, or set `create = true`").typing(create_command(
                    config,
                    fixed,
                    &config.topics,
                ))]),
            );
        }
        // the reason is a finding of its own
        (Some(fixed), 0) if refused(fixed) => {}
        (Some(fixed), 0) => findings.ok("topics", format!("{fixed} will be created before its first record")),
        (Some(fixed), _) => findings.ok("topics", format!("{fixed} exists")),
        (None, 0) if !config.topics.create => {
            findings.warning(
                "topics",
                format!("no topic of {template} is visible, and `[topics] create` is false"),
                "Create one for each aggregate type before its first event, or set `create = true`: the router stops \
                 at an event whose topic is missing",
            );
        }
        (None, 0) => findings.ok(
            "topics",
            format!("no topic of {template} exists yet; each is created before its first record"),
        ),
        (None, count) => {
            let more =
                if config.topics.create { "; others are created before their first records" } else { "" };
            findings.ok("topics", format!("{} of {template}{more}", counted(count, "topic")));
        }
    }
}

/// Why topics cannot be created: the reason for the first, and which others there are.
fn not_created(asked: &[(String, Result<(), Error>)]) -> Option<Error> {
    let mut refused = asked.iter().filter_map(|(topic, may)| Some((topic, may.as_ref().err()?)));
    let (_, error) = refused.next()?;
    let others: Vec<&str> = refused.map(|(topic, _)| topic.as_str()).collect();
    let named = others.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = match others.len() {
        0 => String::new(),
        1..=NAMED => format!("; nor can {named} be created"),
        all => format!("; nor can {named} and {} be created", counted(all - NAMED, "other")),
    };
    Some(match error.clone() {
        Error::Definite(refused) => Definite { what: refused.what + &more, ..refused }.into(),
        Error::Transient(failed) => Transient { what: failed.what + &more, ..failed }.into(),
    })
}

pub(super) fn durability(
    topic: &TopicInfo,
    settings: Option<&Settings>,
    capped: Option<bool>,
    findings: &mut Findings,
) {
    let name = &topic.name;
    if topic.leaderless > 0 {
        findings.error(
            "topic_leader",
            ErrorCode::TopicUnavailable,
            format!(
                "{} of {} partitions of the topic {name} have no leader",
                topic.leaderless, topic.partitions
            ),
            "Start the brokers that host them: until then events for these partitions wait, and so do later events",
        );
    }
    let durability = TopicDurability {
        replicas: i64::try_from(topic.replicas).ok(),
        min_insync: settings.and_then(|settings| settings.number("min.insync.replicas")),
        capped,
        unclean: settings
            .is_some_and(|settings| settings.get("unclean.leader.election.enable") == Some("true")),
    };
    acknowledgements(&format!("the topic {name}"), durability, findings);
}

/// Whether an acknowledged record survives the loss of a broker, and whether it can be acknowledged at all.
fn acknowledgements(who: &str, durability: TopicDurability, findings: &mut Findings) {
    for weakness in durability.weaknesses() {
        let what = format!("{who}: {}", weakness.what);
        if weakness.blocks == Some(true) {
            findings.error(weakness.name, ErrorCode::TopicAtRisk, what, weakness.remedy);
        } else {
            findings.warning(weakness.name, what, weakness.remedy);
        }
    }
}

fn check_settings(
    config: &Config,
    name: &str,
    settings: &Settings,
    outbox: Option<&OutboxFacts>,
    findings: &mut Findings,
) {
    let compacted = settings.get("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
    if compacted && outbox.is_some_and(|outbox| outbox.nullable_aggregate) {
        findings.warning(
            "cleanup_policy",
            format!(
                "the topic {name} is compacted, so it refuses records without a key, and aggregate_id may be NULL"
            ),
            "Make the column NOT NULL, or set cleanup.policy = delete: the router stops at such an event",
        );
    }
    size(config, &format!("the topic {name}"), settings.number("max.message.bytes"), outbox, findings);
    if let Some(retention) = settings.number("retention.ms")
        && (0..SHORT_RETENTION_MS).contains(&retention)
    {
        findings.warning(
            "retention",
            format!("the topic {name} keeps records for {} minutes", retention / 60_000),
            "Raise retention.ms to longer than a consumer may be away",
        );
    }
}

fn size(
    config: &Config,
    who: &str,
    limit: Option<i64>,
    outbox: Option<&OutboxFacts>,
    findings: &mut Findings,
) {
    let Some(largest) = outbox.and_then(|outbox| outbox.largest_row) else { return };
    let Some(limit) = limit.and_then(|limit| u64::try_from(limit).ok()) else { return };
    if largest + OVERHEAD <= limit {
        return;
    }
    let what = format!(
        "{who} accepts at most {} (max.message.bytes), and a row in the table has {}",
        bytes(limit),
        bytes(largest)
    );
    if properties::compresses(config) {
        let remedy = "Raise max.message.bytes, unless compression makes such rows small enough";
        findings.warning("message_size", what, remedy);
    } else {
        let remedy = "Raise max.message.bytes, set a compression.type under `[kafka]`, or write smaller payloads: the \
                      router stops at such an event. A row that was sent before or skipped counts until it is deleted";
        findings.error("message_size", ErrorCode::EventTooLarge, what, remedy);
    }
}

/// Checks the settings that a topic would have if the router created it.
fn new_topics(
    config: &Config,
    kafka_state: &KafkaState,
    outbox: Option<&OutboxFacts>,
    findings: &mut Findings,
) {
    let Some(defaults) = &kafka_state.defaults else {
        return findings.skipped(
            "new_topics",
            "no right to read the brokers' defaults (DESCRIBE_CONFIGS on the cluster)",
        );
    };
    let own = |name: &str| config.topics.config.get(name).and_then(|value| value.parse().ok());
    let replicas = config.topics.replication_factor.map(i64::from);
    let replicas =
        replicas.filter(|replicas| *replicas > 0).or(defaults.number("default.replication.factor"));
    let insync = own("min.insync.replicas").or(defaults.number("min.insync.replicas"));
    let unclean = "unclean.leader.election.enable";
    let unclean =
        config.topics.config.get(unclean).map(String::as_str).or(defaults.get(unclean)) == Some("true");
    let before = findings.0.len();
    if let Some(replicas) = replicas {
        let durability = TopicDurability {
            replicas: Some(replicas),
            min_insync: insync,
            capped: kafka_state.capped,
            unclean,
        };
        acknowledgements("a topic that the router creates", durability, findings);
        if usize::try_from(replicas).is_ok_and(|replicas| replicas > kafka_state.brokers) {
            findings.error(
                "replication_factor",
                ErrorCode::TopicUnavailable,
                format!("a topic that the router creates: the replication factor is {replicas}, and the cluster has {}", counted(kafka_state.brokers, "broker")),
                "Lower `[topics] replication_factor` or the brokers' default.replication.factor",
            );
        }
    }
    let limit = own("max.message.bytes").or(defaults.number("message.max.bytes"));
    size(config, "a topic that the router creates", limit, outbox, findings);
    if findings.0.len() == before {
        let (replicas, insync) = (replicas.unwrap_or_default(), insync.unwrap_or_default());
        findings.ok(
            "new_topics",
            format!("are created with the replication factor {replicas} and min.insync.replicas = {insync}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Peer;

    #[test]
    fn every_topic_that_cannot_be_created_counts() {
        let asked = |refused: usize| -> Vec<(String, Result<(), Error>)> {
            let error = |n| Error::transient(Peer::Kafka, format!("cannot create t{n}"));
            (0..60)
                .map(|n| (format!("t{n}"), if n >= 60 - refused { Err(error(n)) } else { Ok(()) }))
                .collect()
        };
        for (refused, expected) in [
            (0, None),
            (1, Some("cannot create t59")),
            (3, Some("cannot create t57; nor can t58, t59 be created")),
            (60, Some("cannot create t0; nor can t1, t2, t3, t4, t5 and 54 others be created")),
        ] {
            let what = not_created(&asked(refused)).map(|error| error.to_string());
            assert_eq!(what.as_deref(), expected);
        }
    }
}
