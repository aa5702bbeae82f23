//! The server process of the stream waits, so that no events arrive although nothing is wrong with the connection.

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::table_lock::TableLock;

#[tokio::test]
async fn walsender_that_waits_has_a_reason() {
    // without autovacuum, new sessions of the database do not wait for the lock too (see `outbox_locked`)
    let server = PrivatePostgres::start(PG_HBA, &["autovacuum=off"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    // by default, the router ends such a session after five seconds
    let settings = Settings::new(&outbox, &kafka).set("postgres.wal_sender_timeout", "60s");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..2).await;
    outbox.all_confirmed().await;

    // after the table was altered, the walsender reads its defaults again
    let writer = outbox.client().await;
    writer
        .batch_execute(
            "BEGIN; ALTER TABLE outbox SET (fillfactor = 90); \
             INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'made', '{\"n\": 2}')",
        )
        .await
        .unwrap();
    let lock = TableLock::take(&outbox, "pg_catalog.pg_attrdef").await;
    writer.batch_execute("COMMIT").await.unwrap();
    let reason = router
        .shows("the status says that Postgres sends nothing", |status| {
            assert_eq!(status["totals"]["events"], 1, "{status}");
            let reason = status["reason"].as_str()?;
            reason.contains("has sent nothing for 10 s").then(|| reason.to_owned())
        })
        .await;
    let status = router.status().unwrap();
    assert_eq!((&status["state"], &status["peer"]), (&"reconnecting".into(), &"postgres".into()));
    assert!(status["lag"]["seconds"].as_f64().unwrap() > 3.0, "{status}");
    let (code, text) = router.get("/readyz").unwrap();
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
