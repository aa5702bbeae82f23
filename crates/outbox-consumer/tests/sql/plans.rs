//! What is read, whatever the statistics say.

use crate::support::{Database, Session};

async fn next(session: &Session) -> String {
    session.ok("SELECT string_agg(event_id, ',') FROM outbox_router.inbox_next('c', 10)").await
}

/// Statistics come late: they may say that the queue is nearly empty. Then a worker of whose snapshot others have taken the first
/// events must still not read the queue once for each of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_old_statistics_reads_each_event_a_few_times() {
    const EVENTS: u32 = 3000;
    let database = Database::new().await;
    let (worker, other) = (database.session().await, database.session().await);
    worker.ok("ALTER TABLE outbox_router.inbox_queue SET (autovacuum_enabled = off)").await;
    let aggregates = "SELECT array_agg('a' || n) FROM generate_series(1, 10) n";
    let waiting = format!("SELECT count(*) FROM outbox_router.inbox_waiting('c', ({aggregates}))");
    // there were many, and the last one is still there
    let many = "INSERT INTO outbox_router.inbox_queue (consumer, position, event_id, aggregate, payload) \
                SELECT 'c', n, n::text, n::text, 'x' FROM generate_series(-50000, 0) n; \
                DELETE FROM outbox_router.inbox_queue WHERE position < 0";
    worker.ok(many).await;
    worker.ok("VACUUM ANALYZE outbox_router.inbox_queue").await;
    // a third have failed, and hold back another third
    let put = format!(
        "SELECT count(outbox_router.inbox_put('c', 'e' || n, 'x', 'a' || n % {})) FROM generate_series(1, {EVENTS}) n",
        EVENTS / 3 * 2
    );
    other.ok(&put).await;
    let fail = "UPDATE outbox_router.inbox_queue SET due_at = 'infinity' WHERE position BETWEEN 1 AND";
    other.ok(&format!("{fail} {}", EVENTS / 3)).await;
    other.ok("BEGIN; SELECT FROM outbox_router.inbox_queue WHERE due_at IS NULL FOR UPDATE").await;
    let read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE relname = 'inbox_queue'";
    // the statistics of a transaction contain what the session has not reported yet
    let worker = database.session().await;
    worker.ok("BEGIN").await;
    let taken = next(&worker).await;
    assert_eq!((taken.as_str(), worker.ok(&waiting).await.as_str()), ("", "10"));
    let read: u32 = worker.ok(read).await.parse().unwrap();
    assert!(read < EVENTS * 5, "{read} rows read");
}

/// The plans of a session may have been made for empty tables.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_old_plans_finds_one_event_by_its_id() {
    const EVENTS: u32 = 2000;
    let database = Database::new().await;
    let session = database.session().await;
    for table in ["inbox", "inbox_queue"] {
        session.ok(&format!("ALTER TABLE outbox_router.{table} SET (autovacuum_enabled = off)")).await;
    }
    let each = |n: u32| {
        [
            format!("SELECT outcome FROM outbox_router.inbox_claim('c', 'e{n}')"),
            format!("SELECT outcome FROM outbox_router.inbox_start('c', 'e{n}', '1 min')"),
            format!("SELECT * FROM outbox_router.inbox_claim('c', ARRAY['e{n}'])"),
            format!(
                "DO $$ BEGIN PERFORM outbox_router.inbox_result('c', 'e{n}', '1'); EXCEPTION WHEN OTHERS THEN NULL; END $$"
            ),
            format!("SELECT * FROM outbox_router.inbox_waiting('c', ARRAY['a{n}'])"),
            format!("SELECT outbox_router.inbox_fail('c', 'e{n}', 'x') > now()"),
            format!("SELECT outbox_router.inbox_extend('c', 'e{n}', gen_random_uuid(), '1 min')"),
            format!("SELECT outbox_router.inbox_decide('c', 'e{n}', 'retry', 'x')"),
            format!("SELECT outbox_router.inbox_finish('c', 'e{n}', gen_random_uuid())"),
            "SELECT outbox_router.inbox_done('c', event_id) FROM outbox_router.inbox_next('c')".to_owned(),
            "SELECT outbox_router.inbox_done('c', ARRAY[event_id]) FROM outbox_router.inbox_next('c')"
                .to_owned(),
        ]
    };
    let put = |from: u32, to: u32| {
        format!(
            "SELECT count(outbox_router.inbox_put('c', 'e' || n, 'x', 'a' || n)) FROM generate_series({from}, {to}) n"
        )
    };
    session.ok(&put(1, 1)).await;
    for _ in 0..6 {
        for sql in each(1) {
            session.ok(&format!("BEGIN; {sql}; ROLLBACK")).await;
        }
    }
    session.ok(&put(2, EVENTS)).await;
    let read = || async {
        let read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables \
                    WHERE relname IN ('inbox', 'inbox_queue')";
        session.ok(read).await.parse::<u32>().unwrap()
    };
    for sql in each(EVENTS / 2) {
        session.ok("BEGIN").await;
        let before = read().await;
        session.ok(&sql).await;
        let read = read().await - before;
        assert!(read < 30, "{read} rows read: {sql}");
        session.ok("ROLLBACK").await;
    }
}
