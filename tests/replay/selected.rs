//! Which rows are sent again, and as which records.

use super::*;

#[tokio::test]
async fn rows_that_match_every_filter_are_sent_again_in_order_beside_the_router() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..40).await;
    outbox.insert_numbers("order", "b", 1..5).await;
    outbox.insert_numbers("invoice", "a", 40..45).await;
    outbox.execute("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'gone', '{\"n\": 45}')").await;
    outbox.all_confirmed().await;
    outbox.all_behind_slot().await;
    // a transaction that is still open has rows that are not delivered
    let mut client = outbox.client().await;
    let open = client.transaction().await.unwrap();
    open.batch_execute(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 46}')",
    )
    .await
    .unwrap();
    let ran = replay(
        &settings,
        &[
            "--since",
            "1h",
            "--aggregate",
            "a,x",
            "--aggregate-type",
            "order",
            "--type",
            "happened",
            "--yes",
            "--json",
        ],
    )
    .await;
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let report = json(&ran);
    assert_eq!((&report["rows"], &report["complete"]), (&39.into(), &true.into()));
    open.commit().await.unwrap();
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(again(&records), numbers("a", 1..40));
    let mark = report["replay_header"].as_str().unwrap();
    for record in records.iter().filter(|record| record.header(REPLAY).is_some()) {
        assert_eq!(record.header(REPLAY), Some(mark));
        assert_eq!(record.topic, outbox.topic("order"));
        let first = records.iter().find(|first| first.header(REPLAY).is_none() && first.id() == record.id());
        assert_eq!(first.map(|first| (&first.value, &first.key)), Some((&record.value, &record.key)));
    }
    // the last row was delivered once, by the router
    assert_eq!(records.iter().filter(|record| record.number() == 46).count(), 1);
    let listed = json(&replay(&settings, &["--list", "--json"]).await);
    assert_eq!(
        (&listed[0]["rows_done"], &listed[0]["rows"], &listed[0]["types"][0]),
        (&39.into(), &39.into(), &"happened".into())
    );
}

#[tokio::test]
async fn a_dry_run_counts_and_sends_nothing() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    let ran = replay(&settings, &["--dry-run", "--json"]).await;
    let shown = json(&ran);
    assert_eq!(shown["events"], 22, "{shown}");
    assert_eq!(shown["topics"][outbox.topic("order")], 18);
    assert_eq!(shown["topics"][outbox.topic("invoice")], 4);
    let ran = replay(&settings, &["--dry-run", "--aggregate-type", "invoice"]).await;
    succeeded(ran, &["4 events of public.outbox", "The oldest is", "The records carry outbox-router-replay"]);
    let none = replay(&settings, &["--dry-run", "--type", "unheard of"]).await;
    succeeded(none, &["No event matches in public.outbox"]);
    assert_eq!(again(&kafka.records(&outbox.name).await), []);
    succeeded(replay(&settings, &["--list"]).await, &["Nothing was replayed"]);
}

#[tokio::test]
async fn times_select_rows() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    let time = outbox
        .text("SELECT (created_at AT TIME ZONE 'UTC')::text FROM outbox WHERE aggregate_id = 'b' AND payload ->> 'n' = '4'")
        .await;
    let zoned = format!("{}+00", time.replace(' ', "T"));
    for (arguments, events) in [
        (vec!["--since", &time], 6),
        (vec!["--until", &time], 16),
        (vec!["--until", &zoned], 16),
        (vec!["--since", "1d", "--until", "0"], 22),
        (vec!["--since", "yesterday", "--until", "2h"], 0),
    ] {
        let shown = json(&replay(&settings, &[&arguments[..], &["--dry-run", "--json"]].concat()).await);
        assert_eq!(shown["events"], events, "{arguments:?}");
    }
    let id = outbox.text("SELECT id::text FROM outbox WHERE aggregate_id = 'c' LIMIT 1").await;
    let shown = json(&replay(&settings, &["--id", &id.to_uppercase(), "--dry-run", "--json"]).await);
    assert_eq!(shown["events"], 1);
}

#[tokio::test]
async fn rows_that_are_not_published_are_left_to_the_router_that_polls() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    outbox.insert_numbers("order", "a", 10..20).await;
    // somebody has decided that it is not sent
    outbox.execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload, status, last_error) VALUES ('order', 'a', '{\"n\": 99}', 'PUBLISHED', 'discarded')").await;
    let ran = replay(&settings, &["--aggregate", "a", "--yes"]).await;
    succeeded(
        ran,
        &["11 rows may not have been delivered yet, and will be left to the router", "9 rows done"],
    );
    assert_eq!(again(&kafka.records(&outbox.name).await), numbers("a", 1..10));
    let router = Router::active(&settings).await;
    outbox.all_published().await;
    router.stop().await;
    assert_eq!(kafka.records(&outbox.name).await.len(), 22 + 9 + 10);
}

#[tokio::test]
async fn another_topic_takes_all_and_values_of_the_log_are_left_out() {
    let kafka = Kafka::shared();
    let (outbox, settings) = logged(&kafka).await;
    let settings =
        settings.set("route.headers.lsn", "${source.lsn}").set("route.headers.table", "${source.table}");
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..5).await;
    outbox.insert_numbers("invoice", "b", 1..5).await;
    outbox.all_confirmed().await;
    outbox.all_behind_slot().await;
    router.stop().await;
    let repair = outbox.topic("repair");
    let ran = replay(&settings, &["--topic", &repair, "--yes"]).await;
    succeeded(ran, &["Left out, because only the log has the values: lsn", "8 rows done"]);
    let records = kafka.records(&outbox.name).await;
    let repaired: Vec<_> = records.iter().filter(|record| record.topic == repair).collect();
    assert_eq!(repaired.len(), 8);
    for record in repaired {
        assert_eq!((record.header("lsn"), record.header("table")), (None, Some("outbox")));
    }
    assert_eq!(records.iter().filter(|record| record.header("lsn").is_some()).count(), 8);
}

/// What is confirmed is what is sent, even if the router delivers more meanwhile.
#[tokio::test]
async fn rows_that_are_published_after_the_count_are_not_sent() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    let shown = settings
        .run_on_terminal(&["replay", "--aggregate", "a"], "9", async || {
            outbox.insert_numbers("order", "a", 10..20).await;
            Router::with_arguments(&settings, &["--until-caught-up"]).exits(0).await;
        })
        .await;
    assert!(
        shown.contains("Type the number of events, 9, to go on") && shown.contains("9 rows done"),
        "{shown}"
    );
    assert_eq!(again(&kafka.records(&outbox.name).await), numbers("a", 1..10));
}

/// Many rows of one moment do not end up between two pages.
#[tokio::test]
async fn rows_of_one_moment_are_sent_in_the_order_of_their_positions() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox.execute("ALTER TABLE outbox ALTER created_at SET DEFAULT now()").await;
    let rows = "INSERT INTO outbox (aggregate_type, aggregate_id, payload, status) \
                SELECT 'order', 'a' || n % 2, jsonb_build_object('n', n / 2 + 1), 'PUBLISHED' FROM generate_series(0, 6999) n";
    outbox.execute(rows).await;
    outbox.execute(&rows.replace("n / 2 + 1", "n / 2 + 3501")).await;
    let ran = replay(&settings, &["--yes"]).await;
    succeeded(ran, &["14000 events of public.outbox", "14000 rows done"]);
    let records = kafka.records(&outbox.name).await;
    assert_eq!(again(&records), [numbers("a0", 1..7001), numbers("a1", 1..7001)].concat());
}

/// The common case of a table that an application had before: the time is that of the transaction. Here even the ids are the same.
#[tokio::test]
async fn rows_of_one_transaction_are_sent_in_the_order_of_their_inserts() {
    let kafka = Kafka::shared();
    let outbox = Outbox::bare(shared::postgres()).await;
    outbox
        .execute(
            "CREATE TABLE outbox (id uuid NOT NULL DEFAULT '7f0c1cde-6f0e-4f8e-9f0a-0d2b1a2c3d4e', aggregate_type text NOT NULL DEFAULT 'order', \
             aggregate_id text NOT NULL DEFAULT 'a', event_type text NOT NULL DEFAULT 'happened', payload jsonb, \
             headers jsonb NOT NULL DEFAULT '{}', created_at timestamp NOT NULL DEFAULT now()); \
             ALTER DATABASE CURRENT_DATABASE SET timezone = 'Asia/Tokyo'"
                .replace("CURRENT_DATABASE", &outbox.name)
                .as_str(),
        )
        .await;
    let settings = Settings::new(&outbox, &kafka);
    succeeded(settings.run_async(&["init"]).await, &["table \"public\".\"outbox\": exists already"]);
    let router = Router::active(&settings).await;
    let one = |n: u32| format!("INSERT INTO outbox (payload) VALUES ('{{\"n\": {n}}}');");
    let each: String = (1..300).map(one).collect();
    let together =
        "INSERT INTO outbox (payload) SELECT jsonb_build_object('n', n) FROM generate_series(300, 4999) n;";
    outbox.execute(&format!("BEGIN; {each} {together} {} COMMIT", one(5_000))).await;
    outbox.all_confirmed().await;
    outbox.all_behind_slot().await;
    router.stop().await;
    let ran = replay(&settings, &["--yes"]).await;
    succeeded(ran, &["The time of a row is not a timestamptz filled by clock_timestamp()", "5000 rows done"]);
    assert_eq!(again(&kafka.records(&outbox.name).await), numbers("a", 1..5001));
}

/// A page has a limit in bytes, at which it is cut.
#[tokio::test]
async fn rows_that_are_too_large_for_one_page_are_all_sent() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, status) SELECT 'order', 'a', jsonb_build_object('n', n, 'text', \
             (SELECT string_agg(md5(n::text || m), '') FROM generate_series(1, 20000) m)), 'PUBLISHED' FROM generate_series(1, 12) n",
        )
        .await;
    succeeded(replay(&settings, &["--yes"]).await, &["12 events of public.outbox, 7.3 MiB", "12 rows done"]);
    assert_eq!(again(&kafka.records(&outbox.name).await), numbers("a", 1..13));
}

/// The broker refuses a batch because of one record, which nobody can tell before.
#[tokio::test]
async fn an_event_that_the_broker_refuses_is_found_and_left_out() {
    let kafka = Kafka::shared();
    let (outbox, settings) = polled(&kafka).await;
    let settings = settings.set("kafka.'compression.type'", "lz4");
    kafka.create_topic(&outbox.topic("order"), 2, &[("max.message.bytes", "5000")]).await;
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, status) SELECT 'order', 'a', jsonb_build_object('n', n, 'text', \
             (SELECT string_agg(md5(n::text || m), '') FROM generate_series(1, CASE n WHEN 57 THEN 400 ELSE 1 END) m)), 'PUBLISHED' \
             FROM generate_series(1, 100) n",
        )
        .await;
    let ran = replay(&settings, &["--yes"]).await;
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let refused = outbox.text("SELECT id::text FROM outbox WHERE payload ->> 'n' = '57'").await;
    assert!(
        ran.out.contains("1 event could not be sent; the first is") && ran.out.contains(&refused),
        "{}",
        ran.out
    );
    let mut again = again(&kafka.records(&outbox.name).await);
    again.dedup();
    assert_eq!(again, [numbers("a", 1..57), numbers("a", 58..101)].concat());
}

#[tokio::test]
async fn events_that_cannot_be_sent_are_left_out_and_reported() {
    let kafka = Kafka::shared();
    let (outbox, settings) = published(&kafka).await;
    let settings = settings.set("topics.allow", vec![outbox.topic("order")]);
    let ran = replay(&settings, &["--yes"]).await;
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("4 events cannot be sent and will be left out"), "{}", ran.out);
    assert!(ran.out.contains("4 events could not be sent; the first is"), "{}", ran.out);
    assert_eq!(
        again(&kafka.records(&outbox.name).await),
        [numbers("a", 1..10), numbers("b", 1..10)].concat()
    );
}
