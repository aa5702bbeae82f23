//! What the loop does with the results of handlers and with records that are not events.

use std::time::Duration;

use rdkafka::producer::{FutureRecord, Producer};

use crate::topic::{Running, Topic, consumer_with};

/// Sends `a1` to `a3` and `b1`, all in one partition, with this value in `a2`.
async fn send(topic: &Topic, value: &str) {
    for (id, key) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")] {
        topic.send(id, key, if id == "a2" { value } else { "ok" }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_has_one_effect_in_its_order() {
    let topic = Topic::new(1).await;
    send(&topic, "ok").await;
    let running = Running::start(topic.consumer());
    topic.until_effects(4).await;
    topic.send("a1", "a", "ok").await;
    topic.send("a4", "a", "ok").await;
    topic.until_effects(5).await;
    running.stop().await;
    // the next member begins after the committed offset, so what was forgotten does not come again
    topic.session().await.ok("SELECT outbox_router.inbox_decide('c', 'a4', 'clear', 'test')").await;
    topic.send("b2", "b", "ok").await;
    let running = Running::start(topic.consumer().max_events(1).parallel(1));
    topic.until_effects(6).await;
    running.stop().await;
    assert_eq!(topic.effects().await, ["a1", "a2", "b1", "a3", "a4", "b2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_keeps_failing_stops_the_loop_until_it_is_corrected() {
    let topic = Topic::new(1).await;
    send(&topic, "fail").await;
    let error = Running::start(topic.consumer().attempts(2)).error().await;
    assert!(error.starts_with("the handler failed 2 times for event a2 at offset 1 of "), "{error}");
    assert!(error.ends_with(": there is no cure"), "{error}");
    topic.session().await.ok("CREATE TABLE cure ()").await;
    let running = Running::start(topic.consumer());
    topic.until_effects(4).await;
    running.stop().await;
    assert_eq!(topic.effects().await, ["a1", "a2", "b1", "a3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_swallows_an_error_is_found_and_nothing_is_committed() {
    let topic = Topic::new(1).await;
    send(&topic, "swallow").await;
    let error = Running::start(topic.consumer()).error().await;
    assert!(error.starts_with("a statement failed in the handler of event a2 at offset 1 of "), "{error}");
    assert!(topic.effects().await.is_empty());
}

/// They are not errors of the connection, which would be repeated for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_query_never_succeeds_stops_the_loop() {
    for (value, cause) in [("no-row", "number of rows"), ("slow", "statement timeout")] {
        let topic = Topic::new(1).await;
        send(&topic, value).await;
        let error = Running::start(topic.consumer().attempts(2)).error().await;
        assert!(error.starts_with("the handler failed 2 times for event a2 at offset 1 of "), "{error}");
        assert!(error.contains(cause), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_ends_the_transaction_is_found() {
    let topic = Topic::new(1).await;
    send(&topic, "end").await;
    let error = Running::start(topic.consumer()).error().await;
    assert!(error.starts_with("the handler of event a2 at offset 1 of "), "{error}");
    assert!(error.contains("has rolled the transaction back"), "{error}");
    let claimed = "SELECT count(*) FROM outbox_router.inbox";
    assert_eq!(topic.session().await.ok(claimed).await, "0");
}

/// The claims of the later events are committed with it, so a repetition would skip them.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_commits_is_found() {
    for later in ["ok", "divide", "kill"] {
        let topic = Topic::new(1).await;
        for (id, value) in [("a1", "ok"), ("a2", "commit"), ("a3", later)] {
            topic.send(id, "a", value).await;
        }
        let error = Running::start(topic.consumer()).error().await;
        assert!(error.starts_with("a handler has committed the transaction of "), "{later}: {error}");
        // unless it was in the next batch
        let lost =
            topic.session().await.ok("SELECT count(*) FROM outbox_router.inbox WHERE event_id = 'a3'").await;
        assert_eq!(error.ends_with(": a3"), lost == "1" && later != "ok", "{later}: {error}");
    }
}

/// The session of each attempt ends, as by `idle_in_transaction_session_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_always_loses_its_session_stops_the_loop() {
    let topic = Topic::new(1).await;
    send(&topic, "kill").await;
    let error = Running::start(topic.consumer().attempts(1)).error().await;
    assert!(error.starts_with("the handler failed 4 times for event a2 at offset 1 of "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_that_is_missing_stops_the_loop_if_it_is_configured_so() {
    let topic = Topic::new(1).await;
    let properties = [("auto.offset.reset", "error")];
    let consumer = consumer_with(&topic.name, &topic.brokers, &topic.database.url(), &properties);
    let error = Running::start(consumer).error().await;
    assert!(error.starts_with("Kafka refuses the consumer"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_stops_the_loop() {
    let topic = Topic::new(1).await;
    send(&topic, "panic").await;
    let error = Running::start(topic.consumer()).error().await;
    assert!(error.starts_with("the handler panicked"), "{error}");
    assert!(topic.effects().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_refused_stops_the_loop_and_names_the_constraint() {
    let topic = Topic::new(1).await;
    topic
        .session()
        .await
        .ok("ALTER TABLE effects ADD CONSTRAINT one_value UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
        .await;
    send(&topic, "ok").await;
    let error = Running::start(topic.consumer().attempts(2)).error().await;
    assert!(error.contains("was refused at its commit") && error.contains("one_value"), "{error}");
    assert!(topic.effects().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_an_id_stops_the_loop_after_what_came_before_it() {
    let topic = Topic::new(1).await;
    topic.send("e1", "a", "ok").await;
    topic
        .producer
        .send(FutureRecord::to(&topic.name).key("a").payload("ok"), Duration::from_secs(60))
        .await
        .unwrap();
    let error = Running::start(topic.consumer()).error().await;
    let expected = format!("the record at offset 1 of {}-0 has no header `id` with an id: ", topic.name);
    assert!(error.starts_with(&expected), "{error}");
    assert_eq!(topic.effects().await, ["e1"]);
    let error = Running::start(topic.consumer().id_header("ce_id")).error().await;
    assert!(error.contains("has no header `ce_id`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_the_functions_stops_the_loop_and_says_what_to_run() {
    let topic = Topic::new(1).await;
    topic.session().await.ok("DROP FUNCTION outbox_router.inbox_claim(text, text[])").await;
    send(&topic, "ok").await;
    let error = Running::start(topic.consumer()).error().await;
    assert!(error.starts_with("the inbox refused offsets 0 to "), "{error}");
    assert!(error.contains("run outbox-router init --consumer"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_the_event_that_is_refused_is_named() {
    let topic = Topic::new(1).await;
    for id in ["a1", &"i".repeat(1001), "a3"] {
        topic.send(id, "a", "ok").await;
    }
    let error = Running::start(topic.consumer()).error().await;
    assert!(error.contains(" at offset 1 of ") && error.contains("has 1001 characters"), "{error}");
}

/// As after a failover in which the former primary was demoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_read_only_is_waited_for() {
    let topic = Topic::new(1).await;
    let (session, name) = (topic.session().await, topic.name.clone());
    session.ok(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    send(&topic, "ok").await;
    let running = Running::start(topic.consumer());
    let refused = "SELECT xact_rollback > 1 FROM pg_stat_database WHERE datname = current_database()";
    session.until(refused).await;
    session.ok(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).await;
    session.ok("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'member' AND datname = current_database()").await;
    topic.until_effects(4).await;
    running.stop().await;
}

/// Offsets are committed past what was aborted.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_aborted_transactions_are_not_seen() {
    let topic = Topic::new(1).await;
    let transactional = topic.transactional();
    let timeout = Duration::from_secs(60);
    for (id, commits) in [("e1", true), ("e2", false), ("e3", true), ("e4", false)] {
        let producer = transactional.clone();
        tokio::task::spawn_blocking(move || producer.begin_transaction()).await.unwrap().unwrap();
        topic.send_with(&transactional, id, "a", "ok").await;
        let producer = transactional.clone();
        let ended = move || {
            if commits { producer.commit_transaction(timeout) } else { producer.abort_transaction(timeout) }
        };
        tokio::task::spawn_blocking(ended).await.unwrap().unwrap();
    }
    let running = Running::start(topic.consumer());
    topic.until_effects(2).await;
    topic.send("e5", "a", "ok").await;
    topic.until_effects(3).await;
    running.stop().await;
    assert_eq!(topic.effects().await, ["e1", "e3", "e5"]);
}
