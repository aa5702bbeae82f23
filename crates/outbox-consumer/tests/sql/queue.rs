//! The inbox as a queue.

use std::sync::Arc;

use crate::support::{Database, Session};

pub(crate) async fn put(session: &Session, event: &str, aggregate: &str) -> String {
    session
        .ok(&format!("SELECT outbox_router.inbox_put('c', '{event}', '{event}', nullif('{aggregate}', ''))"))
        .await
}

pub(crate) async fn next(session: &Session, lease: &str) -> String {
    let events = format!("SELECT string_agg(event_id, ',') FROM outbox_router.inbox_next('c', 10, {lease})");
    session.ok(&events).await
}

pub(crate) async fn done(session: &Session, event: &str) -> String {
    session.ok(&format!("SELECT outbox_router.inbox_done('c', '{event}')")).await
}

/// Makes events that are tried again wait for longer than any test takes.
const LATER: &str =
    "UPDATE outbox_router.inbox_queue SET due_at = due_at + interval '1 hour' WHERE due_at < 'infinity'";

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_put_once_and_done_in_the_transaction_that_took_it() {
    let database = Database::new().await;
    let (worker, other) = (database.session().await, database.session().await);
    let event = "SELECT outbox_router.inbox_put('c', 'e', '\\xff00', 'order-1', 7)";
    assert_eq!(worker.ok(event).await, "new");
    assert_eq!(worker.ok(event).await, "duplicate");
    worker.ok("BEGIN").await;
    let taken =
        "SELECT event_id, payload, aggregate, sequence, attempt, token FROM outbox_router.inbox_next('c')";
    assert_eq!(worker.ok(taken).await, "e|\\xff00|order-1|7|1|");
    assert_eq!(next(&other, "NULL").await, "", "it is with the other worker");
    assert_eq!(other.fails("SELECT outbox_router.inbox_done('c', 'e')").await, "55000");
    worker.ok("ROLLBACK").await;
    assert_eq!(worker.fails("SELECT outbox_router.inbox_done('c', 'e')").await, "55000");
    worker.ok("BEGIN").await;
    assert_eq!(next(&worker, "NULL").await, "e");
    assert_eq!(done(&worker, "e").await, "t");
    assert_eq!(done(&worker, "e").await, "f");
    worker.ok("COMMIT").await;
    assert_eq!(next(&other, "NULL").await, "");
    assert_eq!(worker.ok(event).await, "duplicate");
    assert_eq!(worker.ok("SELECT outcome FROM outbox_router.inbox_claim('c', 'e')").await, "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_worker_releases_its_events() {
    let database = Database::new().await;
    let (worker, other) = (database.session().await, database.session().await);
    put(&other, "e", "").await;
    worker.ok("BEGIN").await;
    assert_eq!(next(&worker, "NULL").await, "e");
    assert_eq!(done(&worker, "e").await, "t");
    other.ok(&format!("SELECT pg_terminate_backend({})", worker.pid)).await;
    let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {})", worker.pid);
    other.until(&gone).await;
    assert_eq!(next(&other, "'1 min'").await, "e");
    assert_eq!(next(&other, "'1 min'").await, "");
    other.pass_time().await;
    assert_eq!(next(&other, "'1 min'").await, "e");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_a_token_and_does_not_outlive_its_end() {
    let database = Database::new().await;
    let session = database.session().await;
    put(&session, "e", "").await;
    let take = "SELECT token FROM outbox_router.inbox_next('c', 1, '1 min')";
    let with = |token: &str, call: &str| format!("SELECT outbox_router.{}", call.replace("{}", token));
    let former = session.ok(take).await;
    assert_ne!(session.ok(&with(&former, "inbox_extend('c', 'e', '{}', '5 min')")).await, "");
    session.pass_time().await;
    assert_eq!(session.ok(&with(&former, "inbox_extend('c', 'e', '{}', '5 min')")).await, "", "late");
    let present = session.ok(take).await;
    for call in [
        "inbox_done('c', 'e', '{}')",
        "inbox_fail('c', 'e', 'x', '{}')",
        "inbox_extend('c', 'e', '{}', '5 min')",
    ] {
        let nothing = session.ok(&with(&former, call)).await;
        assert!(nothing.is_empty() || nothing == "f", "{call}: {nothing}");
    }
    assert_eq!(session.ok(&with(&present, "inbox_done('c', ARRAY['e', 'x'], '{}')")).await, "1");
    assert_eq!(session.ok(&with(&present, "inbox_done('c', 'e', '{}')")).await, "f");
}

/// `inbox_next` may lock the row of an event that another worker has just taken under a lease, and keep the lock until its
/// transaction ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_lease_waits_for_the_lock_of_another_worker() {
    let database = Database::new().await;
    let (admin, other) = (database.session().await, database.session().await);
    for (event, call, ended) in [
        ("e1", "inbox_done('c', 'e1', '{}')", "t"),
        ("e2", "inbox_done('c', ARRAY['e2'], '{}')", "1"),
        ("e3", "inbox_fail('c', 'e3', 'x', '{}') < 'infinity'", "t"),
    ] {
        let worker = database.session().await;
        put(&worker, event, "").await;
        let token = worker.ok("SELECT token FROM outbox_router.inbox_next('c', 1, '1 min')").await;
        other.ok("BEGIN; SELECT FROM outbox_router.inbox_queue FOR UPDATE").await;
        let statement = format!("SELECT outbox_router.{}", call.replace("{}", &token));
        let unlock = async {
            admin.until_blocked(worker.pid).await;
            other.ok("ROLLBACK").await;
        };
        let (answer, ()) = tokio::join!(worker.ok(&statement), unlock);
        assert_eq!(answer, ended, "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_is_retried_on_schedule_and_given_up_after_eight_attempts() {
    let database = Database::new().await;
    let session = database.session().await;
    put(&session, "e", "").await;
    let mut waits = Vec::new();
    for _ in 0..8 {
        session.pass_time().await;
        session.ok("BEGIN").await;
        assert_eq!(next(&session, "NULL").await, "e");
        let due = session
            .ok("SELECT extract(epoch FROM date_trunc('second', due - now())) FROM (SELECT CASE WHEN f < 'infinity' THEN f END AS due \
                 FROM outbox_router.inbox_fail('c', 'e', 'no route') f) d")
            .await;
        // the largest wait of the schedule that is not above: some time has passed since the transaction began
        let due = due.split('.').next().unwrap().parse::<u32>().ok();
        waits.push(due.and_then(|due| [5, 30, 300, 1800, 14400].into_iter().rfind(|wait| *wait <= due)));
        session.ok(LATER).await;
        session.ok("COMMIT").await;
        assert_eq!(next(&session, "NULL").await, "");
    }
    let hours = Some(14400);
    assert_eq!(waits, [Some(5), Some(30), Some(300), Some(1800), hours, hours, hours, None]);
    session.pass_time().await;
    assert_eq!(next(&session, "NULL").await, "");
    assert_eq!(session.ok("SELECT attempts, error FROM outbox_router.inbox_queue").await, "8|no route");
    assert_eq!(session.ok("SELECT failed, waiting FROM outbox_router.inbox_status()").await, "1|0");
    assert_eq!(session.ok("SELECT outbox_router.inbox_decide('c', 'e', 'retry', 'fixed')").await, "t");
    assert_eq!(next(&session, "NULL").await, "e");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_kills_its_workers_is_given_up() {
    let database = Database::new().await;
    let session = database.session().await;
    put(&session, "e", "").await;
    for _ in 0..8 {
        assert_eq!(next(&session, "'1 min'").await, "e");
        session.pass_time().await;
    }
    assert_eq!(next(&session, "'1 min'").await, "");
    assert_eq!(session.ok("SELECT failed, leased FROM outbox_router.inbox_status()").await, "1|0");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_behind_one_that_waits_or_failed_are_not_handed_out() {
    let database = Database::new().await;
    let session = database.session().await;
    for (event, aggregate) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("free", "")] {
        put(&session, event, aggregate).await;
    }
    session.ok("BEGIN").await;
    assert_eq!(next(&session, "NULL").await, "a1,b1,free");
    session.ok("SELECT outbox_router.inbox_fail('c', 'a1', 'x')").await;
    session.ok(LATER).await;
    done(&session, "b1").await;
    done(&session, "free").await;
    session.ok("COMMIT").await;
    assert_eq!(next(&session, "'1 min'").await, "b2", "a2 is behind a1, which waits");
    session.ok("UPDATE outbox_router.inbox_queue SET due_at = 'infinity' WHERE event_id = 'a1'").await;
    assert_eq!(next(&session, "'1 min'").await, "", "a1 has failed");
    session.ok("SELECT outbox_router.inbox_decide('c', 'a1', 'discard', 'wrong')").await;
    assert_eq!(next(&session, "'1 min'").await, "a2");
    assert_eq!(put(&session, "a1", "a").await, "duplicate");
    session.ok("SELECT outbox_router.inbox_configure('c', ordered => false)").await;
    put(&session, "a3", "a").await;
    assert_eq!(next(&session, "'1 min'").await, "a3", "in parallel");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_do_not_get_between_a_worker_and_its_event() {
    let database = Database::new().await;
    let (worker, operator) = (database.session().await, database.session().await);
    let clear = "SELECT outbox_router.inbox_decide('c', 'e', 'clear', 'sent twice')";
    assert_eq!(operator.ok(clear).await, "f");
    put(&worker, "e", "").await;
    worker.ok("BEGIN").await;
    next(&worker, "NULL").await;
    assert_eq!(operator.ask(clear).await.unwrap_err(), "55P03");
    worker.ok("ROLLBACK").await;
    next(&worker, "'1 min'").await;
    assert_eq!(operator.ask(clear).await.unwrap_err(), "55P03");
    worker.pass_time().await;
    assert_eq!(operator.ok(clear).await, "t");
    assert_eq!(put(&worker, "e", "").await, "new");
    worker.ok("SELECT FROM outbox_router.inbox_start('c', 'f', '1 min')").await;
    assert_eq!(operator.ask(&clear.replace("'e'", "'f'")).await.unwrap_err(), "55P03");
    let audit = "SELECT action, consumer, event_id, reason, done_by FROM outbox_router.inbox_audit";
    assert_eq!(operator.ok(audit).await, "clear|c|e|sent twice|postgres");
}

/// Each aggregate is at one worker at a time, in order, also while workers fail, roll back and lose leases.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_workers_keep_the_order_of_each_aggregate() {
    let database = Arc::new(Database::new().await);
    let admin = database.session().await;
    admin
        .ok("CREATE TABLE log (n bigint GENERATED ALWAYS AS IDENTITY, aggregate text, sequence int, began timestamptz, ended timestamptz)")
        .await;
    admin
        .ok("SELECT outbox_router.inbox_put('c', 'e' || n, 'x', 'a' || n % 7, n) FROM generate_series(1, 350) n")
        .await;
    let workers = (0..4).map(|worker| {
        let database = Arc::clone(&database);
        tokio::spawn(async move {
            let session = database.session().await;
            let mut round = 0_u32;
            while session.ok("SELECT count(*) FROM outbox_router.inbox_queue").await != "0" {
                round += 1;
                let leased = (round + worker).is_multiple_of(2);
                let (begin, lease, end) = match (leased, round % 5) {
                    (true, _) => ("SELECT 1", "'1 min'", "SELECT 1"),
                    (false, 0) => ("BEGIN", "NULL", "ROLLBACK"),
                    (false, _) => ("BEGIN", "NULL", "COMMIT"),
                };
                session.ok(begin).await;
                let taken = session
                    .ok(&format!("SELECT event_id, aggregate, sequence, token, clock_timestamp() FROM outbox_router.inbox_next('c', 3, {lease})"))
                    .await;
                for event in taken.lines() {
                    let columns: Vec<&str> = event.split('|').collect();
                    let [id, aggregate, sequence, token, began] = columns[..] else { panic!("{event}") };
                    session
                        .ok(&format!(
                            "INSERT INTO log (aggregate, sequence, began, ended) \
                             SELECT '{aggregate}', {sequence}, '{began}', clock_timestamp() \
                             WHERE outbox_router.inbox_done('c', '{id}', nullif('{token}', '')::uuid)"
                        ))
                        .await;
                }
                session.ok(end).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let once = "SELECT count(*), count(DISTINCT sequence) FROM log";
    assert_eq!(admin.ok(once).await, "350|350");
    let disorder = "SELECT count(*) FROM (SELECT sequence, lag(sequence) OVER w AS before, began, lag(ended) OVER w AS free \
                    FROM log WINDOW w AS (PARTITION BY aggregate ORDER BY began)) l WHERE before > sequence OR free > began";
    assert_eq!(admin.ok(disorder).await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_checked() {
    let database = Database::new().await;
    let session = database.session().await;
    for call in [
        "inbox_put('c', 'e', NULL)",
        "inbox_put('c', 'e', 'x', '')",
        "inbox_put('c', 'e', 'x', repeat('x', 10000))",
        "inbox_put('c', 'e', 'x', 'a', repeat('x', 256))",
        "inbox_put('c', 'e', decode(repeat('00', 16777217), 'hex'))",
        "inbox_next('c', 0)",
        "inbox_next('c', NULL)",
        "inbox_next('c', 501)",
        "inbox_next('c', 1, '0')",
        "inbox_next('c', 1, '1 year')",
        "inbox_decide('c', 'e', 'forget', 'x')",
        "inbox_decide('c', 'e', 'clear', '')",
        "inbox_configure('c', '6 days')",
        "inbox_configure('c', '6 days', '6 days')",
        "inbox_configure('c', '30 minutes', '10 minutes')",
        "inbox_configure('c', sender_window => '14 days')",
        "inbox_expire(0)",
        "inbox_expire(NULL)",
    ] {
        assert_eq!(session.fails(&format!("SELECT outbox_router.{call}")).await, "22023", "{call}");
    }
    session.ok("SELECT outbox_router.inbox_configure('c', '6 days', '3 days')").await;
    session.ok("SELECT outbox_router.inbox_configure('c', '90 days')").await;
    assert_eq!(session.ok("SELECT keep, ordered FROM outbox_router.inbox_consumers").await, "90 days|t");
}

/// It was taken under a lease by a worker that died, and then by one without a lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_lease_expired_can_be_ended_without_a_lease() {
    let database = Database::new().await;
    let session = database.session().await;
    let ends = [
        "SELECT outbox_router.inbox_done('c', 'e')",
        "SELECT outbox_router.inbox_done('c', ARRAY['e']) = 1",
        "SELECT outbox_router.inbox_fail('c', 'e', 'x') > now()",
    ];
    for end in ends {
        session.ok("SELECT outbox_router.inbox_decide('c', 'e', 'clear', 'test')").await;
        put(&session, "e", "a").await;
        assert_eq!(next(&session, "'1 min'").await, "e");
        session.ok("BEGIN").await;
        assert_eq!(next(&session, "NULL").await, "", "the lease is valid");
        session.ok("ROLLBACK").await;
        session.pass_time().await;
        session.ok("BEGIN").await;
        assert_eq!(next(&session, "NULL").await, "e");
        assert_eq!(session.ok(end).await, "t", "{end}");
        session.ok("COMMIT").await;
        session.pass_time().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_not_taken_in_the_transaction_is_not_ended() {
    let database = Database::new().await;
    let session = database.session().await;
    for event in ["e1", "e2", "e3"] {
        put(&session, event, "").await;
    }
    let next_one = "SELECT event_id FROM outbox_router.inbox_next('c')";
    session.ok("BEGIN").await;
    assert_eq!(session.ok(next_one).await, "e1");
    assert_eq!(session.ok("SELECT outbox_router.inbox_done('c', ARRAY['e1', 'e2'])").await, "1");
    session.ok("SAVEPOINT s").await;
    assert_eq!(session.fails("SELECT outbox_router.inbox_done('c', 'e2')").await, "55000");
    session.ok("ROLLBACK TO s").await;
    assert_eq!(session.ok(next_one).await, "e2");
    session.ok("ROLLBACK TO s").await;
    assert_eq!(session.fails("SELECT outbox_router.inbox_done('c', 'e2')").await, "55000");
    session.ok("ROLLBACK TO s").await;
    assert_eq!(
        session.ok("SELECT string_agg(event_id, ',') FROM outbox_router.inbox_next('c', 2)").await,
        "e2,e3"
    );
    assert_eq!(
        session.ok("SELECT outbox_router.inbox_done('c', 'e3'), outbox_router.inbox_done('c', 'e2')").await,
        "t|t"
    );
    session.ok("COMMIT").await;
    assert_eq!(next(&session, "NULL").await, "");
}
