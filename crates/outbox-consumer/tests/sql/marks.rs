//! The marks from which `inbox_next` looks: no event is below them.

use crate::queue::{done, next, put};
use crate::support::Database;

/// An event that was put early and committed late has a position below the mark of those that looked meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_committed_late_is_found() {
    let database = Database::new().await;
    let (late, session) = (database.session().await, database.session().await);
    put(&session, "first", "").await;
    late.ok("BEGIN").await;
    put(&late, "late", "").await;
    let old = "UPDATE outbox_router.inbox_marks SET set_at = set_at - interval '1 s'";
    for n in 0..10 {
        put(&session, &format!("e{n}"), "").await;
        session.ok("BEGIN").await;
        let taken = next(&session, "NULL").await;
        assert!(taken.ends_with(&format!("e{n}")), "{taken}");
        for event in taken.split(',') {
            done(&session, event).await;
        }
        session.ok("COMMIT").await;
        session.ok(old).await;
    }
    late.ok("COMMIT").await;
    assert_eq!(next(&session, "NULL").await, "late");
    // with nothing below, the mark moves
    let mark = "SELECT position FROM outbox_router.inbox_marks ORDER BY id DESC LIMIT 1";
    let before: u32 = session.ok(mark).await.parse().unwrap();
    for _ in 0..3 {
        session.ok("BEGIN").await;
        if next(&session, "NULL").await == "late" {
            done(&session, "late").await;
        }
        session.ok("COMMIT").await;
        session.ok(old).await;
    }
    while session.ok(&format!("SELECT ({mark}) > {before} + 10")).await != "t" {
        // a transaction that has an id already leaves the mark alone
        session.ok(old).await;
        assert_eq!(next(&session, "NULL").await, "");
    }
}

/// While the newest of all transactions puts an event, a snapshot says nothing of that transaction.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_the_newest_transaction_is_found() {
    // with a transaction id before it looks, or without
    for first in ["", "SELECT pg_current_xact_id();"] {
        let look = format!("BEGIN; {first} SELECT count(*) FROM outbox_router.inbox_next('c', 10); COMMIT");
        let old = "UPDATE outbox_router.inbox_marks SET set_at = set_at - interval '1 s'";
        let database = Database::new().await;
        let (late, session) = (database.session().await, database.session().await);
        put(&session, "first", "").await;
        assert_eq!(next(&session, "'1 min'").await, "first");
        session.ok(old).await;
        late.ok("BEGIN").await;
        put(&late, "late", "").await;
        for _ in 0..3 {
            session.ok(&look).await;
            session.ok(old).await;
        }
        late.ok("COMMIT").await;
        assert_eq!(next(&session, "'1 min'").await, "late", "{first}");
    }
}

/// Two events of an aggregate are put by transactions that overlap, and committed in the other order. The snapshot of a worker lies
/// between: it must not take the second while another has the first.
#[tokio::test(flavor = "multi_thread")]
async fn in_stricter_isolation_no_event_overtakes_one_that_is_not_visible() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let database = Database::new().await;
        let (late, session, worker) =
            (database.session().await, database.session().await, database.session().await);
        let old = "UPDATE outbox_router.inbox_marks SET set_at = set_at - interval '1 s'";
        // the consumer is known
        assert_eq!(next(&session, "NULL").await, "");
        late.ok("BEGIN").await;
        put(&late, "first", "a").await;
        put(&session, "second", "a").await;
        worker.ok(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM effects")).await;
        late.ok("COMMIT").await;
        assert_eq!(next(&session, "'1 min'").await, "first");
        let sql = "SELECT event_id FROM outbox_router.inbox_next('c', 10, '1 min')";
        let taken = worker.ask(sql).await.unwrap_or_else(|code| code);
        assert!(["", "40001"].contains(&taken.as_str()), "{level}: {taken}");
        worker.ok("ROLLBACK").await;
        // workers of one isolation level, which set the marks themselves
        session.ok("UPDATE outbox_router.inbox_queue SET due_at = 'infinity' WHERE event_id = 'first'").await;
        put(&session, "third", "b").await;
        session.ok(&format!("SET default_transaction_isolation = '{level}'")).await;
        let mut taken = String::new();
        while taken.is_empty() {
            session.ok(old).await;
            taken = next(&session, "'1 min'").await;
        }
        assert_eq!(taken, "third", "{level}");
    }
}

/// Workers have moved the mark while no position had been drawn.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_event_of_all_is_found_by_workers_that_were_idle() {
    let database = Database::new().await;
    let session = database.session().await;
    for _ in 0..3 {
        assert_eq!(next(&session, "NULL").await, "");
        session.ok("UPDATE outbox_router.inbox_marks SET set_at = set_at - interval '1 s'").await;
    }
    put(&session, "first", "a").await;
    put(&session, "second", "a").await;
    assert_eq!(next(&session, "'1 min'").await, "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_writes_nothing() {
    let database = Database::new().await;
    let session = database.session().await;
    let idle = "BEGIN; SELECT FROM outbox_router.inbox_next('c'), pg_sleep(0.3); \
                SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT";
    session.until(idle).await;
    put(&session, "e", "").await;
    session.ok("BEGIN").await;
    next(&session, "NULL").await;
    done(&session, "e").await;
    session.ok("COMMIT").await;
    session.until(idle).await;
    let batch =
        "SELECT outbox_router.inbox_done('c', array_agg(event_id)) FROM outbox_router.inbox_next('c', 10)";
    assert_eq!(session.ok(batch).await, "0");
    put(&session, "f", "").await;
    assert_eq!(session.ok(batch).await, "1");
}

/// Times that were written while the clock was ahead.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_fails_after_the_clock_was_set_back_is_not_overtaken() {
    let database = Database::new().await;
    let session = database.session().await;
    put(&session, "first", "a").await;
    put(&session, "second", "a").await;
    let sql = "SELECT event_id, token FROM outbox_router.inbox_next('c', 10, '1 min')";
    let taken = session.ok(sql).await;
    let (_, token) = taken.split_once('|').unwrap();
    // it was written half a minute from now
    session.ok("UPDATE outbox_router.inbox_marks SET set_at = now() + interval '30 s', due_at = now() + interval '29 s', \
                next_due_at = now() + interval '30 s'").await;
    session.ok(&format!("SELECT outbox_router.inbox_fail('c', 'first', 'x', '{token}')")).await;
    // the clock has caught up
    session
        .ok("UPDATE outbox_router.inbox_marks SET set_at = now() - interval '1 s' WHERE set_at > now()")
        .await;
    session
        .ok("UPDATE outbox_router.inbox_queue SET due_at = now() + interval '10 s' WHERE event_id = 'first'")
        .await;
    assert_eq!(next(&session, "NULL").await, "");
}

/// The database was restored into a cluster that has given fewer transaction ids.
#[tokio::test(flavor = "multi_thread")]
async fn marks_of_another_cluster_hold_nothing_back() {
    let database = Database::new().await;
    let session = database.session().await;
    put(&session, "e", "a").await;
    session.ok("INSERT INTO outbox_router.inbox_marks (consumer, position, due_at, next_position, next_due_at, next_xid, set_at) \
                VALUES ('c', 0, '-infinity', 100, '-infinity', '900000000000', now() - interval '1 day')").await;
    session.ok("SET default_transaction_isolation = 'repeatable read'").await;
    assert_eq!(next(&session, "'1 min'").await, "e");
    assert_eq!(
        session
            .ok("SELECT next_xid < '900000000000' FROM outbox_router.inbox_marks ORDER BY id DESC LIMIT 1")
            .await,
        "t"
    );
}
