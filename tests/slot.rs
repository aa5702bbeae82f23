//! Commands that move the position: bookmarks, resets, and advances past events.

use crate::situations::page::keep;
use crate::support::comparison::{REPLAY, Repeats, numbers_and_marks, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION};
use crate::support::place::{refused, succeeded};
use crate::support::postgres::PrivatePostgres;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

/// The number of records with the replay header.
async fn marked(kafka: &Kafka, outbox: &Outbox) -> usize {
    let records = kafka.records(&outbox.name).await;
    records.iter().filter(|record| record.header(REPLAY).is_some()).count()
}

#[tokio::test]
async fn slot_reset_replays_and_marks_the_events_after_a_bookmark() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..6).await;
    outbox.all_confirmed().await;
    succeeded(
        settings.run(&["slot", "bookmark", "before"]),
        &["bookmark before created at", "slot drop before"],
    );
    refused(&settings.run(&["slot", "bookmark", "before"]), 1, &["already"]);
    outbox.insert_numbers("order", "a", 6..16).await;
    outbox.all_confirmed().await;
    router.stop().await;

    succeeded(settings.run(&["slot", "list"]), &["before", "reserved"]);
    let shown = succeeded(
        settings.run(&["slot", "reset", "--to", "before", "--dry-run"]),
        &["10 events", "committed from"],
    );
    assert!(!shown.out.contains("resumes"), "{}", shown.out);
    refused(&settings.run(&["slot", "reset", "--to", "before"]), 2, &["--yes"]);
    refused(&settings.run(&["slot", "reset", "--to", "after", "--yes"]), 1, &["Use one of these: before"]);
    let router = Router::active(&settings).await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(15), "a dry run has moved the slot");

    succeeded(
        settings.run(&["slot", "reset", "--to", "before", "--yes"]),
        &["10 events", "outbox-router-replay"],
    );
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 16..18).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let expected =
        (1..16).map(|n| (n, false)).chain((6..16).map(|n| (n, true))).chain((16..18).map(|n| (n, false)));
    assert_eq!(numbers_and_marks(&records), expected.collect::<Vec<_>>());
    same(&outbox, &records, Repeats::Restarts(1)).await;

    // the bookmark still exists, and another reset to it is possible
    succeeded(settings.run(&["slot", "reset", "--to", "before", "--dry-run"]), &["12 events"]);
    // nobody is at the terminal to confirm it
    refused(&settings.run(&["slot", "drop", "before"]), 2, &["Cannot ask for confirmation", "--yes"]);
    succeeded(settings.run(&["slot", "drop", "before", "--yes"]), &["dropped"]);
    refused(&settings.run(&["slot", "reset", "--to", "before", "--yes"]), 1, &["There are no bookmarks"]);
}

/// The copy of a slot belongs to the database of the session that makes it, so a reset to it would move the slot there.
#[tokio::test]
async fn slot_commands_leave_a_slot_of_another_database_alone() {
    let (outbox, other, kafka) = (Outbox::new().await, Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&other, &kafka).set("postgres.slot", outbox.name.as_str());
    // as a version that did not check had left it
    let copied = format!(
        "SELECT pg_copy_logical_replication_slot('{0}', '{0}_bookmark_x_20260101000000')",
        outbox.name
    );
    other.execute(&copied).await;
    succeeded(settings.run(&["slot", "list"]), &["x"]);
    for command in [&["slot", "bookmark", "y"][..], &["slot", "reset", "--to", "x", "--yes"]] {
        refused(
            &settings.run(command),
            3,
            &["belongs to the database", &outbox.name, "slot names are unique"],
        );
    }
    let sql = format!("SELECT database::text FROM pg_replication_slots WHERE slot_name = '{}'", outbox.name);
    assert_eq!(outbox.query(&sql).await[0].get::<_, &str>(0), outbox.name);
    succeeded(settings.run(&["slot", "drop", "x", "--yes"]), &["dropped"]);
}

/// A walsender that has loaded the current publication would decode with that one and skip what an earlier one published.
#[tokio::test]
async fn slot_reset_replays_what_an_earlier_publication_published() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
    outbox.insert_numbers("order", "a", 3..6).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox.execute(&format!("BEGIN; DROP PUBLICATION outbox_router; {PUBLICATION}; COMMIT")).await;
    let ended = Router::start(&settings).exits(3).await;
    let router = Router::with_arguments(&settings, &["--accept-gap", ended.accept_gap_position()]);
    outbox.insert_numbers("order", "a", 6..8).await;
    outbox.all_confirmed().await;
    router.stop().await;
    succeeded(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &["5 events"]);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 8..9).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(marked(&kafka, &outbox).await, 5);
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

#[tokio::test]
async fn slot_advance_after_a_reset_keeps_marking_the_remaining_events() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    outbox.create_witness().await;
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
    let first = outbox
        .commit(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 1}')",
        )
        .await;
    outbox.insert_numbers("order", "a", 2..5).await;
    outbox.all_confirmed().await;
    router.stop().await;
    succeeded(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &["4 events"]);
    succeeded(settings.run(&["slot", "advance", "--to", &first.to_string(), "--yes"]), &["1 event"]);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 5..6).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!((kafka.count(&outbox.name).await, marked(&kafka, &outbox).await), (Ok(8), 3));
}

#[tokio::test]
async fn slot_reset_works_under_load_with_the_router_running() {
    let mut random = seed::random();
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    let writers = Writers::start(&outbox, 4, &mut random).await;
    kafka.holds(&outbox.name, 200).await;
    succeeded(settings.run(&["slot", "bookmark", "here"]), &["created at"]);
    for round in 1..3 {
        let now = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, now + 300).await;
        succeeded(settings.run(&["slot", "reset", "--to", "here", "--yes"]), &["resumes at"]);
        let what = format!("events are replayed, round {round}");
        eventually(&what, async || (marked(&kafka, &outbox).await >= round * 300).then_some(())).await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(2)).await;
}

/// A reset that is interrupted between its two halves leaves the router where it was, and can be repeated.
#[tokio::test]
async fn slot_reset_that_was_interrupted_can_be_repeated() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    succeeded(settings.run(&["slot", "bookmark", "start"]), &[]);
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let slot = &outbox.name;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    Router::start(&settings).exits(3).await.says(&["does not exist"]);
    let copy = format!(
        "SELECT pg_copy_logical_replication_slot(slot_name, '{slot}') FROM pg_replication_slots \
         WHERE slot_name LIKE '{slot}_bookmark_start%'"
    );
    outbox.execute(&copy).await;
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 4..5).await;
    outbox.all_confirmed().await;
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Never).await;
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    succeeded(settings.run(&["slot", "reset", "--to", "start", "--yes"]), &["4 events"]);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!((kafka.count(&outbox.name).await, marked(&kafka, &outbox).await), (Ok(8), 4));
}

/// Without checkpoints, a running router can learn only from the slot that the position was moved.
#[tokio::test]
async fn slot_reset_and_advance_are_noticed_without_checkpoints() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", "");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    succeeded(settings.run(&["slot", "bookmark", "here"]), &[]);
    outbox.insert_numbers("order", "a", 3..13).await;
    outbox.all_confirmed().await;
    for round in 1..4 {
        succeeded(
            settings.run(&["slot", "reset", "--to", "here", "--yes"]),
            &["10 events", "do not carry a replay header"],
        );
        kafka.holds(&outbox.name, 12 + round * 10).await;
        outbox.all_confirmed().await;
    }
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3)).await;
    router.signal(Signal::Stop);
    outbox.insert_numbers("order", "left out", 1..4).await;
    settings.advance_past_everything(&outbox).await;
    router.signal(Signal::Continue);
    outbox.insert_numbers("order", "a", 13..14).await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let sent = records.iter().filter(|record| record.key() == Some("left out")).count();
    // events that had already been sent to the router may be in Kafka too
    assert_eq!(records.len(), 43 + sent);
}

/// The router does not read the stream then, so the catalogue watch notices first that the session was ended.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_advance_is_noticed_by_a_router_that_waits_for_kafka_without_checkpoints() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", "");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    broker.freeze();
    // the first record of a partition is sent alone, so the second one blocks the stream
    outbox.insert_numbers("order", "left out", 1..41).await;
    router
        .shows("records are in flight", |status| (status["in_flight"]["records"].as_u64()? > 0).then_some(()))
        .await;
    outbox.watched().await;
    settings.advance_past_everything(&outbox).await;
    router
        .shows("it has lost its session", |status| {
            (status["reconnects"]["postgres"].as_u64()? > 0).then_some(())
        })
        .await;
    broker.thaw();
    outbox.insert_numbers("order", "a", 3..5).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let of_a: Vec<_> = records.iter().filter(|record| record.key() == Some("a")).collect();
    assert_eq!(of_a.iter().map(|record| record.number()).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

/// A role may terminate only its own server processes.
#[tokio::test]
async fn slot_reset_names_the_role_of_the_running_router() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    let role = format!("{}_other", outbox.name);
    outbox.execute(&format!("CREATE ROLE {role} LOGIN REPLICATION")).await;
    let other = settings.set("postgres.url", outbox.url().replace("postgres@", &format!("{role}@")));
    succeeded(other.run(&["slot", "bookmark", "here"]), &[]);
    refused(
        &other.run(&["slot", "reset", "--to", "here", "--yes"]),
        1,
        &["Connect as the role that the router runs as"],
    );
    router.assert_running();
    router.stop().await;
    outbox.execute(&format!("DROP ROLE {role}")).await;
}

/// A router waits for Kafka for ever. A command must not.
#[tokio::test]
async fn slot_reset_and_advance_fail_when_kafka_does_not_answer() {
    let outbox = Outbox::new().await;
    let settings = Settings::new(&outbox, &Kafka::at("127.0.0.1:1"));
    succeeded(settings.run(&["slot", "bookmark", "here"]), &[]);
    let position = outbox.lsn().await.to_string();
    for arguments in [["reset", "--to", "here", "--dry-run"], ["advance", "--to", &position, "--yes"]] {
        let ran = settings.run(&[&["slot"], &arguments[..]].concat());
        refused(&ran, 1, &["cannot read the topic outbox-router.positions"]);
    }
}

/// With the topic goes the epoch by which a running router would notice the reset.
#[tokio::test]
async fn slot_reset_is_noticed_although_the_positions_topic_was_deleted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("positions_{}", outbox.name);
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
    let mut router = Router::active(&settings).await;
    succeeded(settings.run(&["slot", "bookmark", "here"]), &[]);
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    router.signal(Signal::Stop);
    kafka.delete_topic(&topic).await;
    succeeded(settings.run(&["slot", "reset", "--to", "here", "--yes"]), &["10 events"]);
    router.signal(Signal::Continue);
    kafka.holds(&outbox.name, 20).await;
    router.assert_running();
    router.stop().await;
}

#[tokio::test]
async fn slot_advance_skips_the_events_that_it_announced() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox.insert_numbers("order", "left out", 1..8).await;
    let to = outbox.lsn().await.to_string();
    outbox.insert_numbers("order", "a", 3..5).await;
    succeeded(settings.run(&["slot", "advance", "--to", &to, "--dry-run"]), &["7 events", "never sent"]);
    succeeded(settings.run(&["slot", "advance", "--to", &to, "--yes"]), &["7 events", "resumes at"]);
    refused(&settings.run(&["slot", "advance", "--to", &to, "--yes"]), 1, &["past"]);
    refused(&settings.run(&["slot", "advance", "--to", "FFFF/0", "--yes"]), 1, &["beyond the end"]);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(
        records.iter().map(|record| (record.key(), record.number())).collect::<Vec<_>>(),
        [(Some("a"), 1), (Some("a"), 2), (Some("a"), 3), (Some("a"), 4)]
    );
}

/// An event that cannot be decoded is skipped or sent again like any other.
#[tokio::test]
async fn slot_moves_count_events_that_cannot_be_decoded() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("outbox.message_prefix", "outbox");
    succeeded(settings.run(&["slot", "bookmark", "before"]), &[]);
    // the router needs the column that two of three rows do not have
    outbox.execute("ALTER TABLE outbox RENAME aggregate_type TO kind").await;
    for _ in 0..2 {
        outbox.execute("INSERT INTO outbox (kind, aggregate_id) VALUES ('order', 'a')").await;
    }
    outbox.execute("ALTER TABLE outbox RENAME kind TO aggregate_type").await;
    outbox.insert_numbers("order", "a", 1..2).await;
    let to = outbox.lsn().await.to_string();
    let advance = ["slot", "advance", "--to", &to];
    let rows = ["3 events (2 of them cannot be decoded)", "They are never sent"];
    succeeded(settings.run(&[&advance[..], &["--dry-run"]].concat()), &rows);
    let screen = settings.run_on_terminal(&advance, "3", async || {}).await;
    assert!(screen.contains("Type the number of events, 3") && screen.contains("resumes at"), "{screen}");

    for _ in 0..10 {
        outbox.execute("SELECT pg_logical_emit_message(true, 'outbox', 'no JSON')").await;
    }
    let to = outbox.lsn().await.to_string();
    let messages = ["10 events (10 of them cannot be decoded)"];
    succeeded(settings.run(&["slot", "advance", "--to", &to, "--yes"]), &messages);
    let all = ["13 events (12 of them cannot be decoded)", "They are sent again"];
    succeeded(settings.run(&["slot", "reset", "--to", "before", "--dry-run"]), &all);
}

#[tokio::test]
async fn slot_reset_says_what_is_not_a_time() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let to = |to: &str| settings.run(&["slot", "reset", "--to", to, "--yes"]);
    refused(&to("25:99"), 1, &["25:99 is neither a time, such as 14:05", "There are no bookmarks"]);
    refused(&to("2020-01-02T12:00"), 1, &["no bookmark that was created by 2020-01-02T12:00:59.000Z"]);
    refused(&to("2999-01-02T12:00"), 1, &["2999-01-02T12:00 (UTC) is in the future"]);
    let unknown = to("before");
    refused(&unknown, 1, &["OBR-3115: the bookmark before does not exist"]);
    keep(&unknown.err, &[]);
    let drop = settings.run(&["slot", "drop", "before", "--yes"]);
    refused(&drop, 1, &["OBR-3115: the bookmark before does not exist"]);
}

/// A bookmark would be a copy of the slot.
#[tokio::test]
async fn slot_bookmark_needs_the_slot() {
    let outbox = Outbox::new().await;
    let settings = Settings::new(&outbox, &Kafka::shared());
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{}')", outbox.name)).await;
    refused(&settings.run(&["slot", "bookmark", "before"]), 3, &["OBR-3001", "some may be missing in Kafka"]);
}

/// `init` and backups need one.
#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn slot_bookmarks_of_the_router_leave_a_slot_free() {
    let server =
        PrivatePostgres::start("host all all 127.0.0.1/32 trust\n", &["max_replication_slots=2"]).await;
    let (outbox, kafka) = (Outbox::on(&server.url()).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("bookmarks.every", "1h");
    let mut router = Router::active(&settings).await;
    router.logs("no bookmark can be made; the router keeps trying").await;
    router.logs("1 of max_replication_slots = 2 are in use, and a bookmark leaves one free").await;
    let slots: i64 = outbox.query("SELECT count(*) FROM pg_replication_slots").await[0].get(0);
    assert_eq!(slots, 1);
    // a person may take it
    succeeded(settings.run_async(&["slot", "bookmark", "mine"]).await, &["created at"]);
    router.stop().await;
}

/// The router creates a bookmark if there is no recent one, and drops the oldest. It keeps those that a user created.
#[tokio::test]
async fn slot_bookmarks_rotate_and_reset_accepts_a_time() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("bookmarks.every", "1h").set("bookmarks.keep", 2);
    succeeded(settings.run(&["slot", "bookmark", "mine"]), &[]);
    for stamp in ["20200101000000", "20200102000000"] {
        let copy =
            format!("SELECT pg_copy_logical_replication_slot('{0}', '{0}_bookmark_{stamp}')", outbox.name);
        outbox.execute(&copy).await;
    }
    let router = Router::active(&settings).await;
    let bookmarks = async || {
        let sql = format!(
            "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE '{}_bookmark_%' ORDER BY 1",
            outbox.name
        );
        outbox.query(&sql).await.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>()
    };
    let rolled = eventually("the oldest bookmark is gone and there is a new one", async || {
        let all = bookmarks().await;
        (all.len() == 3 && !all[0].ends_with("20200101000000")).then_some(all)
    })
    .await;
    assert!(
        rolled[0].ends_with("_bookmark_20200102000000") && rolled[2].contains("_bookmark_mine_"),
        "{rolled:?}"
    );
    outbox.insert_numbers("order", "a", 1..4).await;
    outbox.all_confirmed().await;
    let listed = succeeded(settings.run(&["slot", "list", "--json"]), &[]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let created =
        listed["bookmarks"].as_array().unwrap().last().unwrap()["made"].as_str().unwrap().to_owned();
    succeeded(settings.run(&["slot", "reset", "--to", &created, "--dry-run"]), &["3 events"]);
    succeeded(
        settings.run(&["slot", "reset", "--to", "2020-01-02T12:00", "--yes"]),
        &["3 events", "2020-01-02"],
    );
    kafka.holds(&outbox.name, 6).await;
    outbox.all_confirmed().await;
    // the router has dropped the oldest itself
    assert!(!router.log().contains("the bookmark 20"), "{}", router.log());
    router.stop().await;
    assert_eq!(marked(&kafka, &outbox).await, 3);
}

#[tokio::test]
async fn slot_bookmarks_that_retain_too_much_wal_are_dropped() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let old = format!("{}_bookmark_20200101000000", outbox.name);
    outbox.execute(&format!("SELECT pg_copy_logical_replication_slot('{}', '{old}')", outbox.name)).await;
    outbox.execute("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)").await;
    let settings =
        Settings::new(&outbox, &kafka).set("bookmarks.every", "1h").set("bookmarks.max_retained_wal", "1MiB");
    let mut router = Router::active(&settings).await;
    router.logs("bookmark dropped").await;
    let exists = format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{old}'");
    assert!(outbox.query(&exists).await.is_empty());
    router.stop().await;
}
