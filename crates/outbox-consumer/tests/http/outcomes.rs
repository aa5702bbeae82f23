//! Each outcome of a request, one test for each.

use std::time::{Duration, Instant};

use axum::http::Method;
use outbox_consumer::idempotency::IdempotencyLayer;

use crate::server::{Server, alice};

async fn server() -> Server {
    Server::start("", |layer| layer).await
}

fn waits(time: Duration) -> impl FnOnce(IdempotencyLayer) -> IdempotencyLayer {
    move |layer| layer.wait(time).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_one_valid_key_is_answered_with_400() {
    let server = server().await;
    let long = [b'k'; 256];
    for (n, headers) in [
        vec![("user", &b"alice"[..])],
        alice(b"").to_vec(),
        alice(b"\"\"").to_vec(),
        alice(&long).to_vec(),
        alice("schl\u{fc}ssel".as_bytes()).to_vec(),
        alice(b"a\tb").to_vec(),
        [&alice(b"a")[..], &[("idempotency-key", &b"a"[..])]].concat(),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = server.request(Method::POST, "/ok", &headers, "e").await;
        assert!(answer.problem(400).contains("idempotency-key"), "{n}");
    }
    let nobody = server.request(Method::POST, "/ok", &[("idempotency-key", b"a")], "e").await;
    nobody.problem(401);
    assert_eq!((server.runs(), server.database.effects("e").await), (0, 0));
    let read = server.request(Method::GET, "/ok", &[], "").await;
    assert_eq!((read.status, &read.body[..]), (200, &b"read"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_has_the_name_that_is_set() {
    let named = |layer: IdempotencyLayer| layer.header("x-idempotency-key".parse().unwrap());
    let server = Server::start("", named).await;
    server.post("/ok", "k", "e").await.problem(400);
    let headers = [("user", &b"alice"[..]), ("x-idempotency-key", b"k")];
    assert_eq!(server.request(Method::POST, "/ok", &headers, "e").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_gets_the_response_byte_for_byte_and_does_nothing() {
    let server = server().await;
    let first = server.post("/ok", "k", "e").await;
    assert_eq!((first.status, &first.body[..]), (201, &b"\xff\0order"[..]));
    assert!(!first.replayed() && first.header("x-trace").is_some());
    for key in ["k", "\"k\""] {
        let again = server.post("/ok", key, "e").await;
        assert!(again.replayed());
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        for name in ["location", "content-type", "link"] {
            assert_eq!(again.header(name), first.header(name));
        }
        assert_eq!(again.header("x-trace"), None, "not selected");
    }
    assert_eq!((server.runs(), server.database.effects("e").await), (1, 1));
    let bob = [("user", &b"bob"[..]), ("idempotency-key", b"k")];
    assert!(!server.request(Method::POST, "/ok", &bob, "of-bob").await.replayed());
    assert_eq!(server.database.effects("of-bob").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_request_is_a_mismatch() {
    let server = server().await;
    server.post("/ok", "k", "e").await;
    for (method, path, body) in [
        (Method::POST, "/ok", "other"),
        (Method::POST, "/ok?x=1", "e"),
        (Method::POST, "/no", "e"),
        (Method::PUT, "/ok", "e"),
    ] {
        let answer = server.request(method, path, &alice(b"k"), body).await;
        assert_eq!(answer.problem(409), "Idempotency key reused with different request body");
    }
    assert_eq!((server.runs(), server.database.effects("other").await), (1, 0));
    let as_draft = Server::start("", IdempotencyLayer::unprocessable_mismatch).await;
    as_draft.post("/ok", "k", "e").await;
    let answer = as_draft.post("/ok", "k", "other").await;
    assert_eq!(answer.problem(422), "Idempotency key reused with different request body");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_for_the_first_request() {
    let server = Server::start("", waits(Duration::from_secs(60))).await;
    let admin = server.database.session().await;
    let (first, second, ()) = tokio::join!(
        server.post("/held", "k", "e"),
        server.post("/held", "k", "e"),
        async {
            admin.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()").await;
            server.release();
        }
    );
    assert_eq!((first.status, second.status), (201, 201));
    assert!(first.replayed() != second.replayed());
    assert_eq!((server.runs(), server.database.effects("e").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_waits_no_longer_than_it_may() {
    let server = Server::start("", waits(Duration::from_millis(300))).await;
    let (first, ()) = tokio::join!(server.post("/held", "k", "e"), async {
        server.until_runs(1).await;
        let start = Instant::now();
        let second = server.post("/held", "k", "e").await;
        assert!(start.elapsed() >= Duration::from_millis(300));
        second.problem(409);
        assert_eq!(second.retry_after(), Some(1));
        server.release();
    });
    assert_eq!((first.status, server.runs()), (201, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_gone_after_its_ttl_and_new_after_as_long_again() {
    let server = server().await;
    let admin = server.database.session().await;
    let later = "UPDATE outbox_router.idempotency_keys SET expires_at = expires_at - interval '25 hours', \
                 forget_at = forget_at - interval '25 hours'";
    server.post("/ok", "k", "e").await;
    admin.ok(later).await;
    server.post("/ok", "k", "e").await.problem(410);
    admin.ok(later).await;
    assert_eq!(server.post("/ok", "k", "e").await.status, 201);
    assert_eq!((server.runs(), server.database.effects("e").await), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ttl_is_the_one_that_is_set() {
    let server = Server::start("", |layer| layer.ttl(Duration::from_secs(3600)).unwrap()).await;
    server.post("/ok", "k", "e").await;
    let admin = server.database.session().await;
    let ttl = "SELECT forget_at - expires_at FROM outbox_router.idempotency_keys";
    assert_eq!(admin.ok(ttl).await, "01:00:00");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_4xx_is_stored() {
    let server = server().await;
    for replayed in [false, true] {
        let answer = server.post("/unprocessable", "k", "e").await;
        assert_eq!((answer.status, &answer.body[..], answer.replayed()), (422, &b"no"[..], replayed));
    }
    assert_eq!((server.runs(), server.database.effects("e").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_statement_a_4xx_is_stored_without_the_work() {
    let server = server().await;
    for replayed in [false, true] {
        let answer = server.post("/broken-422", "k", "e").await;
        assert_eq!((answer.status, answer.replayed()), (422, replayed));
    }
    assert_eq!((server.runs(), server.database.effects("e").await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_statement_a_2xx_becomes_500() {
    let server = server().await;
    for runs in 1..=2 {
        server.post("/broken-201", "k", "e").await.problem(500);
        assert_eq!((server.runs(), server.database.effects("e").await), (runs, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_5xx_the_repetition_runs_again() {
    let server = server().await;
    assert_eq!(server.post("/fails", "k", "e").await.status, 502);
    assert_eq!(server.database.effects("e").await, 0);
    let again = server.post("/fails", "k", "e").await;
    assert_eq!((again.status, again.replayed()), (201, false));
    assert!(server.post("/fails", "k", "e").await.replayed());
    assert_eq!((server.runs(), server.database.effects("e").await), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_half_done_work_is_left_by_a_handler_that_does_not_end_well() {
    let server = server().await;
    for (path, what) in [
        ("/panic", "ended"),
        ("/large", "could not be read"),
        ("/ended", "has ended the transaction"),
        ("/ended-and-begun", "has ended the transaction"),
    ] {
        for _ in 0..2 {
            let detail = server.post(path, path, "e").await.problem(500);
            assert!(detail.contains(what), "{path}: {detail}");
        }
        assert_eq!(server.database.effects("e").await, 0, "{path}");
    }
    assert_eq!(server.runs(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_answered_with_413() {
    let server = Server::start("", |layer| layer.max_request_body(3)).await;
    server.post("/ok", "k", "1234").await.problem(413);
    assert_eq!(server.post("/ok", "k", "123").await.status, 201);
}
