//! Conditions under which bulk reads are slow or impossible: delivery goes on, by the stream if need be.

use super::{
    MODES, PG_HBA, backlog, counter, delivered_once, is_reading_in_bulk, is_streaming, settings, slow,
    took_bulk_reads,
};
use crate::support::comparison::{Repeats, in_order};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;

/// Long enough that a server which gets no processor time for a second or two does not count as silent.
const TIMEOUT: &str = "6s";

/// The server has sent all of a bulk read long before the router has processed it. Meanwhile the session must not look idle to
/// the server, which would end it.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_that_are_processed_slowly_keep_their_session() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let slow = settings(&outbox, &kafka, mode, "1")
            .set("postgres.wal_sender_timeout", "4s")
            .set("delivery.window.records", 30)
            .set("kafka.'linger.ms'", 5);
        backlog(&outbox, 5_000).await;
        let mut router = Router::active(&slow).await;
        is_reading_in_bulk(&mut router).await;
        outbox.all_confirmed().await;
        assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// The server cancels a bulk read whose bytes are not read. Before that, the router delivers what it has read and streams the
/// rest.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_with_a_frozen_broker_give_way_to_the_stream() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let broker = PrivateKafka::start(&[]).await;
        let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
        let settings = settings(&outbox, &kafka, mode, "1")
            .set("postgres.wal_sender_timeout", TIMEOUT)
            .set("delivery.window.records", 100);
        backlog(&outbox, 2_000).await;
        let mut router = Router::active(&settings).await;
        kafka.holds(&outbox.name, 500).await;
        broker.freeze();
        router.logs("Kafka is too slow for bulk reads").await;
        broker.thaw();
        is_streaming(&mut router).await;
        outbox.all_confirmed().await;
        assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// The session holds the slot's lock, so it stays open however long the broker is away.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_keep_their_session_while_the_broker_is_away() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, mock) = (Outbox::on(&server.url()).await, Mock::start(2));
    let kafka = mock.client();
    mock.create_topic(&outbox.topic("order"), 1, 2);
    let slow = slow(settings(&outbox, &kafka, MODES[0], "1")).set("postgres.wal_sender_timeout", TIMEOUT);
    backlog(&outbox, 1_000).await;
    let mut router = Router::start(&slow);
    kafka.holds(&outbox.name, 300).await;
    mock.down(2);
    router.logs("Kafka is too slow for bulk reads").await;
    let old_session = "SELECT 1 FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE l.locktype = 'advisory' AND l.granted \
                       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                       AND a.query_start > a.backend_start + interval '12 s'";
    eventually("the session is older than two timeouts", async || outbox.query(old_session).await.pop())
        .await;
    mock.up(2);
    outbox.all_confirmed().await;
    assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
    router.stop().await;
    in_order(&kafka.records(&outbox.name).await, Repeats::Mocked);
}

/// While the router switches to bulk reads, it needs two walsenders for a moment.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_without_a_spare_walsender_give_way_to_the_stream() {
    let server = PrivatePostgres::start(PG_HBA, &["max_wal_senders=1"]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let slow = slow(settings(&outbox, &kafka, mode, "64KiB"));
        let checked = slow.run_async(&["check"]).await.out;
        assert!(checked.contains("Raise max_wal_senders") && checked.contains("bulk reads"), "{checked}");
        let mut router = Router::active(&slow).await;
        backlog(&outbox, 500).await;
        router.logs("could not be started").await;
        outbox.all_confirmed().await;
        assert_eq!(counter(&router, "bulk_reads_total"), Some(0));
        let reconnects = counter(&router, "reconnects_total{peer=\"postgres\"}").unwrap();
        let log = router.stop().await.log;
        assert!(log.contains("max_wal_senders"), "{log}");
        // each failed start costs one reconnect and no more
        assert_eq!(log.matches("could not be started").count() as u64, reconnects, "{log}");
        delivered_once(&outbox, &kafka).await;
    }
}

/// Timeouts that are meant for the statements of applications, set for the router's role or for every role.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_ignore_timeouts_of_the_role() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox
        .execute(
            "CREATE ROLE hurried SUPERUSER LOGIN REPLICATION; ALTER ROLE hurried SET lock_timeout = '5ms'; \
             ALTER ROLE hurried SET statement_timeout = '1ms'",
        )
        .await;
    let slow = slow(settings(&outbox, &kafka, MODES[0], "1"))
        .set("postgres.url", format!("postgres://hurried@{}/{}", outbox.address(), outbox.name));
    let mut router = Router::active(&slow).await;
    backlog(&outbox, 300).await;
    took_bulk_reads(&mut router, 1).await;
    outbox.all_confirmed().await;
    assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
}
