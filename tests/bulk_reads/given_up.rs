//! What keeps the router from bulk reads, and must not keep it from anything else.

use super::{MODES, PG_HBA, backlog, counted, delivered_once, settings, streams, took_bulk_reads};
use crate::support::comparison::{Repeats, in_order};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::mock::Mock;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::signal::{Signal, send};

/// Long enough that a server which gets no processor time for a second or two is not taken for one that is silent.
const TIMEOUT: &str = "6s";

/// The server has sent all of a bulk read long before it is worked off, and would take the session for one that nobody needs.
#[tokio::test]
async fn bulk_reads_that_are_worked_off_slowly_keep_their_session() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let slow = settings(&outbox, &kafka, mode, "1")
            .set("postgres.wal_sender_timeout", "4s")
            .set("delivery.window.records", 30)
            .set("kafka.'linger.ms'", 5);
        backlog(&outbox, 5_000).await;
        let mut router = Router::active(&slow).await;
        router.shows("it reads in bulk", |status| (status["in_bites"] == true).then_some(())).await;
        outbox.all_confirmed().await;
        assert_eq!(counted(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// The server gives a bulk read up whose bytes nobody takes. Before it does, what is under way is delivered, and the rest is streamed.
#[tokio::test]
async fn bulk_reads_of_a_broker_that_stands_still_are_left_for_the_stream() {
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
        assert!(send(Signal::Stop, broker.pid()));
        router.logs("Kafka is too slow for bulk reads").await;
        assert!(send(Signal::Continue, broker.pid()));
        streams(&mut router).await;
        outbox.all_confirmed().await;
        assert_eq!(counted(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// However long it takes, the session stays: what it holds is the lock.
#[tokio::test]
async fn bulk_reads_that_the_broker_does_not_take_cost_no_session() {
    let (outbox, mock) = (Outbox::new().await, Mock::start(2));
    let kafka = mock.client();
    mock.create_topic(&outbox.topic("order"), 1, 2);
    let settings = settings(&outbox, &kafka, MODES[0], "1")
        .set("delivery.window.records", 100)
        .set("postgres.wal_sender_timeout", TIMEOUT);
    backlog(&outbox, 500).await;
    let mut router = Router::start(&settings);
    kafka.holds(&outbox.name, 300).await;
    mock.down(2);
    router.logs("Kafka is too slow for bulk reads").await;
    let asked_later = "SELECT 1 FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE l.locktype = 'advisory' AND l.granted \
                       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                       AND a.query_start > a.backend_start + interval '12 s'";
    eventually("the session is older than two timeouts", async || {
        outbox.query(asked_later).await.first().map(drop)
    })
    .await;
    mock.up(2);
    outbox.all_confirmed().await;
    assert_eq!(counted(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
    router.stop().await;
    in_order(&kafka.records(&outbox.name).await, Repeats::Mocked);
}

/// Going over takes two sessions at a time for a moment.
#[tokio::test]
async fn bulk_reads_without_a_walsender_to_spare_are_left_for_the_stream() {
    let server = PrivatePostgres::start(PG_HBA, &["max_wal_senders=1"]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let slow = settings(&outbox, &kafka, mode, "64KiB")
            .set("delivery.window.records", 20)
            .set("kafka.'linger.ms'", 20);
        let checked = slow.run_beside(&["check"]).await.out;
        assert!(checked.contains("Raise max_wal_senders") && checked.contains("bulk reads"), "{checked}");
        let mut router = Router::active(&slow).await;
        backlog(&outbox, 500).await;
        router.logs("could not be started").await;
        outbox.all_confirmed().await;
        assert_eq!(counted(&router, "bites_total"), Some(0));
        let reconnects = counted(&router, "reconnects_total{peer=\"postgres\"}").unwrap();
        let log = router.stop().await.log;
        assert!(log.contains("max_wal_senders"), "{log}");
        // each costs one, and not one more
        assert_eq!(log.matches("could not be started").count() as u64, reconnects, "{log}");
        delivered_once(&outbox, &kafka).await;
    }
}

/// Limits for the statements of applications, set for the router's role or for everybody.
#[tokio::test]
async fn bulk_reads_under_timeouts_of_the_role_are_taken_all_the_same() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox
        .execute(
            "CREATE ROLE hurried SUPERUSER LOGIN REPLICATION; ALTER ROLE hurried SET lock_timeout = '5ms'; \
             ALTER ROLE hurried SET statement_timeout = '15ms'",
        )
        .await;
    let slow = settings(&outbox, &kafka, MODES[0], "1")
        .set("postgres.url", format!("postgres://hurried@{}/{}", outbox.address(), outbox.name))
        .set("delivery.window.records", 20)
        .set("kafka.'linger.ms'", 20);
    let mut router = Router::active(&slow).await;
    backlog(&outbox, 300).await;
    took_bulk_reads(&mut router, 1).await;
    outbox.all_confirmed().await;
    assert_eq!(counted(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
}
