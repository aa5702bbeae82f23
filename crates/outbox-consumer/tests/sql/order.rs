//! `inbox_newer`.

use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_is_newer_once_and_older_ones_are_counted() {
    let database = Database::new().await;
    let session = database.session().await;
    let newer = |n: i64| format!("SELECT outbox_router.inbox_newer('c', 'a', {n})");
    let mut found = Vec::new();
    for n in [-3, 5, 5, 4, 6, i64::MAX, 7] {
        found.push(session.ok(&newer(n)).await);
    }
    assert_eq!(found, ["t", "t", "f", "f", "t", "t", "f"]);
    let skipped = "SELECT value FROM outbox_router.consumer_counters() WHERE name = 'inbox_skipped_total'";
    assert_eq!(session.ok(skipped).await, "3");
    session.ok("SELECT outbox_router.inbox_forget_sequences('c', 'another')").await;
    assert_eq!(session.ok(&newer(8)).await, "f");
    assert_eq!(session.ok("SELECT outbox_router.inbox_forget_sequences('c')").await, "1");
    assert_eq!(session.ok(&newer(8)).await, "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sequence_of_a_record_is_a_text_of_32_digits() {
    let database = Database::new().await;
    let session = database.session().await;
    let newer = |text: &str| format!("SELECT outbox_router.inbox_newer('c', 'a', '{text}')");
    assert_eq!(session.ok(&newer("000000000016b3740000000000000002")).await, "t");
    assert_eq!(session.ok(&newer("000000000016b3740000000000000002")).await, "f");
    assert_eq!(session.ok(&newer("000000000016b374000000000000000a")).await, "t");
    for wrong in ["0000000100000000", "42", "", "000000000016B3740000000000000002"] {
        assert_eq!(session.fails(&newer(wrong)).await, "22023", "{wrong}");
    }
    // versions of the application's own are of another kind
    assert_eq!(session.fails("SELECT outbox_router.inbox_newer('c', 'a', 1)").await, "22023");
    assert_eq!(session.fails("SELECT outbox_router.inbox_newer('c', 'a', NULL::bigint)").await, "22023");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sequence_counts_only_if_the_effect_commits_and_concurrent_ones_wait() {
    let database = Database::new().await;
    let (first, second, admin) =
        (database.session().await, database.session().await, database.session().await);
    let newer = |n: i64| format!("SELECT outbox_router.inbox_newer('c', 'a', {n})");
    first.ok(&newer(0)).await;
    for (end, accepted) in [("ROLLBACK", "t"), ("COMMIT", "f")] {
        first.ok("BEGIN").await;
        assert_eq!(first.ok(&newer(9)).await, "t");
        let older = newer(5);
        let (found, ()) = tokio::join!(second.ok(&older), async {
            admin.until_blocked(second.pid).await;
            first.ok(end).await;
        });
        assert_eq!(found, accepted, "{end}");
    }
    second.ok("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM effects").await;
    first.ok(&newer(20)).await;
    assert_eq!(second.ask(&newer(21)).await.unwrap_err(), "40001");
}
