//! The server process of the session waits, so that no events arrive although nothing is wrong with the connection.

use serde_json::Value;

use crate::bulk_reads::{backlog, is_reading_in_bulk, slow};
use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::table_lock::TableLock;

/// Makes the walsender wait for a lock when it decodes the event that this commits: the table is altered in the same transaction,
/// and the walsender reads its defaults again.
async fn commit_what_cannot_be_decoded(outbox: &Outbox) -> TableLock {
    let writer = outbox.client().await;
    writer
        .batch_execute(
            "BEGIN; ALTER TABLE outbox SET (fillfactor = 90); \
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'made', '{\"n\": 2}')",
        )
        .await
        .unwrap();
    let lock = TableLock::take(outbox, "pg_catalog.pg_attrdef").await;
    writer.batch_execute("COMMIT").await.unwrap();
    lock
}

/// Waits until the status says that Postgres sends nothing, and returns the reason and the status.
async fn sends_nothing(router: &mut Router) -> (String, Value) {
    let shown = router.shows("the status says that Postgres sends nothing", |status| {
        let reason = status["reason"].as_str()?;
        reason.contains("has sent nothing for 8 s").then(|| (reason.to_owned(), status.clone()))
    });
    shown.await
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn walsender_that_waits_has_a_reason() {
    // without autovacuum, new sessions of the database do not wait for the lock too (see `outbox_locked`)
    let server = PrivatePostgres::start(PG_HBA, &["autovacuum=off"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    // by default, the router ends such a session after five seconds
    let settings = Settings::new(&outbox, &kafka).set("postgres.wal_sender_timeout", "60s");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;

    let lock = commit_what_cannot_be_decoded(&outbox).await;
    let (reason, status) = sends_nothing(&mut router).await;
    assert_eq!(status["totals"]["events"], 1, "{status}");
    assert_eq!((&status["state"], &status["peer"]), (&"stalled".into(), &"postgres".into()));
    assert!(status["lag"]["seconds"].as_f64().unwrap() > 3.0, "{status}");
    let (code, text) = router.get_now("/readyz").await;
    assert!(code == 503 && text.contains(&reason), "{code} {text}");
    router.logs(&reason).await;

    // the remedy names the lock and the session that holds it
    let log = router.log();
    let (_, remedy) = log.rsplit_once("remedy=\"").unwrap();
    let sql = remedy.split(" shows what").next().unwrap();
    let row = &outbox.query(sql).await[0];
    let (kind, blocking): (&str, Vec<i32>) = (row.get(0), row.get(2));
    assert_eq!((kind, blocking), ("Lock", vec![lock.pid()]), "{sql}");

    lock.release().await;
    kafka.holds(&outbox.name, 2).await;
    router.logs("Postgres sends changes again").await;
    router.ready().await;
    router.stop().await;
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_read_that_waits_has_a_reason() {
    let server = PrivatePostgres::start(PG_HBA, &["autovacuum=off"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("postgres.wal_sender_timeout", "60s")
        .set("postgres.catch_up_lag", "1");
    backlog(&outbox, 500).await;
    let mut router = Router::start(&slow(settings));
    is_reading_in_bulk(&mut router).await;
    let lock = commit_what_cannot_be_decoded(&outbox).await;
    let (reason, status) = sends_nothing(&mut router).await;
    // from 16 on, the check of the catalogues waits for the lock too, and the router streams what it did not check
    let in_bulk = outbox.server_version().await < 160_000;
    assert_eq!(
        (&status["reading_in_bulk"], &status["totals"]["events"]),
        (&in_bulk.into(), &5_000.into()),
        "{status}"
    );
    let (code, text) = router.get_now("/readyz").await;
    assert!(code == 503 && text.contains(&reason), "{code} {text}");
    router.logs(&reason).await;

    lock.release().await;
    kafka.holds(&outbox.name, 5_001).await;
    router.ready().await;
    router.stop().await;
}
