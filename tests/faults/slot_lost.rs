//! Postgres invalidates the slot, because the router is too far behind or was away for too long.

use std::collections::BTreeSet;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::invariants::recovery_sql::{printed, typed};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

/// 16 segments of log. No checkpoint but those that the tests ask for, or that 4 segments of new log bring about.
const LIMITS: &[&str] =
    &["max_slot_wal_keep_size=256MB", "max_wal_size=64MB", "min_wal_size=32MB", "checkpoint_timeout=1d"];

/// Ends so many segments of the log, 16 MiB each.
async fn write_log(outbox: &Outbox, segments: usize) {
    for _ in 0..segments {
        outbox.execute("SELECT pg_logical_emit_message(false, 'filler', '')").await;
        outbox.execute("SELECT pg_switch_wal()").await;
    }
}

/// Until all that is sent by now lies before the transaction that the slot remembers, so that the way out can tell it from
/// what comes.
async fn remembered(outbox: &Outbox) {
    outbox.all_confirmed().await;
    let sent = format!(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}' AND age(catalog_xmin) < \
         (SELECT min(age(xmin)) FROM outbox)",
        outbox.name
    );
    eventually("the slot's catalog_xmin has passed what was sent", async || {
        // a checkpoint writes down which transactions are open
        outbox.execute("CHECKPOINT").await;
        (!outbox.query(&sent).await.is_empty()).then_some(())
    })
    .await;
}

async fn ids(outbox: &Outbox) -> BTreeSet<String> {
    outbox.query("SELECT id::text FROM outbox").await.iter().map(|row| row.get(0)).collect()
}

/// The router said what is lost and why, and what it printed shows exactly the rows of the gap that are still there.
async fn told(outbox: &Outbox, ended: &Ended, reason: &str, sent: &BTreeSet<String>) {
    let sql =
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = current_database()";
    let confirmed: String = outbox.query(sql).await[0].get(0);
    let confirmed = format!("confirmed up to {confirmed}");
    ended.says(&["invalidated the replication slot", reason, &confirmed, "deleted since"]);
    let shown: BTreeSet<_> = typed(&outbox.client().await, printed(ended, "before that position: "), "id")
        .await
        .into_iter()
        .collect();
    let gap: BTreeSet<_> = ids(outbox).await.difference(sent).cloned().collect();
    assert!(!gap.is_empty());
    assert_eq!(shown, gap);
}

#[tokio::test]
async fn slot_lost_under_a_router_whose_broker_is_away_is_foretold_and_then_told() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    remembered(&outbox).await;
    let room = |status: &serde_json::Value| {
        let slot = &status["slot"];
        Some((slot["room"].as_str()?.to_owned(), slot["safe_wal_bytes"].as_u64()?))
    };
    let (ample, _) = router.shows("the slot has room", room).await;
    assert_eq!(ample, "ample");
    let sent = ids(&outbox).await;
    broker.stop();

    outbox.insert_numbers("order", "a", 4..8).await;
    outbox.execute("DELETE FROM outbox WHERE payload ->> 'n' = '5'").await;
    write_log(&outbox, 6).await;
    router
        .shows("the slot holds back more than max_wal_size", |status| {
            room(status).filter(|(room, _)| room != "ample")
        })
        .await;
    write_log(&outbox, 8).await;
    // it may be called short before all that was written is seen: there is little time left, too
    router
        .shows("the slot has little room", |status| {
            room(status).filter(|(room, safe)| room == "short" && *safe < 64 << 20)
        })
        .await;
    router.logs("more may be written until it is lost").await;
    let (_, metrics) = router.get("/metrics").unwrap();
    assert!(metrics.contains("outbox_router_slot_wal_status{wal_status=\"extended\"} 1"), "{metrics}");

    write_log(&outbox, 4).await;
    outbox.execute("CHECKPOINT").await;
    let ended = router.exits(3).await;
    told(&outbox, &ended, "max_slot_wal_keep_size", &sent).await;
    let short = "more may be written until it is lost";
    // once when it is extended, once when it is short
    assert!(ended.log.matches(short).count() <= 2, "{}", ended.log);
}

#[tokio::test]
async fn slot_lost_while_the_router_is_stopped_is_told_by_run_check_and_status() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    remembered(&outbox).await;
    router.stop().await;
    let sent = ids(&outbox).await;

    outbox.insert_numbers("order", "a", 4..8).await;
    // what is committed behind the gap counts too, and so does what began before it
    write_log(&outbox, 18).await;
    outbox.execute("CHECKPOINT").await;
    outbox.insert_numbers("order", "a", 8..9).await;
    for _ in 0..2 {
        let ended = Router::start(&settings).exits(3).await;
        told(&outbox, &ended, "max_slot_wal_keep_size", &sent).await;
    }
    let ended = Router::start(&settings).exits(3).await;
    let said = ended.last_line().strip_prefix("error: ").unwrap();
    let (what, remedy) = said.split_once(". ").unwrap();
    // which `run` alone has looked up
    let (what, _) = what.split_once("; every event before ").unwrap();
    for command in ["check", "status"] {
        let ran = settings.run(&[command]);
        assert_eq!(ran.code, 1, "{ran:?}");
        let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(what) && text.contains(remedy), "{command}: {text}");
    }
    assert_eq!(kafka.count(&outbox.name).await, Ok(3));

    // as it is told
    ended.says(&[&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)]);
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    let ran = settings.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ended = Router::start(&settings).exits(3).await;
    let mut router = Router::with_arguments(&settings, &["--accept-gap", ended.goes_on_at()]);
    router.ready().await;
    outbox.insert_numbers("order", "a", 9..10).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(4));
}

/// From 18 on.
#[tokio::test]
async fn slot_lost_for_nobody_read_it_is_told() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    if outbox.server_version().await < 180_000 {
        return;
    }
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    remembered(&outbox).await;
    router.stop().await;
    let sent = ids(&outbox).await;
    outbox.insert_numbers("order", "a", 4..8).await;
    server.configure(&[("idle_replication_slot_timeout", "1s")]).await;
    let reason = "SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = current_database()";
    eventually("the slot is invalidated", async || {
        outbox.execute("CHECKPOINT").await;
        outbox.query(reason).await[0].get::<_, Option<String>>(0)
    })
    .await;
    let ended = Router::start(&settings).exits(3).await;
    told(&outbox, &ended, "idle_replication_slot_timeout", &sent).await;
}
