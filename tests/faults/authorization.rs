//! Rights are taken away under the running router, and given back.

use rand::Rng;

use crate::support::comparison::{Repeats, same};
use crate::support::outbox::Outbox;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka, kafka_tool};
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::writers::Writers;

/// Changes what `outbox-router` may do with topics that begin with this, or have just this name.
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
    let ran = kafka_tool("org.apache.kafka.tools.AclCommand", &arguments);
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// What the router needs for its position, which nobody takes away here.
pub(crate) fn may_remember(broker: &PrivateKafka) {
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
async fn authorization_taken_away_under_load_is_waited_for_and_named() {
    const TAKEN: [&[&str]; 2] = [&["Write"], &["Write", "Describe", "DescribeConfigs", "Create"]];
    let mut random = seed::random();
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    may_remember(&broker);
    acl(&broker, "--add", TAKEN[1], &outbox.name, "prefixed");
    let mut router = Router::active(&settings(&outbox, &broker)).await;
    let writers = Writers::start(&outbox, 2, &mut random).await;
    let mut seen = 0;
    for taken in TAKEN {
        kafka.holds(&outbox.name, seen + random.random_range(1..300)).await;
        acl(&broker, "--remove", taken, &outbox.name, "prefixed");
        router
            .shows("the router says what it may not do, and to which topic", |status| {
                let reason = status["reason"].as_str()?;
                (status["state"] == "reconnecting"
                    && reason.contains(&outbox.name)
                    && reason.contains("WRITE")
                    && reason.contains("--print-acls"))
                .then_some(())
            })
            .await;
        seen = kafka.count(&outbox.name).await.unwrap();
        acl(&broker, "--add", taken, &outbox.name, "prefixed");
        kafka.holds(&outbox.name, seen + 1).await;
        router.ready().await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert!(!log.contains("slot advance"), "{log}");
    // each time once for each of three topics, and once for the producer's number, however many attempts there were
    assert!(log.matches("nothing is acknowledged").count() <= 4 * TAKEN.len(), "{log}");
    // of each of three topics the records under way may have been written and not acknowledged
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3 * TAKEN.len())).await;
}

/// Each attempt starts at the event that is denied. What follows it, to topics that take it, must not go out each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_taken_away_for_one_topic_repeats_nothing_of_another_at_each_attempt() {
    const ALL: &[&str] = &["Write", "Describe", "DescribeConfigs", "Create"];
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    may_remember(&broker);
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
        .shows("it has tried several times", |status| {
            (status["reconnects"]["kafka"].as_u64()? >= 6).then_some(())
        })
        .await;
    assert_eq!(router.get("/readyz").unwrap().0, 503);
    acl(&broker, "--add", &["Write"], &outbox.topic("order"), "literal");
    outbox.all_confirmed().await;
    router.ready().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(2)).await;
}
