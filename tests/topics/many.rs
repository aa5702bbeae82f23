//! Many topics that the brokers do not have yet are in one backlog.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::support::comparison::{Repeats, same};
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::Router;
use crate::support::settings::{MODES, Settings};

/// Inserts the events with these numbers for each of `topics` aggregates with topics of their own. Each topic has an event before any
/// has another.
async fn insert(outbox: &Outbox, topics: usize, numbers: Range<usize>) {
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT 'order' || t, 'a' || t, jsonb_build_object('n', n) \
             FROM generate_series({}, {}) n, generate_series(1, {topics}) t ORDER BY n, t",
            numbers.start,
            numbers.end - 1
        ))
        .await;
}

fn names(outbox: &Outbox, topics: usize) -> Vec<String> {
    (1..=topics).map(|number| outbox.topic(&format!("order{number}"))).collect()
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn topics_of_a_backlog_are_created_together() {
    const TOPICS: usize = 200;
    for mode in MODES {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        // a change to bulk reads in the middle would end the session, and the count with it
        let settings = Settings::new(&outbox, &kafka)
            .set("topics.partitions", 1)
            .set("delivery.mode", mode)
            .set("postgres.catch_up", "stream");
        insert(&outbox, TOPICS, 1..4).await;
        let router = Router::active(&settings).await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        same(&outbox, &kafka.committed_when(&outbox.name, 3 * TOPICS).await, Repeats::Never).await;
        // each line is a request
        let together = log.lines().filter(|line| line.contains("creating topics: ")).count();
        assert!(log.contains(&format!("creating topics: {TOPICS} of {TOPICS}")), "{mode}: {log}");
        assert!(together < TOPICS / 10, "{mode}: {together} requests: {log}");
        // topics that exist are no news
        insert(&outbox, TOPICS, 4..5).await;
        let router = Router::active(&settings).await;
        outbox.all_confirmed().await;
        let log = router.stop().await.log;
        assert!(!log.contains("creating topics"), "{mode}: {log}");
        same(&outbox, &kafka.committed_when(&outbox.name, 4 * TOPICS).await, Repeats::Never).await;
        kafka.delete_topics(&names(&outbox, TOPICS)).await;
    }
}

/// The aggregates whose topics Kafka refuses, because each differs from another only in `.` and `_`.
const REFUSED: [usize; 3] = [40, 41, 70];

/// How many topics there are with them.
const TOPICS: usize = 90;

/// An outbox with a backlog of three events for each aggregate.
async fn with_refused_topics() -> (Outbox, Kafka, Settings) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    for number in REFUSED {
        kafka.create_topic(&outbox.topic(&format!("refused_{number}")), 1, &[]).await;
    }
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) \
             SELECT CASE WHEN t IN (40, 41, 70) THEN 'refused.' ELSE 'order' END || t, 'a' || t, jsonb_build_object('n', n) \
             FROM generate_series(1, 3) n, generate_series(1, {TOPICS}) t ORDER BY n, t"
        ))
        .await;
    let settings = Settings::new(&outbox, &kafka).set("topics.partitions", 1);
    (outbox, kafka, settings)
}

#[tokio::test]
async fn topics_that_are_refused_park_only_their_own_events() {
    for mode in MODES {
        let (outbox, kafka, settings) = with_refused_topics().await;
        outbox.create_dead_letters_table().await;
        let settings = settings.set("dead_letters.policy", "park").set("delivery.mode", mode);
        let router = Router::active(&settings).await;
        outbox.all_confirmed().await;
        router.stop().await;
        let parked = "SELECT aggregate_id, reason FROM outbox_router.dead_letters ORDER BY final_lsn, change";
        let parked: Vec<(String, String)> =
            outbox.query(parked).await.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected: Vec<_> = ["topic", "behind", "behind"]
            .iter()
            .flat_map(|reason| REFUSED.map(|number| (format!("a{number}"), (*reason).to_owned())))
            .collect();
        assert_eq!(parked, expected, "{mode}");
        outbox.execute("DELETE FROM outbox WHERE aggregate_type LIKE 'refused.%'").await;
        let sent = 3 * (TOPICS - REFUSED.len());
        same(&outbox, &kafka.committed_when(&outbox.name, sent).await, Repeats::Never).await;
    }
}

#[tokio::test]
async fn topics_that_are_refused_stop_the_router_before_the_first_of_their_events() {
    for mode in MODES {
        let (outbox, kafka, settings) = with_refused_topics().await;
        let router = Router::start(&settings.set("delivery.mode", mode));
        router.exits(3).await.says(&[&outbox.topic("refused.40"), "`.` and `_`"]);
        let before = REFUSED[0] - 1;
        let records = kafka.committed_when(&outbox.name, before).await;
        let keys: BTreeSet<_> = records.iter().filter_map(|record| record.key().map(str::to_owned)).collect();
        let expected: BTreeSet<_> = (1..=before).map(|number| format!("a{number}")).collect();
        assert_eq!((records.len(), keys), (before, expected), "{mode}");
    }
}
