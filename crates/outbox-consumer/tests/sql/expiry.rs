//! `inbox_expire` and `idempotency_expire`.

use std::sync::Arc;

use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_old_and_processed_expires_by_age() {
    let database = Database::new().await;
    let session = database.session().await;
    session
        .ok("SELECT outbox_router.inbox_claim('c', ARRAY['1', '2', '3', '4', 'new']); \
             SELECT outbox_router.inbox_claim('money', 'm'); SELECT outbox_router.inbox_configure('money', '90 days'); \
             SELECT outbox_router.inbox_put('c', 'waits', 'x'); SELECT FROM outbox_router.inbox_start('c', 'leased', '1 s'); \
             UPDATE outbox_router.inbox SET seen_at = now() - interval '14 days 1 hour' WHERE event_id <> 'new'; \
             UPDATE outbox_router.inbox SET seen_at = seen_at - interval '1 hour' WHERE event_id IN ('2', '3')")
        .await;
    let left = "SELECT string_agg(event_id, ',' ORDER BY event_id) FROM outbox_router.inbox";
    assert_eq!(session.ok("SELECT outbox_router.inbox_expire(2)").await, "2");
    assert_eq!(session.ok(left).await, "1,4,leased,m,new,waits");
    assert_eq!(session.ok("SELECT outbox_router.inbox_expire()").await, "2");
    assert_eq!(session.ok(left).await, "leased,m,new,waits");
    session.ok("BEGIN; SELECT FROM outbox_router.inbox_next('c'); SELECT outbox_router.inbox_done('c', 'waits'); COMMIT").await;
    assert_eq!(session.ok("SELECT outbox_router.inbox_expire()").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_reads_the_index_and_not_the_table() {
    let database = Database::new().await;
    let session = database.session().await;
    session
        .ok("SELECT outbox_router.inbox_claim('c', 'first'); \
             INSERT INTO outbox_router.inbox (consumer, event_id) SELECT 'c', n::text FROM generate_series(1, 50000) n; \
             INSERT INTO outbox_router.idempotency_keys (scope, key, token, status, request_hash, expires_at, forget_at) \
             SELECT 'u', n::text, gen_random_uuid(), 200, 'x', now() + interval '1 day', now() + interval '2 days' \
             FROM generate_series(1, 50000) n; \
             UPDATE outbox_router.inbox SET seen_at = now() - interval '20 days' WHERE event_id = '77'; \
             UPDATE outbox_router.idempotency_keys SET forget_at = now() WHERE key = '77'")
        .await;
    let read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables \
                WHERE relname IN ('inbox', 'idempotency_keys')";
    let expired = "BEGIN; SELECT outbox_router.inbox_expire(100), outbox_router.idempotency_expire(100)";
    // the statistics of a transaction contain what the session has not reported yet
    let session = database.session().await;
    assert_eq!(session.ok(expired).await, "1|1");
    let read: u32 = session.ok(read).await.parse().unwrap();
    assert!(read < 20, "{read} rows read");
}

/// Cleaners, takers of the same rows, and claims of the same events at once.
#[tokio::test(flavor = "multi_thread")]
async fn cleaners_run_in_parallel_with_each_other_and_with_claims() {
    let database = Arc::new(Database::new().await);
    let admin = database.session().await;
    admin
        .ok("SELECT outbox_router.inbox_claim('c', 'first'); \
             INSERT INTO outbox_router.inbox (consumer, event_id, seen_at) \
             SELECT 'c', n::text, now() - interval '20 days' - n * interval '1 ms' FROM generate_series(1, 20000) n")
        .await;
    let cleaners = (0..3).map(|_| {
        let database = Arc::clone(&database);
        tokio::spawn(async move {
            let session = database.session().await;
            let mut deleted = 0_u32;
            while session
                .ok("SELECT count(*) FROM outbox_router.inbox WHERE seen_at < now() - interval '19 days'")
                .await
                != "0"
            {
                let now = session.ok("SELECT outbox_router.inbox_expire(300)").await;
                deleted += now.parse::<u32>().unwrap();
            }
            deleted
        })
    });
    let claims = (0..2).map(|n| {
        let database = Arc::clone(&database);
        tokio::spawn(async move {
            let session = database.session().await;
            for batch in 0..60 {
                let claim = format!(
                    "INSERT INTO effects SELECT * FROM outbox_router.inbox_claim('c', ARRAY(\
                     SELECT (1 + (i * 7919 + {batch} * 100 + {n}) % 20000)::text FROM generate_series(1, 100) i))"
                );
                session.ok(&claim).await;
            }
        })
    });
    let (cleaners, claims) = (cleaners.collect::<Vec<_>>(), claims.collect::<Vec<_>>());
    for claims in claims {
        claims.await.unwrap();
    }
    let mut deleted = 0;
    for cleaner in cleaners {
        deleted += cleaner.await.unwrap();
    }
    assert_eq!(deleted, 20000);
    let twice = "SELECT count(*) - count(DISTINCT event_id) FROM effects";
    assert_eq!(admin.ok(twice).await, "0");
}
