//! Kafka's ACLs are revoked from a running router, and granted again.

use rand::Rng;

use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka, kafka_tool};
use crate::support::router::{Router, waits};
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// Adds or removes ACLs of `outbox-router` for a topic, or for all topics with this prefix.
pub(crate) fn acl(broker: &PrivateKafka, how: &str, operations: &[&str], topic: &str, pattern: &str) {
    let client = broker.client();
    let mut arguments =
        vec!["--bootstrap-server", &client.bootstrap, how, "--allow-principal", "User:outbox-router"];
    for operation in operations {
        arguments.extend(["--operation", operation]);
    }
    arguments.extend(["--topic", topic, "--resource-pattern-type", pattern]);
    if how == "--remove" {
        arguments.push("--force");
    }
    succeeded(kafka_tool("org.apache.kafka.tools.AclCommand", &arguments), &[]);
}

/// Grants what the router needs for its checkpoints. The tests revoke none of it.
pub(crate) fn grant_checkpoints(broker: &PrivateKafka) {
    let operations = ["Read", "Write", "Describe", "DescribeConfigs", "Create"];
    acl(broker, "--add", &operations, "outbox-router.positions", "literal");
}

pub(crate) fn settings(outbox: &Outbox, broker: &PrivateKafka) -> Settings {
    Settings::new(outbox, &broker.client())
        .set("kafka.'bootstrap.servers'", broker.extra())
        .set("kafka.'security.protocol'", "sasl_plaintext")
        .set("kafka.'sasl.mechanism'", "PLAIN")
        .set("kafka.'sasl.username'", "outbox-router")
        .set("kafka.'sasl.password'", "secret")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn authorization_revoked_under_load_is_waited_for_and_named() {
    const REVOKED: [&[&str]; 2] = [&["Write"], &["Write", "Describe", "DescribeConfigs", "Create"]];
    let mut random = seed::random();
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    grant_checkpoints(&broker);
    acl(&broker, "--add", REVOKED[1], &outbox.name, "prefixed");
    let mut router = Router::active(&settings(&outbox, &broker)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    let mut seen = 0;
    for revoked in REVOKED {
        kafka.holds(&outbox.name, seen + random.random_range(1..300)).await;
        acl(&broker, "--remove", revoked, &outbox.name, "prefixed");
        router
            .shows("the reason names the topic and the missing privilege", |status| {
                let reason = status["reason"].as_str()?;
                (waits(status)
                    && reason.contains(&outbox.name)
                    && reason.contains("WRITE")
                    && reason.contains("--print-acls"))
                .then_some(())
            })
            .await;
        seen = kafka.count(&outbox.name).await.unwrap();
        acl(&broker, "--add", revoked, &outbox.name, "prefixed");
        kafka.holds(&outbox.name, seen + 1).await;
        router.ready().await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert!(!log.contains("slot advance"), "{log}");
    // each time at most once for each of three topics and once for the producer id, however many attempts there were
    assert!(log.matches("nothing is acknowledged").count() <= 4 * REVOKED.len(), "{log}");
    // for each of three topics, records in flight may have been written without being acknowledged
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3 * REVOKED.len())).await;
}

/// Each attempt starts at the denied event. Later events for other topics must not be sent again with each attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn authorization_revoked_for_one_topic_does_not_repeat_events_of_another() {
    const ALL: &[&str] = &["Write", "Describe", "DescribeConfigs", "Create"];
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    grant_checkpoints(&broker);
    for topic in ["order", "customer"] {
        acl(&broker, "--add", ALL, &outbox.topic(topic), "literal");
    }
    let mut router = Router::active(&settings(&outbox, &broker)).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.insert_numbers("customer", "b", 1..4).await;
    outbox.all_confirmed().await;
    acl(&broker, "--remove", &["Write"], &outbox.topic("order"), "literal");
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.insert_numbers("customer", "b", 4..104).await;
    router
        .shows("the router has made several attempts", |status| {
            (status["reconnects"]["kafka"].as_u64()? >= 6).then_some(())
        })
        .await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    acl(&broker, "--add", &["Write"], &outbox.topic("order"), "literal");
    outbox.all_confirmed().await;
    router.ready().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(2)).await;
}

/// The topic refuses the commit time, and the router does not know the topic's settings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn authorization_to_read_the_topics_settings_lets_an_old_event_be_sent() {
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 1, &[("message.timestamp.before.max.ms", "5000")]).await;
    grant_checkpoints(&broker);
    acl(&broker, "--add", &["Write", "Describe"], &topic, "literal");
    outbox.insert_numbers("order", "a", 1..2).await;
    eventually("the event is too old", async || {
        outbox.query("SELECT FROM outbox WHERE created_at < clock_timestamp() - interval '6 s'").await.pop()
    })
    .await;
    let settings = settings(&outbox, &broker);
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&["InvalidTimestamp", "DESCRIBE_CONFIGS", "`outbox-router init --print-acls`"]).shown(&outbox);
    // it is the commit time already
    assert!(!ended.message().contains("timestamp = \"commit\""), "{}", ended.message());

    let printed = settings.run(&["init", "--print-acls"]);
    assert!(printed.out.contains("DescribeConfigs"), "{printed:?}");
    acl(&broker, "--add", &["DescribeConfigs"], &topic, "literal");
    let router = Router::start(&settings);
    kafka.holds(&outbox.name, 1).await;
    outbox.all_confirmed().await;
    router.stop().await;
}
