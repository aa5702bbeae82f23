//! Clusters whose policy refuses topics, and what the router says in the brokers' own words.

use std::collections::BTreeMap;

use crate::commands::check::Found;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::private_kafka::kafka_tool;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings, positions_topic};
use crate::support::topic_policy::{TopicPolicy, Wanted};

fn setting<'a>(topic: &'a Wanted, name: &str) -> Option<&'a str> {
    topic.config.get(name).map(String::as_str)
}

fn large_segments(topic: &Wanted) -> Option<&'static str> {
    let bytes = setting(topic, "segment.bytes").map(|bytes| bytes.parse::<u64>().unwrap());
    bytes.is_some_and(|bytes| bytes < 50 << 20).then_some("segment.bytes must be at least 50 MB.")
}

fn fewer_settings(topic: &Wanted) -> Option<&'static str> {
    setting(topic, "min.cleanable.dirty.ratio").map(|_| "min.cleanable.dirty.ratio cannot be set")
}

fn several_partitions(topic: &Wanted) -> Option<&'static str> {
    (topic.partitions == 1).then_some("at least 3 partitions\n are needed")
}

fn no_settings(topic: &Wanted) -> Option<&'static str> {
    (!topic.config.is_empty()).then_some("topics have the settings of the cluster")
}

/// A policy, its words, and what the positions topic is created with.
type Case = (fn(&Wanted) -> Option<&'static str>, &'static str, &'static [(&'static str, &'static str)], i32);

const COMPACT: &[(&str, &str)] = &[("cleanup.policy", "compact")];

const CASES: [Case; 4] = [
    (large_segments, "segment.bytes must be at least 50 MB", COMPACT, 1),
    (fewer_settings, "min.cleanable.dirty.ratio cannot be set", COMPACT, 1),
    (several_partitions, "at least 3 partitions are needed", &[], -1),
    (no_settings, "topics have the settings of the cluster", &[], -1),
];

/// The settings of a router whose brokers have this policy.
fn behind(cluster: &TopicPolicy, outbox: &Outbox) -> Settings {
    Settings::new(outbox, &cluster.client())
        .set("delivery.positions_topic", positions_topic(outbox))
        .set("route.topic", outbox.topic("order"))
}

#[tokio::test]
async fn the_positions_topic_has_as_many_of_the_routers_settings_as_a_policy_accepts() {
    for (policy, words, config, partitions) in CASES {
        let (outbox, shared) = (Outbox::new().await, Kafka::shared());
        let topic = positions_topic(&outbox);
        // events have a topic already, which the policy is not asked about
        shared.create_topic(&outbox.topic("order"), 1, &[]).await;
        let cluster = TopicPolicy::start(policy);
        let settings = behind(&cluster, &outbox);

        let found = Found::with(&settings).await;
        let text = found.of("positions_topic");
        assert!(text.contains(words), "{text}");
        assert_eq!(text.starts_with("warning"), config.is_empty(), "{text}");
        assert_eq!((found.errors(), shared.partitions(&topic).await), (String::new(), 0), "{words}");

        let router = Router::active(&settings).await;
        outbox.insert("order", "a", "{}").await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        assert!(log.contains(words), "{log}");
        let warnings = log.lines().filter(|line| line.contains("deletes old checkpoints")).count();
        assert_eq!(warnings, usize::from(config.is_empty()), "{log}");
        let config: BTreeMap<_, _> =
            config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut accepted = cluster.accepted(&topic);
        // the router asks again until it sees the topic
        accepted.dedup();
        let [asked, created] = &accepted[..] else { panic!("{accepted:?}") };
        assert_eq!((&asked.config, asked.partitions), (&config, partitions), "{words}");
        assert_eq!(created, &Wanted { validate_only: false, ..asked.clone() });

        // the checkpoint is there
        outbox.insert("order", "a", "{}").await;
        let router = Router::active(&settings).await;
        outbox.all_confirmed().await;
        router.stop().await;
        shared.holds(&outbox.topic("order"), 2).await;
    }
}

#[tokio::test]
async fn a_policy_that_refuses_every_positions_topic_is_quoted_with_the_command_that_creates_it() {
    let (outbox, shared) = (Outbox::new().await, Kafka::shared());
    let topic = positions_topic(&outbox);
    shared.create_topic(&outbox.topic("order"), 1, &[]).await;
    let cluster = TopicPolicy::start(|topic| {
        topic.name.starts_with("positions").then_some("names begin with that of a team")
    });
    let settings = behind(&cluster, &outbox);
    let says = ["OBR-5005", "names begin with that of a team", "kafka-topics.sh", "cleanup.policy=compact"];
    let found = Found::with(&settings).await;
    let found = found.errors() + &found.of("positions_topic");
    assert!(says.iter().all(|words| found.contains(words)), "{found}");
    let ended = Router::start(&settings).exits(1).await;
    let log = ended.says(&says).message();

    // typed by somebody to whom the policy does not apply
    let (_, command) = log.split_once("kafka-topics.sh ").unwrap();
    let command = command.split('`').next().unwrap().replace(&cluster.client().bootstrap, &shared.bootstrap);
    let words: Vec<_> = command.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    let ran = kafka_tool("org.apache.kafka.tools.TopicCommand", &words);
    assert_eq!(ran.code, 0, "{command}: {ran:?}");
    shared.wait_for_setting(&topic, "cleanup.policy", "compact").await;
    assert_eq!(Found::with(&settings).await.errors(), "");
    Router::active(&settings).await.stop().await;
}

/// Something that the brokers refuse, and their own words.
struct Refused {
    /// A setting, if one is the cause.
    setting: Option<(&'static str, &'static str)>,
    aggregate_type: &'static str,
    /// Another topic.
    topic: Option<&'static str>,
    words: &'static str,
}

const REFUSED: [Refused; 3] = [
    Refused {
        setting: Some(("topics.config.'segment.bytes'", "small")),
        aggregate_type: "order",
        topic: None,
        words: "Invalid value small for configuration segment.bytes",
    },
    Refused {
        setting: Some(("topics.config.'no.such.setting'", "1")),
        aggregate_type: "order",
        topic: None,
        words: "Unknown topic config name: no.such.setting",
    },
    Refused {
        setting: None,
        aggregate_type: "two.words",
        topic: Some("two_words"),
        words: "collides with existing topic",
    },
];

impl Refused {
    /// An outbox with such an event, and the settings of a router.
    async fn set_up(&self) -> (Outbox, Settings) {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        if let Some(topic) = self.topic {
            kafka.create_topic(&outbox.topic(topic), 1, &[]).await;
        }
        outbox.insert(self.aggregate_type, "a", "{}").await;
        let settings = Settings::new(&outbox, &kafka);
        let settings = match self.setting {
            Some((key, value)) => settings.set(key, value),
            None => settings,
        };
        (outbox, settings)
    }
}

#[tokio::test]
async fn a_router_that_stops_at_an_event_quotes_the_broker() {
    for mode in MODES {
        for refused in &REFUSED {
            let (_outbox, settings) = refused.set_up().await;
            let settings = settings.set("delivery.mode", mode);
            Router::start(&settings).exits(3).await.says(&[refused.words]);
        }
    }
}

#[tokio::test]
async fn a_parked_event_quotes_the_broker() {
    for refused in &REFUSED {
        let (outbox, settings) = refused.set_up().await;
        let settings = settings.set("dead_letters.policy", "park");
        outbox.create_dead_letters_table().await;
        let router = Router::active(&settings).await;
        outbox.all_confirmed().await;
        router.stop().await;
        succeeded(settings.run(&["dead-letters", "show", "--json"]), &[refused.words]);
    }
}
