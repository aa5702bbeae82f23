//! Duplicates, lost responses and killed sessions: one effect.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use tokio::task::JoinSet;

use crate::server::{Server, alice};

/// Ends the sessions of the middleware, and returns how many.
const KILL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                    WHERE application_name = 'middleware' AND datname = current_database()";

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_duplicates_have_one_effect() {
    let server = Arc::new(Server::start("", |layer| layer.wait(Duration::from_secs(60)).unwrap()).await);
    let mut requests = JoinSet::new();
    for n in 0..60 {
        let server = Arc::clone(&server);
        requests
            .spawn(async move { server.post("/ok", &format!("k{}", n % 3), &format!("e{}", n % 3)).await });
    }
    let answers = requests.join_all().await;
    assert!(answers.iter().all(|answer| (answer.status, &answer.body[..]) == (201, b"\xff\0order")));
    assert_eq!(answers.iter().filter(|answer| !answer.replayed()).count(), 3);
    for event in ["e0", "e1", "e2"] {
        assert_eq!(server.database.effects(event).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_gets_the_response_when_it_comes_back() {
    let server = Server::start("", |layer| layer.wait(Duration::from_secs(60)).unwrap()).await;
    let stream = server.send(Method::POST, "/held", &alice(b"k"), "e").await;
    server.until_runs(1).await;
    drop(stream);
    let (again, ()) = tokio::join!(server.post("/held", "k", "e"), async { server.release() });
    assert!(again.replayed());
    assert_eq!((again.status, server.runs(), server.database.effects("e").await), (201, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_killed_while_the_handler_runs_leaves_nothing() {
    let server = Server::start("", |layer| layer).await;
    let admin = server.database.session().await;
    let (first, ()) = tokio::join!(server.post("/held", "k", "e"), async {
        server.until_held().await;
        assert_eq!(admin.ok(KILL).await, "1");
        server.release();
    });
    first.problem(503);
    assert!(first.retry_after().is_some());
    assert_eq!(server.database.effects("e").await, 0);
    assert_eq!(server.post("/held", "k", "e").await.status, 201);
    assert_eq!((server.runs(), server.database.effects("e").await), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in scripts/test --full"]
async fn with_sessions_killed_at_any_moment_each_request_has_one_effect() {
    const KEYS: usize = 40;
    let server = Arc::new(Server::start("", |layer| layer.wait(Duration::from_secs(5)).unwrap()).await);
    let mut clients = JoinSet::new();
    for n in 0..2 * KEYS {
        let server = Arc::clone(&server);
        clients.spawn(async move {
            let name = format!("e{}", n % KEYS);
            loop {
                let answer = server.post("/ok", &name, &name).await;
                if answer.status < 500 && answer.status != 409 {
                    return answer;
                }
            }
        });
    }
    let admin = server.database.session().await;
    let mut killed = 0;
    // at first as many as there are, then none, so that the clients come to an end
    while killed < 200 && !clients.is_empty() {
        killed += admin.ok(KILL).await.parse::<u32>().unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
        while clients.try_join_next().is_some() {}
    }
    assert!(killed > 0);
    assert!(clients.join_all().await.iter().all(|answer| answer.status == 201));
    for n in 0..KEYS {
        assert_eq!(server.database.effects(&format!("e{n}")).await, 1, "after {killed} kills");
    }
}
