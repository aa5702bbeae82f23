//! A partition cannot be added to the transaction. librdkafka at most logs a warning, and waits.

use std::time::Duration;

use super::settings;
use crate::bulk_reads::PG_HBA;
use crate::faults::authorization::{acl, grant_checkpoints, settings as authorized};
use crate::support::eventually::eventually;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::{AUTHORIZING, PrivateKafka, kafka_tool};
use crate::support::router::{Router, waits};
use crate::support::settings::Settings;
use crate::support::signal::Signal;

/// No transaction times out during a test, so a router that waited for that would never continue.
fn patient(settings: Settings) -> Settings {
    settings.set("kafka.'transaction.timeout.ms'", 600_000).set("delivery.mode", "exactly-once")
}

async fn numbers(outbox: &Outbox, kafka: &Kafka) -> Vec<u64> {
    kafka.committed(&outbox.name).await.unwrap().iter().map(Record::number).collect()
}

/// Transactional ids begin with the router's name, which begins with the outbox's.
fn grant_transactions(broker: &PrivateKafka, outbox: &Outbox) {
    let client = broker.client();
    succeeded(
        kafka_tool(
            "org.apache.kafka.tools.AclCommand",
            &[
                "--bootstrap-server",
                &client.bootstrap,
                "--add",
                "--allow-principal",
                "User:outbox-router",
                "--operation",
                "Write",
                "--operation",
                "Describe",
                "--transactional-id",
                &outbox.name,
                "--resource-pattern-type",
                "prefixed",
            ],
        ),
        &[],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_without_write_permission_waits_for_it_and_names_it() {
    let broker = PrivateKafka::start(&AUTHORIZING).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let positions = "outbox-router.positions";
    grant_checkpoints(&broker);
    grant_transactions(&broker, &outbox);
    acl(&broker, "--add", &["Write", "Describe", "DescribeConfigs", "Create"], &outbox.name, "prefixed");
    let mut router = Router::active(&patient(authorized(&outbox, &broker))).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    let mut next = 4;
    for (topic, named, pattern) in [
        (outbox.name.clone(), outbox.topic("order"), "prefixed"),
        (positions.into(), positions.into(), "literal"),
    ] {
        acl(&broker, "--remove", &["Write"], &topic, pattern);
        outbox.insert_numbers("order", "a", next..next + 3).await;
        router
            .shows("the reason names the topic and the missing privilege", |status| {
                let reason = status["reason"].as_str()?;
                (waits(status)
                    && reason.contains(&named)
                    && reason.contains("WRITE")
                    && reason.contains("--print-acls"))
                .then_some(())
            })
            .await;
        assert_eq!(router.get_now("/readyz").await.0, 503);
        router.logs(&format!("lacks WRITE on the topic {named}")).await;
        acl(&broker, "--add", &["Write"], &topic, pattern);
        outbox.all_confirmed().await;
        router.ready().await;
        next += 3;
    }
    router.stop().await;
    assert_eq!(numbers(&outbox, &kafka).await, (1..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn exactly_once_continues_in_a_topic_recreated_with_fewer_partitions() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = outbox.topic("order");
    kafka.create_topic(&topic, 6, &[]).await;
    let mut router = Router::active(&patient(settings(&outbox, &kafka))).await;
    let keys: Vec<_> = (0..12).map(|key| key.to_string()).collect();
    for key in &keys {
        outbox.insert_numbers("order", key, 1..2).await;
    }
    outbox.all_confirmed().await;
    kafka.delete_topic(&topic).await;
    kafka.ensure_topic(&topic, 1).await;
    for key in &keys {
        outbox.insert_numbers("order", key, 2..3).await;
    }
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    // the records before the deletion are gone with the topic
    assert_eq!(numbers(&outbox, &kafka).await, [2; 12]);
}

/// The transaction then accepts no further records, and Kafka never reports on those it has.
#[tokio::test]
async fn exactly_once_a_checkpoint_refused_by_its_topic_is_explained_and_written_again() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let positions = format!("positions-{}", outbox.name);
    let settings = patient(settings(&outbox, &kafka)).set("delivery.positions_topic", positions.as_str());
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    // this limit still fits the markers of transactions
    kafka.alter_topic(&positions, &[("max.message.bytes", "200")]).await;
    // in one statement, because a later record would reveal that the transaction accepts no more
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order', 'a', jsonb_build_object('n', n) FROM generate_series(4, 13) n",
        )
        .await;
    router
        .shows("the reason names the topic, the error and the remedy", |status| {
            let reason = status["reason"].as_str()?;
            let parts = [positions.as_str(), "MessageSizeTooLarge", "Raise the topic's max.message.bytes"];
            parts.into_iter().all(|part| reason.contains(part)).then_some(())
        })
        .await;
    assert_eq!(router.get_now("/readyz").await.0, 503);
    kafka.alter_topic(&positions, &[("max.message.bytes", "1000000")]).await;
    router.ready().await;
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert!(!log.contains("producer quota"), "{log}");
    assert_eq!(numbers(&outbox, &kafka).await, (1..14).collect::<Vec<_>>());
    kafka.delete_topic(&positions).await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_continues_after_the_brokers_have_lost_their_transactions() {
    // beside other tests the end of the log moves, and a transaction with a checkpoint may be open when the topic is deleted
    let server = PrivatePostgres::start(PG_HBA, &["autovacuum=off"]).await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let mut router = Router::active(&patient(settings(&outbox, &kafka))).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    kafka.delete_topic("__transaction_state").await;
    outbox.insert_numbers("order", "a", 4..7).await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    assert_eq!(numbers(&outbox, &kafka).await, (1..7).collect::<Vec<_>>());
}

/// This happens after a week without an event (`transactional.id.expiration.ms`).
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn exactly_once_continues_after_its_transactional_ids_have_expired() {
    let broker = PrivateKafka::start(&[
        "transactional.id.expiration.ms=1000",
        "transaction.remove.expired.transaction.cleanup.interval.ms=200",
    ])
    .await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    // while others write to the same server the router commits its position every second, so it is frozen for a while
    let settings = patient(settings(&outbox, &kafka)).set("postgres.wal_sender_timeout", "60s");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.signal(Signal::Stop);
    eventually("the brokers have forgotten the transactional ids", async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let listed = kafka_tool(
            "org.apache.kafka.tools.TransactionsCommand",
            &["--bootstrap-server", &kafka.bootstrap, "list"],
        );
        (listed.code == 0 && !listed.out.contains(&outbox.name)).then_some(())
    })
    .await;
    router.signal(Signal::Continue);
    // one event only, because a second one would reveal that the transaction accepts no more
    outbox.insert_numbers("order", "a", 4..5).await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    assert_eq!(numbers(&outbox, &kafka).await, (1..5).collect::<Vec<_>>());
}
