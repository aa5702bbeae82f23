//! How the positions topic is created: with the settings of [`SMALL_SEGMENTS`], or with as many of them as the brokers accept.

use std::fmt;
use std::sync::Arc;

use crate::config::{Config, DeliveryMode, Topics};
use crate::error::{Definite, Error, ErrorCode, Peer};
use crate::sink::kafka::context::AdminContext;
use crate::sink::kafka::record_limits::TopicLimits;
use crate::sink::kafka::topic_creation::create_command;
use crate::sink::kafka::topics::TopicKeeper;

/// Small segments, compacted soon, because a start may read the whole topic.
const SMALL_SEGMENTS: [(&str, &str); 5] = [
    ("cleanup.policy", "compact"),
    ("segment.bytes", "1048576"),
    ("segment.ms", "600000"),
    ("min.cleanable.dirty.ratio", "0.01"),
    ("max.compaction.lag.ms", "600000"),
];

/// The settings of the topic if the router creates it. Where a cluster's policy refuses one kind, the next is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicSettings {
    /// All of the router's.
    SmallSegments,
    /// It is compacted; everything else is up to the brokers.
    Compacted,
    /// The brokers' defaults, the number of partitions too. The router uses the first.
    Defaults,
}

impl TopicSettings {
    /// In the order in which they are tried.
    pub const ALL: [TopicSettings; 3] =
        [TopicSettings::SmallSegments, TopicSettings::Compacted, TopicSettings::Defaults];

    /// The settings, and those that `[topics]` has for every topic.
    pub fn of(self, config: &Config) -> Topics {
        let (partitions, settings) = match self {
            TopicSettings::SmallSegments => (Some(1), &SMALL_SEGMENTS[..]),
            TopicSettings::Compacted => (Some(1), &SMALL_SEGMENTS[..1]),
            TopicSettings::Defaults => (None, &[][..]),
        };
        let setting = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Topics {
            partitions,
            config: settings.iter().map(setting).collect(),
            allow: Vec::new(),
            ..config.topics.clone()
        }
    }
}

impl fmt::Display for TopicSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopicSettings::SmallSegments => "small segments that are compacted soon",
            TopicSettings::Compacted => "cleanup.policy=compact alone",
            TopicSettings::Defaults => "the brokers' defaults",
        })
    }
}

/// The command that creates the topic, for somebody whose settings the brokers accept.
pub fn create_positions_command(config: &Config, topic: &str) -> String {
    create_command(config, topic, &TopicSettings::Compacted.of(config))
}

/// Why the router's settings were refused: of several errors the one about the fewest settings of its own.
pub(in crate::sink::kafka) fn refusal_of_all(config: &Config, errors: Vec<Error>) -> Error {
    // the command in the second one makes a compacted topic; the third is about the brokers' defaults
    match errors.into_iter().take(2).next_back() {
        Some(Error::Definite(refused)) => cannot_be_used(config, refused),
        Some(transient) => transient,
        None => Error::transient(Peer::Kafka, "the positions topic was not created"),
    }
}

/// No event waits for this topic, so it is refused rather than unsafe.
fn cannot_be_used(config: &Config, refused: Definite) -> Error {
    let Definite { what, remedy, .. } = refused;
    let optional = config.delivery.mode == DeliveryMode::AtLeastOnce && config.shards.count == 1;
    let without = if optional {
        ", and false switches it off: then the router resumes at the slot's position, which may be older, and what was sent since is \
         sent twice"
    } else {
        ""
    };
    Error::refused(
        ErrorCode::PositionsTopic,
        format!("the positions topic cannot be used: {what}"),
        format!("{remedy}; `[delivery] positions_topic` names it{without}"),
    )
}

/// Makes sure that the topic exists.
///
/// # Errors
/// It cannot be created or used.
pub(super) async fn prepare(config: &Config, topic: &str) -> Result<TopicLimits, Error> {
    let mut errors = Vec::new();
    for settings in TopicSettings::ALL {
        let context = AdminContext::default();
        let keeper = Arc::new(TopicKeeper::new(config, context, settings.of(config), Arc::default())?);
        let prepared = Arc::clone(&keeper).prepare(vec![topic.to_owned()], true).await;
        let not_ready = || Error::transient(Peer::Kafka, format!("the topic {topic} is not ready yet"));
        match prepared.into_iter().next().map_or_else(|| Err(not_ready()), |(_, limits)| limits) {
            Ok(mut limits) => {
                if let Some(refused) = errors.last() {
                    tracing::info!(
                        topic,
                        "created with {settings}, because the brokers refuse more: {}",
                        what(refused)
                    );
                }
                if settings == TopicSettings::Defaults && keeper.is_creating() {
                    // if the principal may not read the topic's settings, it may delete checkpoints
                    limits
                        .cleanup_policy
                        .get_or_insert_with(|| "delete, unless the brokers' default is compact".to_owned());
                }
                return Ok(limits);
            }
            Err(error) => {
                let other_settings = keeper.settings_were_refused() && matches!(error, Error::Definite(_));
                errors.push(error);
                if !other_settings {
                    break;
                }
            }
        }
    }
    Err(refusal_of_all(config, errors))
}

/// What an error says, without what to do about it.
pub(in crate::sink::kafka) fn what(error: &Error) -> &str {
    match error {
        Error::Definite(error) => &error.what,
        Error::Transient(error) => &error.what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::minimal_with;

    #[test]
    fn each_kind_of_settings_asks_for_less() {
        let config = minimal_with("[topics]\nreplication_factor = 3\nconfig = { \"retention.ms\" = \"1\" }");
        let commands = TopicSettings::ALL.map(|settings| {
            let command = create_command(&config, "p", &settings.of(&config));
            command.split_once(" --topic p ").map(|(_, settings)| settings.to_owned()).unwrap()
        });
        assert_eq!(
            commands,
            [
                "--partitions 1 --replication-factor 3 --config 'cleanup.policy=compact' --config \
                 'max.compaction.lag.ms=600000' --config 'min.cleanable.dirty.ratio=0.01' --config 'segment.bytes=1048576' \
                 --config 'segment.ms=600000'",
                "--partitions 1 --replication-factor 3 --config 'cleanup.policy=compact'",
                "--replication-factor 3",
            ]
        );
    }

    #[test]
    fn of_several_refusals_the_one_about_compaction_alone_is_shown() {
        let config = minimal_with("name = \"r\"");
        let error = |what: &str| Error::refused(ErrorCode::KafkaRefused, what, "act");
        for (errors, shown) in [(vec!["a"], "a"), (vec!["a", "b"], "b"), (vec!["a", "b", "c"], "b")] {
            let refused = refusal_of_all(&config, errors.into_iter().map(error).collect());
            assert_eq!(what(&refused), format!("the positions topic cannot be used: {shown}"));
        }
    }
}
