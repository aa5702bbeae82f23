//! Sources and destinations of events: several tables, partitioned tables, publications not made by `init`, rules.

use toml::Value;

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::{Outbox, TABLE};
use crate::support::router::Router;
use crate::support::settings::Settings;
use crate::support::shared;

/// A table of `[[route.rules]]`.
fn rule(text: &str) -> Value {
    Value::Table(text.parse().unwrap())
}

fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().map(Record::number).collect()
}

#[tokio::test]
async fn routing_reads_several_tables_in_commit_order() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    let orders = TABLE.replacen("outbox", "orders.outbox", 1);
    let billing = TABLE.replacen("outbox", "billing.\"Out Box\"", 1);
    outbox
        .execute(&format!(
            "CREATE SCHEMA orders; CREATE SCHEMA billing; {orders}; {billing}; \
             CREATE PUBLICATION outbox_router FOR TABLE orders.outbox, billing.\"Out Box\" WITH (publish = 'insert')"
        ))
        .await;
    outbox.create_slot("pgoutput").await;
    let tables: Vec<Value> = vec!["orders.outbox".into(), "billing.\"Out Box\"".into()];
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.table", tables)
        .set("route.topic", outbox.topic("all"))
        .set("route.headers.from", "${source.schema}.${source.table}");
    let insert = |table: &str, n: u32| {
        format!(
            "INSERT INTO {table} (aggregate_type, aggregate_id, payload) VALUES ('t', 'one', '{{\"n\": {n}}}');"
        )
    };
    // order within a transaction, and from one transaction to the next
    for n in (0..40).step_by(4) {
        let pair = [insert("orders.outbox", n), insert("billing.\"Out Box\"", n + 1)];
        outbox.execute(&pair.concat()).await;
        outbox.execute(&insert("billing.\"Out Box\"", n + 2)).await;
        outbox.execute(&insert("orders.outbox", n + 3)).await;
    }
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(numbers(&records), (0..40).collect::<Vec<u64>>());
    assert_eq!(records[0].header("from"), Some("orders.outbox"));
    assert_eq!(records[1].header("from"), Some("billing.Out Box"));

    // the catalogue watch covers each table
    outbox.execute("ALTER PUBLICATION outbox_router DROP TABLE billing.\"Out Box\"").await;
    router.exits(3).await.says(&["billing.Out Box"]);
}

#[tokio::test]
async fn routing_continues_while_partitions_are_attached_and_detached() {
    let kafka = Kafka::shared();
    let table = TABLE.replacen("PRIMARY KEY ", "", 1) + " PARTITION BY LIST (event_type)";
    let outbox = Outbox::with_table(shared::postgres(), &table).await;
    outbox.execute("CREATE TABLE rest PARTITION OF outbox DEFAULT").await;
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    let insert = |table: &str, kind: u32, n: u32| {
        format!(
            "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('t', 'one', 'kind{kind}', '{{\"n\": {n}}}');"
        )
    };
    for n in (0..60).step_by(3) {
        let part = format!("part{n}");
        let attach = format!(
            "CREATE TABLE {part} (LIKE outbox INCLUDING ALL); \
             ALTER TABLE outbox ATTACH PARTITION {part} FOR VALUES IN ('kind{n}')"
        );
        outbox.execute(&insert("outbox", 1_000, n)).await;
        outbox.execute(&attach).await;
        // through the root, and directly into the partition
        outbox.execute(&insert("outbox", n, n + 1)).await;
        outbox.execute(&insert(&part, n, n + 2)).await;
        outbox.execute(&format!("ALTER TABLE outbox DETACH PARTITION {part}")).await;
        // detached, so this row is not an event
        outbox.execute(&insert(&part, n, 9_999)).await;
        outbox.execute(&format!("DROP TABLE {part}")).await;
    }
    outbox.all_confirmed().await;
    router.stop().await;
    let mut sent = numbers(&kafka.records(&outbox.name).await);
    if outbox.server_version().await < 150_000 {
        // the walsender of 14 goes on sending a detached partition's rows as those of its former root
        sent.retain(|number| *number != 9_999);
    }
    assert_eq!(sent, (0..60).collect::<Vec<u64>>());
}

#[tokio::test]
async fn routing_requires_a_partitioned_table_to_be_published_via_its_root() {
    let kafka = Kafka::shared();
    let table = TABLE.replacen("PRIMARY KEY ", "", 1) + " PARTITION BY LIST (event_type)";
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox
        .execute(&format!(
            "{table}; CREATE TABLE rest PARTITION OF outbox DEFAULT; CREATE PUBLICATION outbox_router FOR ALL TABLES"
        ))
        .await;
    outbox.create_slot("pgoutput").await;
    let settings = Settings::new(&outbox, &kafka);
    let ended = Router::start(&settings).exits(1).await;
    ended.says(&["partitioned", "publication = \"outbox_router_own\""]);
    outbox.execute("ALTER PUBLICATION outbox_router SET (publish_via_partition_root = true)").await;
    outbox.insert_numbers("t", "a", 1..3).await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(numbers(&kafka.records(&outbox.name).await), [1, 2]);
}

#[tokio::test]
async fn routing_from_a_publication_of_all_tables_and_operations_sends_inserts_only() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    outbox
        .execute(&format!("{TABLE}; CREATE TABLE other (id int PRIMARY KEY); CREATE PUBLICATION outbox_router FOR ALL TABLES"))
        .await;
    outbox.create_slot("pgoutput").await;
    outbox.insert_numbers("t", "a", 1..3).await;
    outbox
        .execute(
            "INSERT INTO other VALUES (1), (2); UPDATE other SET id = 3 WHERE id = 1; \
             UPDATE outbox SET event_type = 'changed'; DELETE FROM outbox WHERE payload ->> 'n' = '1'",
        )
        .await;
    outbox.execute("TRUNCATE outbox, other").await;
    outbox.insert_numbers("t", "a", 3..4).await;
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router
        // two of the nine are the router's own row about the slot
        .shows("the other changes are counted", |status| {
            (status["totals"]["ignored_changes"] == 9).then_some(())
        })
        .await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("a row of the outbox was updated").count(), 1, "{log}");
    assert_eq!(numbers(&kafka.records(&outbox.name).await), [1, 2, 3]);

    outbox.execute("UPDATE outbox SET event_type = 'again'").await;
    outbox.insert_numbers("t", "a", 4..5).await;
    let strict = settings.clone().set("outbox.on_update", "stop");
    Router::start(&strict).exits(3).await.says(&["was updated", "on_update", "slot advance --to"]);
    assert_eq!(numbers(&kafka.records(&outbox.name).await), [1, 2, 3], "nothing after the update is sent");
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(numbers(&kafka.records(&outbox.name).await), [1, 2, 3, 4]);
}

#[tokio::test]
async fn routing_respects_row_filters_and_column_lists() {
    let (outbox, kafka) = (Outbox::bare(shared::postgres()).await, Kafka::shared());
    if outbox.server_version().await < 150_000 {
        return;
    }
    outbox
        .execute(&format!(
            "{TABLE}; CREATE PUBLICATION outbox_router FOR TABLE outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             WHERE (aggregate_type <> 'private') WITH (publish = 'insert')"
        ))
        .await;
    outbox.create_slot("pgoutput").await;
    let router = Router::active(&Settings::new(&outbox, &kafka)).await;
    outbox.insert_numbers("t", "a", 1..2).await;
    outbox.insert_numbers("private", "a", 2..3).await;
    outbox.insert_numbers("t", "a", 3..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(numbers(&kafka.records(&outbox.name).await), [1, 3]);
}

#[tokio::test]
async fn routing_by_rules_drops_and_counts_and_confirms() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = |name: &str| outbox.topic(name);
    let rules = vec![
        rule(&format!(
            "match = {{ aggregate_type = \"/(order)s?/\" }}\ntopic = \"{}\"",
            topic("to-${match.1}")
        )),
        rule("match = { \"headers.test\" = \"true\" }\ndrop = true"),
        rule(&format!(
            "match = {{ aggregate_type = \"/big.*/\" }}\npartition = \"2\"\ntopic = \"{}\"",
            topic("big")
        )),
    ];
    kafka.create_topic(&topic("big"), 3, &[]).await;
    let settings = Settings::new(&outbox, &kafka).set("route.rules", rules);
    let mut router = Router::active(&settings).await;
    for aggregate_type in ["order", "orders", "big-one", "other"] {
        outbox.insert(aggregate_type, "a", "{}").await;
    }
    for _ in 0..5 {
        outbox
            .execute("INSERT INTO outbox (aggregate_type, aggregate_id, headers) VALUES ('x', 'a', '{\"test\": true}')")
            .await;
    }
    // the events after the last record are all dropped
    outbox.all_confirmed().await;
    router
        .shows("the dropped events are counted", |status| {
            (status["totals"]["events_dropped"] == 5).then_some(())
        })
        .await;
    assert!(router.get_now("/metrics").await.1.contains("\noutbox_router_events_dropped_total 5\n"));
    let records = kafka.records(&outbox.name).await;
    let topics: Vec<&str> = records.iter().map(|record| record.topic.as_str()).collect();
    assert_eq!(topics, ["big", "other", "to-order", "to-order"].map(topic));
    assert_eq!(records[0].partition, 2);

    outbox.insert("bigger", "a", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;

    // the router finds an added partition when the first event is routed to it
    let rules = vec![rule("match = { aggregate_type = \"/b.*/\" }\npartition = \"${event_type}\"")];
    let by_type = settings.clone().set("route.rules", rules).set("route.topic", topic("grows"));
    kafka.create_topic(&topic("grows"), 1, &[]).await;
    let insert = |partition: u32| {
        format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('big', 'a', '{partition}')"
        )
    };
    let router = Router::active(&by_type).await;
    outbox.execute(&insert(0)).await;
    outbox.all_confirmed().await;
    kafka.add_partitions(&topic("grows"), 4).await;
    outbox.execute(&insert(3)).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(
        kafka.records(&topic("grows")).await.iter().map(|record| record.partition).collect::<Vec<_>>(),
        [0, 3]
    );

    let rules = vec![rule("match = { aggregate_type = \"big\" }\npartition = \"3\"")];
    let settings = settings.set("route.rules", rules).set("route.topic", topic("big"));
    outbox.insert("big", "a", "{}").await;
    Router::start(&settings).exits(3).await.says(&[
        "partition 3",
        &topic("big"),
        "had 3",
        "outbox-router slot advance --to ",
    ]);
}

#[tokio::test]
async fn routing_stops_before_a_topic_that_is_not_allowed() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let allowed: Vec<Value> = vec![outbox.topic("or*").into()];
    let settings = Settings::new(&outbox, &kafka).set("topics.allow", allowed);
    let router = Router::active(&settings).await;
    outbox.insert("order", "a", "{}").await;
    outbox.insert("payment", "a", "{}").await;
    router.exits(3).await.says(&[&outbox.topic("payment"), "`[topics] allow`", "Nothing was skipped"]);
    assert_eq!(kafka.records(&outbox.name).await.len(), 1);
    assert_eq!(kafka.partitions(&outbox.topic("payment")).await, 0);
}
