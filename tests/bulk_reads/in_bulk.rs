//! Memory, stops and privileges during bulk reads.

use super::{
    MODES, PG_HBA, backlog, counter, delivered_once, is_reading_in_bulk, is_streaming, settings, slow,
    took_bulk_reads,
};
use crate::support::comparison::{Repeats, in_order};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::postgres::PrivatePostgres;
use crate::support::router::Router;

/// Bytes.
const BOUND: u64 = 64 << 20;

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_of_a_transaction_of_200_000_rows_keep_memory_bounded() {
    const ROWS: usize = 200_000;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        outbox
            .execute(&format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
                 SELECT 'large', 'a' || n % 100, jsonb_build_object('n', n / 100 + 1, 'text', repeat('x', 300)) \
                 FROM generate_series(0, {ROWS} - 1) n"
            ))
            .await;
        let mut router = Router::active(&settings(&outbox, &kafka, mode, "1")).await;
        outbox.all_confirmed().await;
        // the first covers little log, so it ends before the transaction does
        took_bulk_reads(&mut router, 2).await;
        let memory = router.peak_memory();
        router.stop().await;
        let records = kafka.committed(&outbox.name).await.unwrap();
        assert_eq!(records.len(), ROWS, "{mode}");
        in_order(&records, Repeats::Never);
        assert!(memory < BOUND, "{mode}: {} kB, more than {} kB", memory / 1024, BOUND / 1024);
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_end_in_order_when_the_router_stops() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for positions in [None, Some("")] {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let mut settings = settings(&outbox, &kafka, MODES[0], "1");
        if let Some(off) = positions {
            settings = settings.set("delivery.positions_topic", off);
        }
        backlog(&outbox, 2_000).await;
        let mut router = Router::start(&slow(settings.clone()));
        kafka.holds(&outbox.name, 2_000).await;
        is_reading_in_bulk(&mut router).await;
        router.stop().await;
        let sent = kafka.count(&outbox.name).await.unwrap();
        assert!(sent < 20_000, "the router had sent everything before it was stopped");
        let router = Router::start(&settings);
        outbox.all_confirmed().await;
        router.stop().await;
        let records = kafka.records(&outbox.name).await;
        // without checkpoints the slot alone gives the position, which is never inside a transaction
        let repeated = records.len() - 20_000;
        assert!(repeated < if positions.is_some() { 10 } else { 1 }, "{repeated} events twice");
    }
}

#[tokio::test]
async fn bulk_reads_without_the_privilege_give_way_to_the_stream_and_the_log_says_why() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let role = format!("{}_plain", outbox.name);
    outbox
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON outbox TO {role}; \
             REVOKE EXECUTE ON FUNCTION pg_logical_slot_get_binary_changes(name, pg_lsn, integer, text[]) FROM PUBLIC"
        ))
        .await;
    backlog(&outbox, 500).await;
    let url = format!("postgres://{role}@{}/{}", outbox.address(), outbox.name);
    let settings = settings(&outbox, &kafka, MODES[0], "1").set("postgres.url", url);
    let checked = settings.run_async(&["check"]).await.out;
    let missing = "GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_slot_get_binary_changes";
    assert!(checked.contains(missing) && !checked.contains("pg_replication_slot_advance"), "{checked}");
    let mut router = Router::active(&settings).await;
    router.logs("Postgres refuses bulk reads of the slot").await;
    outbox.all_confirmed().await;
    is_streaming(&mut router).await;
    let log = router.log();
    assert!(log.contains("permission denied for function pg_logical_slot_get_binary_changes"), "{log}");
    assert!(log.contains("catch_up = \\\"stream\\\"") || log.contains("catch_up = \"stream\""), "{log}");
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
    outbox.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// The first bulk read fits into `work_mem`, a later one does not.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn bulk_reads_without_temporary_space_give_way_to_the_stream() {
    let server = PrivatePostgres::start(PG_HBA, &[]).await;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
        let role = format!("{}_limited", outbox.name);
        outbox
            .execute(&format!(
                "CREATE ROLE {role} SUPERUSER LOGIN REPLICATION; ALTER ROLE {role} SET work_mem = '8MB'; \
                 ALTER ROLE {role} SET temp_file_limit = '64kB'"
            ))
            .await;
        backlog(&outbox, 5_000).await;
        let url = format!("postgres://{role}@{}/{}", outbox.address(), outbox.name);
        let settings = settings(&outbox, &kafka, mode, "1").set("postgres.url", url);
        let mut router = Router::active(&settings).await;
        router.logs("Postgres refuses bulk reads of the slot").await;
        assert!(counter(&router, "bulk_reads_total") > Some(0), "{}", router.log());
        outbox.all_confirmed().await;
        is_streaming(&mut router).await;
        assert_eq!(counter(&router, "reconnects_total{peer=\"postgres\"}"), Some(0), "{}", router.log());
        let log = router.stop().await.log;
        assert!(log.contains("temporary file size exceeds"), "{log}");
        assert!(log.contains("temporary files (temp_file_limit)"), "{log}");
        delivered_once(&outbox, &kafka).await;
        let of_the_copy = "SELECT 1 FROM pg_replication_slots WHERE slot_name LIKE 'outbox_router_bulk_reads_%' AND database = current_database()";
        assert!(outbox.query(of_the_copy).await.is_empty());
        outbox.execute(&format!("DROP ROLE {role}")).await;
    }
}

#[tokio::test]
async fn bulk_reads_can_be_switched_off() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    backlog(&outbox, 500).await;
    let settings = settings(&outbox, &kafka, MODES[0], "1").set("postgres.catch_up", "stream");
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    assert_eq!(counter(&router, "bulk_reads_total"), Some(0));
    router.stop().await;
    delivered_once(&outbox, &kafka).await;
}
