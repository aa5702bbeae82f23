//! `check` on topics: those that the router may not write to, how many replicas acknowledge, and the positions topic.

use super::check::Found;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::private_kafka::kafka_tool;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Types the kafka-configs.sh command that `text` contains.
fn type_kafka_configs(text: &str) {
    let (_, rest) = text.split_once("kafka-configs.sh ").unwrap_or_else(|| panic!("no command in {text}"));
    let command = rest.split(['\n', '"', '`']).next().unwrap();
    let arguments: Vec<_> = command.split_whitespace().collect();
    let ran = kafka_tool("kafka.admin.ConfigCommand", &arguments);
    assert_eq!(ran.code, 0, "{command}: {ran:?}");
}

#[tokio::test]
async fn topics_that_are_not_allowed_stop_the_router_and_are_errors() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let all = Settings::new(&outbox, &kafka);
    let topic = |name: &str| outbox.topic(name);
    for (allow, error) in [
        (topic("*"), false),
        (topic("order*"), false),
        (format!("{}*created", outbox.name), false),
        (format!("/{}.*/", outbox.name), false),
        ("elsewhere.*".to_owned(), true),
        (format!("x{}*", outbox.name), true),
        ("orders".to_owned(), true),
    ] {
        let found = Found::with(&all.clone().set("topics.allow", vec![allow.clone()])).await;
        assert_eq!(found.of("topics").starts_with("error"), error, "{allow}: {}", found.of("topics"));
    }
    // the aggregate types in the table decide what the patterns leave open
    outbox.insert("customer", "a", "{}").await;
    for allow in [topic("order*"), format!("/{}[.]o.*/", outbox.name)] {
        let settings = all.clone().set("topics.allow", vec![allow]);
        let text = Found::with(&settings).await.of("topics");
        assert!(text.starts_with("error") && text.contains(&topic("customer")), "{text}");
        Router::start(&settings).exits(3).await.says(&[&topic("customer"), "`[topics] allow`"]);
    }
    let settings = all.set("topics.allow", vec![topic("order*"), topic("customer")]);
    assert!(!Found::with(&settings).await.of("topics").contains("error"));
}

#[tokio::test]
async fn a_positions_topic_that_is_an_event_topic_stops_the_router_and_is_an_error() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    outbox.insert("positions", "a", "{}").await;
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", outbox.topic("positions"));
    let text = Found::with(&settings).await.of("positions_topic");
    assert!(text.contains("error: ") && text.contains("events"), "{text}");
    Router::start(&settings).exits(3).await.says(&["positions"]);
    let settings = settings.set("route.topic", outbox.topic("positions"));
    Router::start(&settings).exits(2).await.says(&["route.topic", "routers keep their positions"]);
}

/// Kafka takes the smaller of min.insync.replicas and the replication factor from version 3.7 on.
#[tokio::test]
async fn more_replicas_in_sync_than_there_are_do_not_block_a_recent_broker() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("min.insync.replicas", "2")]).await;
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(1));
    let found = Found::with(&settings).await;
    assert_eq!(found.of("min_insync_replicas"), "");
    assert!(found.of("replication_factor").contains(&outbox.topic("order")), "one replica is still a risk");
}

#[tokio::test]
async fn a_positions_topic_that_loses_or_refuses_checkpoints() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let positions = outbox.topic("positions");
    let settings = Settings::new(&outbox, &kafka)
        .set("delivery.positions_topic", positions.as_str())
        .set("route.topic", outbox.topic("events"));
    let config = [("cleanup.policy", "delete"), ("retention.ms", "3600000"), ("max.message.bytes", "500")];
    kafka.create_topic(&positions, 1, &config).await;
    let found = Found::with(&settings).await;
    found.shown("positions_topic", &[(&kafka.bootstrap, "HOST"), (&outbox.name, "NAME")]);
    let text = found.of("positions_topic");
    assert!(text.contains("cleanup.policy = delete") && text.contains("60 minutes"), "{text}");
    assert!(text.contains("max.message.bytes"), "{text}");
    for remedy in text.split("\n-> ").skip(1) {
        type_kafka_configs(remedy);
    }
    let text = Found::with(&settings).await.of("positions_topic");
    assert!(!text.contains("error") && !text.contains("deletes"), "{text}");
}

#[tokio::test]
async fn run_warns_once_of_a_positions_topic_that_deletes_checkpoints() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let positions = outbox.topic("positions");
    let settings = Settings::new(&outbox, &kafka)
        .set("delivery.positions_topic", positions.as_str())
        .set("route.topic", outbox.topic("events"));
    kafka.create_topic(&positions, 1, &[("cleanup.policy", "delete")]).await;
    let mut router = Router::active(&settings).await;
    let first = outbox.active_pid().await;
    outbox.execute(&format!("SELECT pg_terminate_backend({first})")).await;
    router.logs_times("connected; events flow", 2).await;
    let log = router.stop().await.log;
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("deletes old checkpoints")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    type_kafka_configs(warnings[0]);
    kafka.wait_for_setting(&positions, "cleanup.policy", "compact").await;
}
