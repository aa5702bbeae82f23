//! Postgres invalidates the slot because the router is too far behind or was away for too long.

use std::collections::BTreeSet;

use crate::invariants::feedback_never_starves::PG_HBA;
use crate::invariants::recovery_sql::typed;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::succeeded;
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;

/// The slot may retain 16 segments of WAL. Postgres checkpoints only when a test asks for it or after 4 new segments.
pub(super) const LIMITS: &[&str] =
    &["max_slot_wal_keep_size=256MB", "max_wal_size=64MB", "min_wal_size=32MB", "checkpoint_timeout=1d"];

/// Fills this many segments of WAL, 16 MiB each.
pub(super) async fn write_wal(outbox: &Outbox, segments: usize) {
    for _ in 0..segments {
        outbox.execute("SELECT pg_logical_emit_message(false, 'filler', '')").await;
        outbox.execute("SELECT pg_switch_wal()").await;
    }
}

/// Waits until the slot's `catalog_xmin` has passed all transactions so far. The recovery SQL compares `xmin` with it, so it can
/// then tell earlier rows from later ones.
async fn catalog_xmin_has_passed(outbox: &Outbox) {
    outbox.all_confirmed().await;
    let sent = format!(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}' AND age(catalog_xmin) < \
         (SELECT min(age(xmin)) FROM outbox)",
        outbox.name
    );
    eventually("the slot's catalog_xmin has passed the sent rows", async || {
        // a checkpoint logs the running transactions
        outbox.execute("CHECKPOINT").await;
        (!outbox.query(&sent).await.is_empty()).then_some(())
    })
    .await;
}

async fn ids(outbox: &Outbox) -> BTreeSet<String> {
    outbox.query("SELECT id::text FROM outbox").await.iter().map(|row| row.get(0)).collect()
}

/// Asserts that the router named the loss and its reason, and that the SQL it printed stores exactly the unsent rows that still
/// exist.
async fn loss_is_explained(outbox: &Outbox, ended: &Ended, reason: &str, sent: &BTreeSet<String>) {
    let sql =
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = current_database()";
    let confirmed: String = outbox.query(sql).await[0].get(0);
    let confirmed = format!("confirmed up to {confirmed}");
    ended.says(&["invalidated the replication slot", reason, &confirmed, "deleted since"]);
    let (_, select) = ended.save_statement().split_once(" AS ").unwrap();
    let shown: BTreeSet<_> = typed(&outbox.client().await, select, "id").await.into_iter().collect();
    let gap: BTreeSet<_> = ids(outbox).await.difference(sent).cloned().collect();
    assert!(!gap.is_empty());
    assert_eq!(shown, gap);
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_lost_while_the_broker_is_away_is_warned_of_and_then_explained() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, broker.client());
    let mut router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    catalog_xmin_has_passed(&outbox).await;
    let headroom = |status: &serde_json::Value| {
        let slot = &status["slot"];
        Some((slot["room"].as_str()?.to_owned(), slot["safe_wal_bytes"].as_u64()?))
    };
    let (ample, _) = router.shows("the status has the slot's headroom", headroom).await;
    assert_eq!(ample, "ample");
    let sent = ids(&outbox).await;
    broker.stop();

    outbox.insert_numbers("order", "a", 4..8).await;
    outbox.execute("DELETE FROM outbox WHERE payload ->> 'n' = '5'").await;
    write_wal(&outbox, 6).await;
    router
        .shows("the slot holds back more than max_wal_size", |status| {
            headroom(status).filter(|(room, _)| room != "ample")
        })
        .await;
    write_wal(&outbox, 8).await;
    // the router may show `short` before it has seen all of this WAL, because the remaining time is short too
    router
        .shows("the slot's headroom is short", |status| {
            headroom(status).filter(|(room, safe)| room == "short" && *safe < 64 << 20)
        })
        .await;
    router.logs("more may be written until it is lost").await;
    let (_, metrics) = router.get_now("/metrics").await;
    assert!(metrics.contains("outbox_router_slot_wal_status{wal_status=\"extended\"} 1"), "{metrics}");

    write_wal(&outbox, 4).await;
    outbox.execute("CHECKPOINT").await;
    let ended = router.exits(3).await;
    loss_is_explained(&outbox, &ended, "max_slot_wal_keep_size", &sent).await;
    let short = "more may be written until it is lost";
    // one warning for `extended`, one for `short`
    assert!(ended.log.matches(short).count() <= 2, "{}", ended.log);
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_lost_while_the_router_is_stopped_is_explained_by_run_check_and_status() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    catalog_xmin_has_passed(&outbox).await;
    router.stop().await;
    let sent = ids(&outbox).await;

    outbox.insert_numbers("order", "a", 4..8).await;
    // an event after the retained WAL is part of the gap too
    write_wal(&outbox, 18).await;
    outbox.execute("CHECKPOINT").await;
    outbox.insert_numbers("order", "a", 8..9).await;
    for _ in 0..2 {
        let ended = Router::start(&settings).exits(3).await;
        loss_is_explained(&outbox, &ended, "max_slot_wal_keep_size", &sent).await;
    }
    let ended = Router::start(&settings).exits(3).await;
    ended.shown(&outbox);
    // only `run` has looked up that position
    let (what, rest) =
        ended.message().strip_prefix("error: ").unwrap().split_once("; every event before ").unwrap();
    let steps = &rest[rest.find("  Events: ").unwrap()..];
    for command in ["check", "status"] {
        let ran = settings.run(&[command]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.out.contains(what) && ran.out.contains(steps), "{command}: {}", ran.out);
    }
    assert_eq!(kafka.count(&outbox.name).await, Ok(3));

    ended.command(&format!("SELECT pg_catalog.pg_drop_replication_slot('{}')", outbox.name));
    steps_leave_no_hole(&outbox, &kafka, &settings, &ended).await;
}

#[tokio::test]
async fn slot_dropped_is_replaced_as_printed_without_a_hole() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    outbox.insert_numbers("order", "a", 4..8).await;
    let ended = Router::start(&settings).exits(3).await;
    steps_leave_no_hole(&outbox, &kafka, &settings, &ended).await;
}

/// Types the steps as printed while another session inserts rows. Each row is then in Kafka or stored, and all are in Kafka in the
/// end.
async fn steps_leave_no_hole(outbox: &Outbox, kafka: &Kafka, settings: &Settings, ended: &Ended) {
    let typing = std::cell::Cell::new(true);
    let writer = async {
        let mut n = 100;
        while typing.get() {
            outbox.insert("order", "b", &format!("{{\"n\": {n}}}")).await;
            n += 1;
        }
    };
    let operator = async {
        let client = outbox.client().await;
        // an invalidated slot has to be dropped
        if ended.message().contains("OBR-3004") {
            client.batch_execute(ended.command("SELECT pg_catalog.pg_drop_")).await.unwrap();
        }
        let at_init = ids(outbox).await.len();
        succeeded(settings.run_async(&["init"]).await, &[]);
        eventually("rows are committed after init", async || {
            (ids(outbox).await.len() > at_init).then_some(())
        })
        .await;
        client.batch_execute(ended.save_statement()).await.unwrap();
        let again = client.batch_execute(ended.save_statement()).await.unwrap_err();
        assert_eq!(again.code().unwrap().code(), "42P07", "{again:?}");
        let stored = typed(&client, ended.command("SELECT * FROM "), "id").await;
        let ended = Router::start(settings).exits(3).await;
        let router = Router::with_arguments(settings, &["--accept-gap", ended.accept_gap_position()]);
        let later = outbox.insert("order", "c", "{\"n\": 1}").await;
        outbox.all_confirmed().await;
        typing.set(false);
        (router, stored, later)
    };
    let ((router, stored, later), ()) = tokio::join!(operator, writer);
    outbox.all_confirmed().await;
    let in_kafka = async || -> BTreeSet<String> {
        kafka.records(&outbox.name).await.iter().map(|record| record.id().to_owned()).collect()
    };
    let all = ids(outbox).await;
    let (sent, stored) = (in_kafka().await, BTreeSet::from_iter(stored));
    let hole: Vec<_> = all.iter().filter(|id| !sent.contains(*id) && !stored.contains(*id)).collect();
    assert!(hole.is_empty() && sent.contains(&later), "{} of {} rows: {hole:?}", hole.len(), all.len());

    outbox.execute(ended.command("DO ")).await;
    // typed again, it sends nothing again
    outbox.client().await.batch_execute(ended.command("DO ")).await.unwrap_err();
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(in_kafka().await, all);
    // what is sent twice was announced: it was stored, and was in Kafka
    let twice = stored.intersection(&sent).count();
    assert_eq!(kafka.count(&outbox.name).await, Ok(all.len() + twice));
}

/// Whoever leaves a transaction open makes the slot retain log, although the router has confirmed everything.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_held_back_by_an_open_transaction_names_it_and_what_ends_it() {
    let settings = [LIMITS, &["max_prepared_transactions=2"]].concat();
    let server = PrivatePostgres::start(PG_HBA, &settings).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    let held_by = |status: &serde_json::Value| Some(status["slot"]["held_by"].as_str()?.to_owned());
    let (mut here, mut idle) =
        (server.superuser_in(&outbox.name).await, server.superuser_in(&outbox.name).await);
    let mut elsewhere = server.superuser().await;
    for (session, prepared, database) in [
        (&mut here, Some("of this database"), outbox.name.as_str()),
        (&mut idle, None, outbox.name.as_str()),
        (&mut elsewhere, Some("of_another"), "postgres"),
    ] {
        for sql in ["BEGIN", "CREATE TABLE made_by_it ()"] {
            session.query(sql).await.unwrap();
        }
        let (who, end) = match prepared {
            Some(gid) => {
                session.query(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
                (format!("the prepared transaction {gid} ("), format!("ROLLBACK PREPARED '{gid}'"))
            }
            None => {
                let pid = session.backend_pid();
                (
                    format!("the transaction of server process {pid} ("),
                    format!("SELECT pg_terminate_backend({pid})"),
                )
            }
        };
        // a checkpoint logs the running transactions
        outbox.execute("CHECKPOINT").await;
        write_wal(&outbox, 6).await;
        outbox.insert("order", "a", "{}").await;
        outbox.all_confirmed().await;
        let named = router
            .shows("the status names the transaction", |status| {
                held_by(status).filter(|by| by.starts_with(&who))
            })
            .await;
        assert!(named.contains(&format!("database {database}, role ")), "{named}");
        router.logs(&format!("the cause is {who}")).await;
        let blamed = router.log().lines().rfind(|line| line.contains("the cause is")).unwrap().to_owned();
        assert!(blamed.contains(&end) && !blamed.contains("Kafka"), "{blamed}");
        succeeded(settings.run_async(&["check"]).await, &[&format!("the cause is {who}"), &end]);
        match prepared {
            Some(_) => drop(session.query(&end).await.unwrap()),
            None => outbox.execute(&end).await,
        }
        eventually("the slot has room again", async || {
            outbox.execute("CHECKPOINT").await;
            router.status().filter(|status| held_by(status).is_none() && status["slot"]["room"] == "ample")
        })
        .await;
    }

    for sql in ["BEGIN", "CREATE TABLE made_by_it ()", "PREPARE TRANSACTION 'last'"] {
        elsewhere.query(sql).await.unwrap();
    }
    outbox.execute("CHECKPOINT").await;
    write_wal(&outbox, 18).await;
    outbox.execute("CHECKPOINT").await;
    let ended = router.exits(3).await;
    ended.says(&["OBR-3004", "the prepared transaction last (database postgres", "ROLLBACK PREPARED 'last'"]);
}

/// Postgres 18 and later invalidate a slot that nobody reads.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_lost_because_nobody_read_it_is_explained() {
    let server = PrivatePostgres::start(PG_HBA, LIMITS).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    if outbox.server_version().await < 180_000 {
        return;
    }
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..4).await;
    catalog_xmin_has_passed(&outbox).await;
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
    loss_is_explained(&outbox, &ended, "idle_replication_slot_timeout", &sent).await;
}
