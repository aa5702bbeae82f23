//! `inbox_claim`, one event or a batch.

use std::sync::Arc;

use crate::support::Database;

const CLAIM: &str = "SELECT outcome FROM outbox_router.inbox_claim('shipping', 'e')";

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_fresh_once_and_again_after_a_rollback() {
    let database = Database::new().await;
    let session = database.session().await;
    assert_eq!(session.ok(&format!("BEGIN; {CLAIM}; ROLLBACK")).await, "fresh");
    assert_eq!(
        session.ok(&format!("BEGIN; SAVEPOINT s; {CLAIM}; ROLLBACK TO s; {CLAIM}; COMMIT")).await,
        "fresh\nfresh"
    );
    assert_eq!(session.ok(CLAIM).await, "done");
    assert_eq!(session.ok("SELECT outcome FROM outbox_router.inbox_claim('billing', 'e')").await, "fresh");
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_get_the_result_that_was_stored_once() {
    let database = Database::new().await;
    let session = database.session().await;
    let store = "SELECT outbox_router.inbox_result('shipping', 'e', '{\"parcel\": 7}')";
    assert_eq!(session.fails(store).await, "55000");
    session.ok(&format!("BEGIN; {CLAIM}; {store}; COMMIT")).await;
    assert_eq!(session.fails(store).await, "55000");
    let again = session.ok("SELECT outcome, result FROM outbox_router.inbox_claim('shipping', 'e')").await;
    assert_eq!(again, "done|{\"parcel\": 7}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_one_insert() {
    let database = Database::new().await;
    let session = database.session().await;
    session.ok("SELECT FROM outbox_router.inbox_claim('shipping', 'first')").await;
    // the statistics of a transaction contain what the session has not reported yet
    let session = database.session().await;
    session.ok(&format!("BEGIN; {CLAIM}")).await;
    let written = "SELECT string_agg(concat(relname, n_tup_ins, n_tup_upd, n_tup_del), ',') \
                   FROM pg_stat_xact_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0";
    assert_eq!(session.ok(written).await, "inbox100");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_claims_nothing() {
    let database = Database::new().await;
    let session = database.session().await;
    session.ok("BEGIN").await;
    assert_eq!(session.ask("SELECT 1/0").await.unwrap_err(), "22012");
    assert_eq!(session.ask(CLAIM).await.unwrap_err(), "25P02");
    session.ok("ROLLBACK").await;
    assert_eq!(session.ok(CLAIM).await, "fresh");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_returns_the_fresh_ids_in_the_given_order() {
    let database = Database::new().await;
    let session = database.session().await;
    let batch =
        |ids: &str| format!("SELECT * FROM outbox_router.inbox_claim('shipping', ARRAY[{ids}]::text[])");
    assert_eq!(session.ok(&batch("'c', 'a', 'c', 'b'")).await, "c\na\nb");
    assert_eq!(session.ok(&batch("'d', 'a', 'B', 'ä', 'c', 'b', '{x}'")).await, "d\nB\nä\n{x}");
    assert_eq!(session.ok(&batch("'a', 'b'")).await, "");
    assert_eq!(session.ok(&batch("")).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_pass_over_a_leased_event() {
    let database = Database::new().await;
    let session = database.session().await;
    let start = "SELECT outcome FROM outbox_router.inbox_start('shipping', 'leased', '1 min')";
    let batch = "SELECT * FROM outbox_router.inbox_claim('shipping', ARRAY['leased', 'other'])";
    session.ok(start).await;
    assert_eq!(session.fails(batch).await, "55P03");
    session.ok("UPDATE outbox_router.inbox SET lease_until = now() - interval '1 s' WHERE lease_until IS NOT NULL").await;
    assert_eq!(session.ok(batch).await, "leased\nother");
    assert_eq!(session.ok(start).await, "done");
}

/// A batch takes over expired leases, and waits for the row of one. Meanwhile something happens to the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_pass_over_an_event_that_changes_meanwhile() {
    for (change, outcome) in [
        ("SELECT FROM outbox_router.inbox_start('c', 'b', '1 min')", Err("40001")),
        ("SELECT outbox_router.inbox_decide('c', 'b', 'clear', 'sent twice')", Ok("a\nb")),
        ("UPDATE outbox_router.inbox SET lease_until = NULL, token = NULL WHERE event_id = 'b'", Ok("a")),
    ] {
        let database = Database::new().await;
        let (reader, other) = (database.session().await, database.session().await);
        let batch = Arc::new(database.session().await);
        other.ok("SELECT FROM unnest(ARRAY['a', 'b']) e, outbox_router.inbox_start('c', e, '1 min')").await;
        other.ok("UPDATE outbox_router.inbox SET lease_until = now() - interval '1 s'").await;
        reader.ok("BEGIN; SELECT FROM outbox_router.inbox WHERE event_id = 'a' FOR UPDATE").await;
        let (pid, claiming) = (batch.pid, batch.clone());
        let claimed = tokio::spawn(async move {
            claiming.ask("SELECT * FROM outbox_router.inbox_claim('c', ARRAY['a', 'b'])").await
        });
        other.until_blocked(pid).await;
        other.ok(change).await;
        reader.ok("COMMIT").await;
        let claimed = claimed.await.unwrap();
        assert_eq!(claimed.as_deref().map_err(String::as_str), outcome, "{change}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_with_the_same_ids_in_any_order_do_not_deadlock() {
    let database = Arc::new(Database::new().await);
    // of each batch a third waits in the inbox under an expired lease
    let admin = database.session().await;
    let lease = "INSERT INTO outbox_router.inbox (consumer, event_id, token, lease_until) \
                 SELECT 'shipping', (r * 100 + n)::text, gen_random_uuid(), now() - interval '1 s' \
                 FROM generate_series(0, 19) r, generate_series(0, 99, 3) n";
    admin.ok(lease).await;
    let workers = (0..8).map(|worker| {
        let database = Arc::clone(&database);
        tokio::spawn(async move {
            let session = database.session().await;
            for round in 0..20 {
                let effects = format!(
                    "INSERT INTO effects SELECT * FROM outbox_router.inbox_claim('shipping', ARRAY(\
                     SELECT ({round} * 100 + n)::text FROM generate_series(0, 99) n ORDER BY hashint4(n + {worker})))"
                );
                session.ok(&effects).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    assert_eq!(admin.ok("SELECT count(*), count(DISTINCT event_id) FROM effects").await, "2000|2000");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_concurrent_duplicates_one_is_fresh() {
    let database = Arc::new(Database::new().await);
    let sessions = (0..25).map(|_| {
        let database = Arc::clone(&database);
        tokio::spawn(async move {
            let session = database.session().await;
            for _ in 0..40 {
                let effect =
                    format!("INSERT INTO effects SELECT 'e' FROM ({CLAIM}) c WHERE outcome = 'fresh'");
                session.ok(&effect).await;
            }
        })
    });
    for session in sessions.collect::<Vec<_>>() {
        session.await.unwrap();
    }
    assert_eq!(database.effects("e").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn stricter_isolation_fails_with_40001_and_succeeds_when_retried() {
    let database = Database::new().await;
    let (first, second) = (database.session().await, database.session().await);
    let batch = "SELECT * FROM outbox_router.inbox_claim('shipping', ARRAY['e'])";
    first.ok("SELECT FROM outbox_router.inbox_claim('shipping', 'another')").await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for claim in [CLAIM, batch] {
            second.ok(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM effects")).await;
            first.ok(CLAIM).await;
            assert_eq!(second.ask(claim).await.unwrap_err(), "40001", "{level}");
            second.ok("ROLLBACK").await;
            let retried = second.ok(&format!("BEGIN ISOLATION LEVEL {level}; {CLAIM}; COMMIT")).await;
            assert_eq!(retried, "done");
            first.ok("DELETE FROM outbox_router.inbox WHERE event_id = 'e'").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_ids_are_checked() {
    let database = Database::new().await;
    let session = database.session().await;
    let bad = |length: u32| ["NULL".to_owned(), "''".to_owned(), format!("repeat('x', {length})")];
    for name in bad(256) {
        for call in [
            "inbox_claim({}, 'e')",
            "inbox_claim({}, ARRAY['e'])",
            "inbox_start({}, 'e', '1 min')",
            "inbox_put({}, 'e', 'x')",
            "inbox_next({})",
            "inbox_newer({}, 'a', 1)",
            "inbox_configure({}, '30 days')",
            "inbox_forget_sequences({})",
        ] {
            let sql = format!("SELECT outbox_router.{}", call.replace("{}", &name));
            assert_eq!(session.fails(&sql).await, "22023", "{sql}");
        }
    }
    for id in bad(1001).into_iter().chain(["repeat('x', 10000)".to_owned()]) {
        for call in [
            "inbox_claim('c', {})",
            "inbox_start('c', {}, '1 min')",
            "inbox_put('c', {}, 'x')",
            "inbox_result('c', {}, '1')",
            "inbox_finish('c', {}, gen_random_uuid())",
            "inbox_fail('c', {}, 'x')",
        ] {
            let sql = format!("SELECT outbox_router.{}", call.replace("{}", &id));
            assert_eq!(session.fails(&sql).await, "22023", "{sql}");
        }
    }
    // the functions that also take an array
    for call in ["inbox_claim('c', '{a,b}'::text)", "inbox_done('c', '{a}'::text)"] {
        assert_eq!(session.fails(&format!("SELECT outbox_router.{call}")).await, "22023", "{call}");
    }
    for ids in ["NULL::text[]", "ARRAY['a', NULL]", "ARRAY['']", "array_fill('x'::text, ARRAY[10001])"] {
        assert_eq!(
            session.fails(&format!("SELECT outbox_router.inbox_claim('c', {ids})")).await,
            "22023",
            "{ids}"
        );
    }
    assert_eq!(session.ok("SELECT count(*) FROM outbox_router.inbox").await, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_consumer_is_remembered_and_concurrent_first_calls_do_not_wait() {
    let database = Database::new().await;
    let (first, second) = (database.session().await, database.session().await);
    assert_eq!(first.ok(&format!("BEGIN; {CLAIM}")).await, "fresh");
    assert_eq!(second.ok("SELECT outcome FROM outbox_router.inbox_claim('shipping', 'e2')").await, "fresh");
    first.ok("COMMIT").await;
    assert_eq!(second.ok("SELECT consumer FROM outbox_router.inbox_consumers").await, "shipping");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_becomes_a_key() {
    let database = Database::new().await;
    let key = database.session().await.ok("SELECT outbox_router.inbox_body_key('\\xff00')").await;
    assert_eq!(key, "body_ea5dbf9596d187e9500f23e9a680109475341cf4e81f7e043f7d97152c10772f");
}

/// Otherwise each call would read all events of the consumer, until the table is analyzed again.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_consumer_that_is_not_in_the_statistics_is_found_by_its_id() {
    let database = Database::new().await;
    let session = database.session().await;
    let known = "INSERT INTO outbox_router.inbox (consumer, event_id) SELECT 'known', 'e' || n FROM generate_series(1, 10000) n";
    session.ok(known).await;
    session.ok("ANALYZE outbox_router.inbox").await;
    for consumer in ["known", "new"] {
        let plan = session
            .ok(&format!(
                "EXPLAIN SELECT FROM outbox_router.inbox WHERE consumer = '{consumer}' AND event_id = 'e1'"
            ))
            .await;
        assert!(plan.contains("inbox_pkey"), "{plan}");
    }
}

/// How a consumer learns what became of its transaction.
#[tokio::test(flavor = "multi_thread")]
async fn the_claims_of_a_transaction_are_found_by_its_id() {
    let database = Database::new().await;
    let session = database.session().await;
    let xid = session
        .ok("BEGIN; SELECT pg_current_xact_id(); SELECT FROM outbox_router.inbox_claim('c', ARRAY['a', 'b'])")
        .await;
    let xid = xid.trim();
    let claimed = |xid: &str| {
        format!("SELECT * FROM outbox_router.inbox_claimed_by('c', ARRAY['b', 'x', 'a'], '{xid}')")
    };
    session.ok("COMMIT; SELECT FROM outbox_router.inbox_claim('c', 'x')").await;
    assert_eq!(session.ok(&claimed(xid)).await, "b\na");
    // given by a server that has crashed since
    assert_eq!(session.ok(&claimed("900000000000")).await, "");
}
