//! Events whose handler keeps failing wait in the queue of the inbox, and their aggregate behind them.

use crate::support::Session;
use crate::topic::{Running, Topic};

/// What is in the queue, in its order.
async fn queue(session: &Session) -> String {
    session
        .ok("SELECT string_agg(event_id, ',' ORDER BY position) FROM outbox_router.inbox_queue WHERE consumer = 'c'")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_event_holds_back_its_aggregate_and_no_other() {
    let topic = Topic::new(1).await;
    let session = topic.session().await;
    for (id, key, value) in [("a1", "a", "ok"), ("a2", "a", "fail"), ("b1", "b", "ok"), ("a3", "a", "ok")] {
        topic.send(id, key, value).await;
    }
    let parking = || topic.consumer().attempts(2).park();
    let running = Running::start(parking());
    topic.until_effects(2).await;
    session.until("SELECT count(*) = 2 FROM outbox_router.inbox_queue WHERE consumer = 'c'").await;
    // later ones and duplicates
    for (id, key) in [("a3", "a"), ("a4", "a"), ("b2", "b")] {
        topic.send(id, key, "ok").await;
    }
    topic.until_effects(3).await;
    assert_eq!(queue(&session).await, "a2,a3,a4");
    assert_eq!(topic.effects().await, ["a1", "b1", "b2"]);
    // an attempt fails again, and puts the event off
    session.pass_time().await;
    session
        .until("SELECT bool_and(due_at > now()) FROM outbox_router.inbox_queue WHERE event_id = 'a2'")
        .await;
    let error = "SELECT error FROM outbox_router.inbox_queue WHERE event_id = 'a2'";
    assert_eq!(session.ok(error).await, "there is no cure");
    running.stop().await;

    session.ok("CREATE TABLE cure ()").await;
    session.pass_time().await;
    let running = Running::start(parking());
    topic.until_effects(6).await;
    topic.send("a5", "a", "ok").await;
    topic.until_effects(7).await;
    running.stop().await;
    assert_eq!(topic.effects().await, ["a1", "b1", "b2", "a2", "a3", "a4", "a5"]);
    assert_eq!(queue(&session).await, "");
}

/// Its session ends at each attempt, and none of them counts. Then it must not be the first one for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_session_always_ends_is_put_off() {
    let topic = Topic::new(1).await;
    let session = topic.session().await;
    for (id, key, value) in [("a1", "a", "kill"), ("b1", "b", "divide"), ("c1", "c", "ok")] {
        topic.send(id, key, value).await;
    }
    let running = Running::start(topic.consumer().attempts(1).park());
    topic.until_effects(1).await;
    let put_off = |event: &str, error: &str| {
        format!(
            "SELECT attempts = 1 AND due_at > now() AND error LIKE '%{error}%' FROM outbox_router.inbox_queue \
             WHERE event_id = '{event}'"
        )
    };
    session.until(&put_off("b1", "ERROR: division by zero")).await;
    session.until(&put_off("a1", "terminating connection")).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_event_whose_handler_commits_stops_the_loop() {
    let topic = Topic::new(1).await;
    topic.send("a1", "a", "fail-then-commit").await;
    let session = topic.session().await;
    let running = Running::start(topic.consumer().attempts(1).park());
    session.until("SELECT count(*) = 1 FROM outbox_router.inbox_queue").await;
    session.ok("CREATE TABLE cure ()").await;
    session.pass_time().await;
    let error = running.error().await;
    assert!(error.starts_with("the handler of the parked event a1 at offset 0 of "), "{error}");
    assert_eq!(topic.effects().await, ["a1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_queue_refuses_is_named() {
    let topic = Topic::new(1).await;
    for (id, key, value) in [("a1", "a", "ok"), ("a2", &"k".repeat(1001), "fail"), ("a3", "a", "ok")] {
        topic.send(id, key, value).await;
    }
    let error = Running::start(topic.consumer().attempts(1).park()).error().await;
    assert!(error.starts_with("the inbox refused event a2 at offset 1 of "), "{error}");
    assert!(error.contains("skip it: ") && !error.contains("init --consumer"), "{error}");
}

/// As some programs write a GUID.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_in_braces_can_be_parked_and_processed() {
    let topic = Topic::new(1).await;
    topic.send("{3F25-04}", "a", "fail").await;
    let session = topic.session().await;
    let running = Running::start(topic.consumer().attempts(1).park());
    session.until("SELECT count(*) = 1 FROM outbox_router.inbox_queue").await;
    session.ok("CREATE TABLE cure ()").await;
    session.pass_time().await;
    topic.until_effects(1).await;
    session.until("SELECT count(*) = 0 FROM outbox_router.inbox_queue").await;
    running.stop().await;
}

/// An event without a key has no order, so nothing waits behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_event_of_no_aggregate_holds_back_nothing() {
    let topic = Topic::new(1).await;
    let session = topic.session().await;
    for (id, value) in [("e1", "fail"), ("e2", "ok"), ("e3", "fail"), ("e4", "ok")] {
        topic.send(id, "", value).await;
    }
    let running = Running::start(topic.consumer().attempts(1).park());
    topic.until_effects(2).await;
    session.until("SELECT count(*) = 2 FROM outbox_router.inbox_queue WHERE consumer = 'c'").await;
    running.stop().await;
    assert_eq!(topic.effects().await, ["e2", "e4"]);
    assert_eq!(queue(&session).await, "e1,e3");
}

/// The former owner of a partition has parked an event, and its transaction is not yet committed when the next owner looks.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_parked_by_a_transaction_that_has_not_ended_holds_back_its_aggregate() {
    let topic = Topic::new(1).await;
    let (former, session) = (topic.session().await, topic.session().await);
    former.ok("BEGIN; SELECT outbox_router.inbox_put('c', 'a1', '{}', 'a')").await;
    topic.send("a1", "a", "ok").await;
    topic.send("a2", "a", "ok").await;
    topic.send("b1", "b", "ok").await;
    let running = Running::start(topic.consumer().park());
    session
        .until(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'member' \
             AND datname = current_database() AND wait_event_type = 'Lock'",
        )
        .await;
    former.ok("COMMIT").await;
    topic.until_effects(1).await;
    running.stop().await;
    assert_eq!(topic.effects().await, ["b1"]);
    assert_eq!(queue(&session).await, "a1,a2");
}
