//! Partitions do not wait for each other.

use crate::topic::{Running, Topic, consumer};

/// More events of a partition wait than a batch takes, so it is paused.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_handler_fails_holds_up_no_other() {
    let topic = Topic::new(2).await;
    topic.send_to(0, "s0", "fail").await;
    for n in 1..30 {
        topic.send_to(0, &format!("s{n}"), "ok").await;
    }
    let running = Running::start(topic.consumer().max_events(3).attempts(u32::MAX));
    for n in 0..30 {
        topic.send_to(1, &format!("f{n}"), "ok").await;
    }
    topic.until_effects(30).await;
    topic.until_committed(1, 30).await;
    assert!(topic.effects().await.iter().all(|event| event.starts_with('f')));
    topic.session().await.ok("CREATE TABLE cure ()").await;
    topic.until_effects(60).await;
    topic.until_committed(0, 30).await;
    running.stop().await;
    let slow = topic
        .session()
        .await
        .ok("SELECT string_agg(event_id, ' ' ORDER BY n) FROM effects WHERE aggregate = '0'")
        .await;
    assert_eq!(slow, (0..30).map(|n| format!("s{n}")).collect::<Vec<_>>().join(" "));
}

/// A member that joins takes a partition over while it is paused, and gives it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_partition_that_comes_back_is_resumed() {
    let topic = Topic::new(2).await;
    for partition in 0..2 {
        for n in 0..10 {
            let value = if n == 0 { "fail" } else { "ok" };
            topic.send_to(partition, &format!("{partition}-{n}"), value).await;
        }
    }
    let session = topic.session().await;
    // a rollback does not undo what a sequence has counted
    let count_tries = "CREATE SEQUENCE first; CREATE SEQUENCE second; \
         CREATE FUNCTION tried() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM nextval(current_setting('application_name')); RETURN NEW; END $$; \
         CREATE TRIGGER tried BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION tried()";
    session.ok(count_tries).await;
    let slow = |member: &str| {
        let url = format!("{}?application_name={member}", topic.database.url());
        consumer(&topic.name, &topic.brokers, &url).max_events(2).attempts(u32::MAX)
    };
    let first = Running::start(slow("first"));
    session.until("SELECT is_called FROM first").await;
    let second = Running::start(slow("second"));
    session.until("SELECT is_called FROM second").await;
    second.stop().await;
    session.ok("CREATE TABLE cure ()").await;
    topic.until_effects(20).await;
    first.stop().await;
    for partition in 0..2 {
        let order = format!(
            "SELECT string_agg(event_id, ' ' ORDER BY n) FROM effects WHERE aggregate = '{partition}'"
        );
        let expected: Vec<String> = (0..10).map(|n| format!("{partition}-{n}")).collect();
        assert_eq!(session.ok(&order).await, expected.join(" "));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_postgres_refuses_stops_the_loop() {
    let topic = Topic::new(1).await;
    topic.send("e", "a", "ok").await;
    let url = topic.database.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    let no_user = url.replace("postgres@", "nobody@");
    for (url, cause) in [(format!("{server}/nowhere"), "nowhere"), (no_user, "nobody")] {
        let error = Running::start(consumer(&topic.name, &topic.brokers, &url)).error().await;
        assert!(error.starts_with("Postgres refuses the session: ") && error.contains(cause), "{error}");
    }
}
