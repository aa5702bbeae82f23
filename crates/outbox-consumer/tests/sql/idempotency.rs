//! `idempotency_begin` and `idempotency_finish`.

use std::time::{Duration, Instant};

use crate::support::{Database, Session};

/// The outcome of a begin with a hash of `body` and these further arguments.
async fn begin(session: &Session, body: &str, more: &str) -> String {
    session
        .ok(&format!("SELECT outcome FROM outbox_router.idempotency_begin('u', 'k', sha256('{body}'){more})"))
        .await
}

async fn token(session: &Session, more: &str) -> String {
    let sql =
        format!("SELECT outcome, token FROM outbox_router.idempotency_begin('u', 'k', sha256('a'){more})");
    let begun = session.ok(&sql).await;
    begun.strip_prefix("new|").unwrap_or_else(|| panic!("{begun}")).to_owned()
}

async fn finish(session: &Session, token: &str, status: u32) -> String {
    let sql = format!(
        "SELECT outbox_router.idempotency_finish('u', 'k', '{token}', {status}, '{{\"etag\": \"1\"}}', '\\xff00'::bytea)"
    );
    session.ok(&sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_replayed_byte_for_byte() {
    let database = Database::new().await;
    let session = database.session().await;
    session.ok("BEGIN").await;
    let token = token(&session, "").await;
    assert_eq!(finish(&session, &token, 201).await, "t");
    assert_eq!(finish(&session, &token, 201).await, "t", "repeated");
    session.ok("COMMIT").await;
    let replay =
        "SELECT outcome, status, headers, body FROM outbox_router.idempotency_begin('u', 'k', sha256('a'))";
    assert_eq!(session.ok(replay).await, "replay|201|{\"etag\": \"1\"}|\\xff00");
    assert_eq!(begin(&session, "b", "").await, "mismatch");
    assert_eq!(session.ok(&replay.replace("'u'", "'v'").replace(", status, headers, body", "")).await, "new");
    let counted = "SELECT string_agg(split_part(name, '_', 2) || value, ',') FROM outbox_router.consumer_counters() \
                   WHERE name LIKE 'idem%' AND value > 0";
    assert_eq!(session.ok(counted).await, "mismatch1,new2,replay1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_frees_the_key() {
    let database = Database::new().await;
    let session = database.session().await;
    for _ in 0..2 {
        session.ok("BEGIN").await;
        let token = token(&session, "").await;
        finish(&session, &token, 200).await;
        session.ok("ROLLBACK").await;
    }
    session.ok("BEGIN").await;
    let token = token(&session, "").await;
    let server_error = format!("SELECT outbox_router.idempotency_finish('u', 'k', '{token}', 503)");
    assert_eq!(session.ask(&server_error).await.unwrap_err(), "55000");
    session.ok("ROLLBACK").await;
    assert_eq!(begin(&session, "a", "").await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_for_the_first_and_no_longer_than_it_may() {
    let database = Database::new().await;
    let (first, second) = (database.session().await, database.session().await);
    first.ok("BEGIN").await;
    let of_first = token(&first, "").await;
    let start = Instant::now();
    assert_eq!(begin(&second, "a", ", max_wait => '0.3 s'").await, "in_progress");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(begin(&second, "a", ", max_wait => '0'").await, "in_progress");
    let (outcome, ()) = tokio::join!(begin(&second, "a", ", max_wait => '1 min'"), async {
        first
            .until(&format!("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {}", second.pid))
            .await;
        finish(&first, &of_first, 200).await;
        first.ok("COMMIT").await;
    });
    assert_eq!(outcome, "replay");
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_lease_a_crash_frees_the_key_later_and_a_5xx_at_once() {
    let database = Database::new().await;
    let (session, other) = (database.session().await, database.session().await);
    let lease = ", lease => '1 min', max_wait => '0'";
    let former = token(&session, lease).await;
    assert_eq!(begin(&other, "a", lease).await, "in_progress");
    assert_eq!(begin(&other, "b", lease).await, "mismatch");
    session.ok("UPDATE outbox_router.idempotency_keys SET lease_until = now() - interval '1 s'").await;
    assert_eq!(begin(&other, "b", lease).await, "mismatch");
    let present = token(&other, lease).await;
    assert_eq!(finish(&session, &former, 200).await, "f", "late");
    assert_eq!(finish(&session, &former, 500).await, "f", "late");
    assert_eq!(finish(&other, &present, 500).await, "t");
    let again = token(&session, lease).await;
    // a duplicate waits without a lock on the row, so that finish does not wait for it
    let (outcome, finished) =
        tokio::join!(begin(&other, "a", ", lease => '1 min', max_wait => '1 min'"), async {
            session
                .until(&format!(
                    "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = {}",
                    other.pid
                ))
                .await;
            finish(&session, &again, 404).await
        });
    assert_eq!((outcome.as_str(), finished.as_str()), ("replay", "t"));
}

/// The answer to the first call was lost.
#[tokio::test(flavor = "multi_thread")]
async fn under_a_lease_a_begin_may_be_repeated_with_a_token_of_its_own() {
    let database = Database::new().await;
    let session = database.session().await;
    let with = |token: u32, lease: &str| {
        format!(", lease => {lease}, max_wait => '0', token => '00000000-0000-4000-8000-00000000000{token}'")
    };
    let lease = "'1 min'";
    let first = token(&session, &with(1, lease)).await;
    assert_eq!(token(&session, &with(1, lease)).await, first);
    assert_eq!(begin(&session, "a", &with(2, lease)).await, "in_progress");
    assert_eq!(begin(&session, "b", &with(1, lease)).await, "mismatch");
    assert_eq!(finish(&session, &first, 200).await, "t");
    assert_eq!(begin(&session, "a", &with(1, lease)).await, "replay");
    // without a lease a lost answer means that nothing was committed
    session.ok("DELETE FROM outbox_router.idempotency_keys").await;
    assert_eq!(begin(&session, "a", &with(1, "NULL")).await, "new");
    assert_eq!(begin(&session, "a", &with(1, "NULL")).await, "in_progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_not_forgotten_while_its_lease_is_valid() {
    let database = Database::new().await;
    let session = database.session().await;
    let first = token(&session, ", ttl => '1 hour', lease => '6 hours'").await;
    session.ok("UPDATE outbox_router.idempotency_keys SET expires_at = now() - interval '1 hour', forget_at = now()").await;
    assert_eq!(begin(&session, "b", ", max_wait => '0'").await, "expired");
    assert_eq!(finish(&session, &first, 200).await, "t");
    assert_eq!(begin(&session, "b", ", max_wait => '0'").await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_expires_and_is_new_after_as_long_again() {
    let database = Database::new().await;
    let session = database.session().await;
    let of_first = token(&session, ", lease => '1 min'").await;
    finish(&session, &of_first, 200).await;
    let later = "UPDATE outbox_router.idempotency_keys SET expires_at = expires_at - interval '25 hours', \
                 forget_at = forget_at - interval '25 hours'";
    session.ok(later).await;
    assert_eq!(begin(&session, "a", "").await, "expired");
    assert_eq!(begin(&session, "b", "").await, "expired");
    assert_eq!(session.ok("SELECT outbox_router.idempotency_expire()").await, "0");
    session.ok(later).await;
    session.ok("BEGIN").await;
    assert_eq!(begin(&session, "b", "").await, "new");
    session.ok("ROLLBACK").await;
    assert_eq!(session.ok("SELECT outbox_router.idempotency_expire()").await, "1");
    assert_eq!(begin(&session, "b", "").await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_a_finish_never_runs_the_work_again() {
    let database = Database::new().await;
    let session = database.session().await;
    token(&session, "").await;
    assert_eq!(begin(&session, "a", ", max_wait => '0'").await, "in_progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn stricter_isolation_replays_or_fails_with_40001() {
    let database = Database::new().await;
    let (first, second) = (database.session().await, database.session().await);
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        second.ok(&format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM effects")).await;
        let of_first = token(&first, ", lease => '1 min'").await;
        finish(&first, &of_first, 200).await;
        let late = second.ask("SELECT FROM outbox_router.idempotency_begin('u', 'k', sha256('a'))").await;
        assert_eq!(late.unwrap_err(), "40001", "{level}");
        second.ok("ROLLBACK").await;
        second.ok(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        assert_eq!(begin(&second, "a", "").await, "replay");
        second.ok("ROLLBACK; DELETE FROM outbox_router.idempotency_keys").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_checked() {
    let database = Database::new().await;
    let session = database.session().await;
    for call in [
        "idempotency_begin(NULL, 'k', sha256('a'))",
        "idempotency_begin('', 'k', sha256('a'))",
        "idempotency_begin(repeat('u', 256), 'k', sha256('a'))",
        "idempotency_begin('u', NULL, sha256('a'))",
        "idempotency_begin('u', '', sha256('a'))",
        "idempotency_begin('u', repeat('k', 256), sha256('a'))",
        "idempotency_begin('u', 'ä', sha256('a'))",
        "idempotency_begin('u', E'k\\n', sha256('a'))",
        "idempotency_begin('u', 'k', NULL)",
        "idempotency_begin('u', 'k', '')",
        "idempotency_begin('u', 'k', sha256('a'), '59 minutes')",
        "idempotency_begin('u', 'k', sha256('a'), '73 hours')",
        "idempotency_begin('u', 'k', sha256('a'), max_wait => '-1 s')",
        "idempotency_begin('u', 'k', sha256('a'), max_wait => '1 hour')",
        "idempotency_begin('u', 'k', sha256('a'), lease => '0')",
        "idempotency_begin('u', 'k', sha256('a'), lease => '1 year')",
        "idempotency_finish('u', 'k', NULL, 200)",
        "idempotency_finish('u', 'k', gen_random_uuid(), 100)",
        "idempotency_finish('u', 'k', gen_random_uuid(), NULL)",
        "idempotency_finish('u', 'k', gen_random_uuid(), 600)",
        "idempotency_finish('u', 'k', gen_random_uuid(), 200, NULL, decode(repeat('00', 16777217), 'hex'))",
        "idempotency_expire(0)",
    ] {
        assert_eq!(session.fails(&format!("SELECT outbox_router.{call}")).await, "22023", "{call}");
    }
    let nobody = "SELECT outbox_router.idempotency_finish('u', 'k', gen_random_uuid(), 200)";
    assert_eq!(session.ok(nobody).await, "f", "without a begin");
    let large = "SELECT outbox_router.idempotency_finish('u', 'k', token, 200, NULL, decode(repeat('00', 10000000), 'hex')) \
                 FROM outbox_router.idempotency_begin('u', 'k', sha256('a'))";
    assert_eq!(session.ok(large).await, "t");
    let length = "SELECT length(body) FROM outbox_router.idempotency_begin('u', 'k', sha256('a'))";
    assert_eq!(session.ok(length).await, "10000000");
}
