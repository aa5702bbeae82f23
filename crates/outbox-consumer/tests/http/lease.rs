//! Handlers without a transaction.

use std::time::Duration;

use crate::server::Server;

async fn server(lease: Duration, wait: Duration) -> Server {
    Server::start("", move |layer| layer.lease(lease).unwrap().wait(wait).unwrap()).await
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn under_a_lease_duplicates_have_one_effect() {
    let server = server(MINUTE, MINUTE).await;
    let (first, second) = tokio::join!(server.post("/ok", "k", "e"), server.post("/ok", "k", "e"));
    assert_eq!((first.status, first.body), (second.status, second.body));
    assert!(server.post("/ok", "k", "e").await.replayed());
    assert_eq!((server.runs(), server.database.effects("e").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_lease_no_session_is_held_while_the_handler_runs() {
    let server = server(10 * MINUTE, Duration::ZERO).await;
    let admin = server.database.session().await;
    let (first, ()) = tokio::join!(server.post("/held", "k", "e"), async {
        server.until_runs(1).await;
        admin.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'middleware' AND datname = current_database()")
            .await;
        let second = server.post("/held", "k", "e").await;
        second.problem(409);
        assert!(second.retry_after().is_some_and(|seconds| (540..=600).contains(&seconds)), "{second:?}");
        server.release();
    });
    assert_eq!((first.status, server.runs()), (201, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_lease_a_5xx_or_a_panic_frees_the_key() {
    let server = server(MINUTE, Duration::ZERO).await;
    assert_eq!(server.post("/fails", "k", "e").await.status, 502);
    assert_eq!(server.post("/fails", "k", "e").await.status, 201);
    server.post("/panic", "p", "e").await.problem(500);
    server.post("/panic", "p", "e").await.problem(500);
    assert_eq!(server.runs(), 4);
}

/// The key was leased for nobody, if the request did not begin again with the same token.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_begin_was_not_answered_runs() {
    let server = server(MINUTE, Duration::ZERO).await;
    server.lose_answers(1);
    assert_eq!(server.post("/ok", "k", "e").await.status, 201);
    assert!(server.post("/ok", "k", "e").await.replayed());
    assert_eq!((server.runs(), server.database.effects("e").await), (1, 1));
}

/// The key is leased for a day, and nobody knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_begin_was_never_answered_is_freed() {
    let server = server(24 * 60 * MINUTE, Duration::ZERO).await;
    server.lose_answers(2);
    server.post("/ok", "k", "e").await.problem(503);
    let leased = "SELECT count(*) = 1 FROM outbox_router.idempotency_keys";
    assert_eq!(server.database.session().await.ok(leased).await, "t");
    let freed = leased.replace("= 1", "= 0");
    server.database.session().await.until(&freed).await;
    assert_eq!(server.post("/ok", "k", "e").await.status, 201);
    assert_eq!(server.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_refused_is_not_tried_until_the_lease_ends() {
    let server = server(24 * 60 * MINUTE, Duration::ZERO).await;
    let admin = server.database.session().await;
    let (first, ()) = tokio::join!(server.post("/held", "k", "e"), async {
        server.until_runs(1).await;
        admin.ok("DROP FUNCTION outbox_router.idempotency_finish").await;
        server.release();
    });
    first.problem(500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_stored_when_the_store_is_back() {
    let server = server(MINUTE, Duration::ZERO).await;
    let (first, ()) = tokio::join!(server.post("/held", "k", "e"), async {
        server.until_runs(1).await;
        server.take_store_away(true);
        server.release();
        server.post("/ok", "other", "e").await.problem(503);
        server.take_store_away(false);
    });
    assert_eq!(first.status, 201);
    assert!(server.post("/held", "k", "e").await.replayed());
    assert_eq!(server.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_is_late_changes_nothing() {
    let server = server(MINUTE, Duration::ZERO).await;
    let admin = server.database.session().await;
    let (first, second) = tokio::join!(server.post("/held", "k", "e"), async {
        server.until_runs(1).await;
        admin.ok("UPDATE outbox_router.idempotency_keys SET lease_until = now() - interval '1 s'").await;
        let (second, ()) = tokio::join!(server.post("/held", "k", "e"), async {
            server.until_runs(2).await;
            server.release();
        });
        second
    });
    let mut statuses = [first.status, second.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 503], "only one has the key");
    assert!(server.post("/held", "k", "e").await.replayed());
}
