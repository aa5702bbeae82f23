//! The router switches between the stream and bulk reads, many times: it loses no event, repeats none and reorders none.

use super::{MODES, PG_HBA, backlog, counter, delivered_once, is_streaming, settings, slow, took_bulk_reads};
use crate::faults::broker_stopped::broker_killed_at_random_points;
use crate::faults::sigkill::{KILLS, killed_at_random_points};
use crate::support::comparison::{Repeats, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;

#[tokio::test]
async fn bulk_reads_deliver_a_backlog_and_the_stream_later_events() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        backlog(&outbox, 3_000).await;
        let mut router = Router::active(&settings(&outbox, &kafka, mode, "1MiB")).await;
        outbox.all_confirmed().await;
        took_bulk_reads(&mut router, 2).await;
        is_streaming(&mut router).await;
        let bulk_reads = counter(&router, "bulk_reads_total");
        // the stream delivers these
        backlog(&outbox, 1).await;
        kafka.holds(&outbox.name, 30_010).await;
        outbox.all_confirmed().await;
        assert_eq!(counter(&router, "bulk_reads_total"), bulk_reads);
        assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0));
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// To deliver one burst takes more than two seconds, and the router checks its lag every second.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_and_stream_alternate_while_applications_write() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let mut router = Router::active(&slow(settings(&outbox, &kafka, mode, "1"))).await;
        for _ in 0..4 {
            let before = counter(&router, "bulk_reads_total").unwrap();
            backlog(&outbox, 200).await;
            took_bulk_reads(&mut router, before + 1).await;
            is_streaming(&mut router).await;
        }
        outbox.all_confirmed().await;
        assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0));
        router.stop().await;
        delivered_once(&outbox, &kafka).await;
    }
}

/// For the next session the server would read all log since the transaction began again.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_do_not_replace_a_stream_while_a_transaction_has_been_open_for_long() {
    let server = PrivatePostgres::start(PG_HBA, &["max_wal_size=2GB"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    outbox.execute("CREATE TABLE other (n int)").await;
    let open = outbox.client().await;
    open.batch_execute("BEGIN; INSERT INTO other VALUES (1)").await.unwrap();
    outbox
        .execute("SELECT pg_logical_emit_message(false, 'other', repeat('x', 1000000)) FROM generate_series(1, 300)")
        .await;
    let mut router = Router::active(&slow(settings(&outbox, &kafka, MODES[0], "1"))).await;
    outbox.all_confirmed().await;
    is_streaming(&mut router).await;
    let before = counter(&router, "bulk_reads_total");
    // takes more than two seconds, and the router checks its lag every second
    backlog(&outbox, 300).await;
    outbox.all_confirmed().await;
    assert_eq!(counter(&router, "bulk_reads_total"), before);
    open.batch_execute("COMMIT").await.unwrap();
    let log = router.stop().await.log;
    assert!(!log.contains("switching to bulk reads"), "{log}");
    delivered_once(&outbox, &kafka).await;
}

/// Each bulk read is sized by the last ones, which are no guide here.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_of_log_with_a_changing_share_of_events() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        for step in 1..40_u32 {
            backlog(&outbox, step * step * 37 % 400).await;
            let other = step * 7_919 % 11 * 400_000;
            outbox
                .execute(&format!("SELECT pg_logical_emit_message(false, 'other', repeat('x', {other}))"))
                .await;
        }
        let mut router = Router::active(&settings(&outbox, &kafka, mode, "1")).await;
        outbox.all_confirmed().await;
        took_bulk_reads(&mut router, 4).await;
        let log = router.stop().await.log;
        assert!(!log.contains("out of sequence"), "{log}");
        delivered_once(&outbox, &kafka).await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_and_sigkill_at_random_points_lose_nothing() {
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        killed_at_random_points(&outbox, &kafka, &settings(&outbox, &kafka, mode, "1")).await;
        let repeats = if mode == MODES[1] { Repeats::Never } else { Repeats::Restarts(KILLS) };
        same(&outbox, &kafka.committed(&outbox.name).await.unwrap(), repeats).await;
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_and_a_broker_killed_at_random_points_repeat_no_event() {
    let broker = PrivateKafka::that_is_killed().await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    broker_killed_at_random_points(&broker, &outbox, &settings(&outbox, &kafka, MODES[1], "1"), 3).await;
    delivered_once(&outbox, &kafka).await;
}

/// A transaction that one session has begun to deliver is finished by the next, in the other way. The checkpoint is the same for
/// both.
#[tokio::test]
async fn bulk_reads_resume_where_a_stream_has_stopped_and_vice_versa() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let (mut written, mut sent) = (0, 0);
    for lag in ["1", "1GiB", "1", "1GiB"] {
        let slow = slow(settings(&outbox, &kafka, MODES[0], lag));
        eventually("a router was stopped before it had sent everything", async || {
            backlog(&outbox, 500).await;
            written += 5_000;
            let router = Router::start(&slow);
            kafka.holds(&outbox.name, sent + 500).await;
            router.stop().await;
            sent = kafka.count(&outbox.name).await.unwrap();
            (sent < written).then_some(())
        })
        .await;
    }
    let router = Router::start(&settings(&outbox, &kafka, MODES[0], "1"));
    outbox.all_confirmed().await;
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
}
