//! The position moved on purpose: bookmarks, going back to one, leaving events out.

use crate::support::comparison::{REPLAY, Repeats, numbers_and_marks, same};
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, PUBLICATION};
use crate::support::place::Ran;
use crate::support::private_kafka::PrivateKafka;
use crate::support::router::Router;
use crate::support::seed;
use crate::support::settings::Settings;
use crate::support::signal::Signal;
use crate::support::writers::Writers;

fn done(ran: Ran, parts: &[&str]) -> Ran {
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    for part in parts {
        assert!(ran.out.contains(part), "no {part:?} in {}", ran.out);
    }
    ran
}

fn refused(ran: &Ran, code: i32, part: &str) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains(part), "no {part:?} in {}", ran.err);
}

/// How many records bear the mark of a replay.
async fn marked(kafka: &Kafka, outbox: &Outbox) -> usize {
    let records = kafka.records(&outbox.name).await;
    records.iter().filter(|record| record.header(REPLAY).is_some()).count()
}

#[tokio::test]
async fn slot_reset_sends_again_what_followed_a_bookmark_and_marks_it() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..6).await;
    outbox.all_confirmed().await;
    done(settings.run(&["slot", "bookmark", "before"]), &["bookmark before created at", "slot drop before"]);
    refused(&settings.run(&["slot", "bookmark", "before"]), 1, "already");
    outbox.insert_numbers("order", "a", 6..16).await;
    outbox.all_confirmed().await;
    router.stop().await;

    done(settings.run(&["slot", "list"]), &["before", "reserved"]);
    let shown = done(
        settings.run(&["slot", "reset", "--to", "before", "--dry-run"]),
        &["10 events", "committed from"],
    );
    assert!(!shown.out.contains("resumes"), "{}", shown.out);
    refused(&settings.run(&["slot", "reset", "--to", "before"]), 2, "--yes");
    refused(&settings.run(&["slot", "reset", "--to", "after", "--yes"]), 1, "Use one of these: before");
    let router = Router::active(&settings).await;
    router.stop().await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(15), "nothing was to happen yet");

    done(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &["10 events", "outbox-router-replay"]);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 16..18).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let expected =
        (1..16).map(|n| (n, false)).chain((6..16).map(|n| (n, true))).chain((16..18).map(|n| (n, false)));
    assert_eq!(numbers_and_marks(&records), expected.collect::<Vec<_>>());
    same(&outbox, &records, Repeats::Restarts(1)).await;

    // the bookmark is still there, and can be gone back to once more
    done(settings.run(&["slot", "reset", "--to", "before", "--dry-run"]), &["12 events"]);
    done(settings.run(&["slot", "drop", "before"]), &["dropped"]);
    refused(&settings.run(&["slot", "reset", "--to", "before", "--yes"]), 1, "There are no bookmarks");
}

/// A walsender that has read the present publication would decode with it, and pass over what an earlier one published.
#[tokio::test]
async fn slot_reset_sends_again_what_an_earlier_publication_published() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    done(settings.run(&["slot", "bookmark", "before"]), &[]);
    outbox.insert_numbers("order", "a", 3..6).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox.execute(&format!("BEGIN; DROP PUBLICATION outbox_router; {PUBLICATION}; COMMIT")).await;
    let ended = Router::start(&settings).exits(3).await;
    let router = Router::with_arguments(&settings, &["--accept-gap", ended.goes_on_at()]);
    outbox.insert_numbers("order", "a", 6..8).await;
    outbox.all_confirmed().await;
    router.stop().await;
    done(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &["5 events"]);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 8..9).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(marked(&kafka, &outbox).await, 5);
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(1)).await;
}

#[tokio::test]
async fn slot_advance_past_an_event_keeps_the_mark_of_what_is_still_sent_again() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    outbox.create_witness().await;
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    done(settings.run(&["slot", "bookmark", "before"]), &[]);
    let first = outbox
        .commit(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{\"n\": 1}')",
        )
        .await;
    outbox.insert_numbers("order", "a", 2..5).await;
    outbox.all_confirmed().await;
    router.stop().await;
    done(settings.run(&["slot", "reset", "--to", "before", "--yes"]), &["4 events"]);
    done(settings.run(&["slot", "advance", "--to", &first.to_string(), "--yes"]), &["1 event"]);
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
    done(settings.run(&["slot", "bookmark", "here"]), &["created at"]);
    for round in 1..3 {
        let now = kafka.count(&outbox.name).await.unwrap();
        kafka.holds(&outbox.name, now + 300).await;
        done(settings.run(&["slot", "reset", "--to", "here", "--yes"]), &["resumes at"]);
        let what = format!("events are sent again, round {round}");
        eventually(&what, async || (marked(&kafka, &outbox).await >= round * 300).then_some(())).await;
    }
    writers.finish().await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(2)).await;
}

/// A reset that is cut off between its halves leaves the router where it was, and can be run again.
#[tokio::test]
async fn slot_reset_that_was_cut_off_in_the_middle_harms_nothing() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    done(settings.run(&["slot", "bookmark", "start"]), &[]);
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
    done(settings.run(&["slot", "reset", "--to", "start", "--yes"]), &["4 events"]);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!((kafka.count(&outbox.name).await, marked(&kafka, &outbox).await), (Ok(8), 4));
}

/// Where positions are not in Kafka, a router that runs has only the slot to learn from that it was moved.
#[tokio::test]
async fn slot_reset_and_advance_are_noticed_where_positions_are_not_in_kafka() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", "");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    done(settings.run(&["slot", "bookmark", "here"]), &[]);
    outbox.insert_numbers("order", "a", 3..13).await;
    outbox.all_confirmed().await;
    for round in 1..4 {
        done(
            settings.run(&["slot", "reset", "--to", "here", "--yes"]),
            &["10 events", "do not carry a replay header"],
        );
        kafka.holds(&outbox.name, 12 + round * 10).await;
        outbox.all_confirmed().await;
    }
    same(&outbox, &kafka.records(&outbox.name).await, Repeats::Restarts(3)).await;
    router.signal(Signal::Stop);
    outbox.insert_numbers("order", "left out", 1..4).await;
    settings.leave_all_out(&outbox).await;
    router.signal(Signal::Continue);
    outbox.insert_numbers("order", "a", 13..14).await;
    outbox.all_confirmed().await;
    router.assert_running();
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let sent = records.iter().filter(|record| record.key() == Some("left out")).count();
    // what was on its way to the router already may be sent all the same
    assert_eq!(records.len(), 43 + sent);
}

/// The stream is not read then, so that the watch is the first to find out that the session was ended.
#[tokio::test]
async fn slot_advance_is_noticed_by_a_router_that_waits_for_kafka_where_positions_are_not_in_kafka() {
    let broker = PrivateKafka::start(&[]).await;
    let (outbox, kafka) = (Outbox::new().await, broker.client());
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", "");
    let mut router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    broker.freeze();
    // the first record of a partition travels alone, so the second holds the stream back
    outbox.insert_numbers("order", "left out", 1..41).await;
    router
        .shows("records are under way", |status| (status["in_flight"]["records"].as_u64()? > 0).then_some(()))
        .await;
    outbox.watched().await;
    settings.leave_all_out(&outbox).await;
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

/// A role may end only server processes of its own.
#[tokio::test]
async fn slot_reset_says_whose_role_the_running_router_has() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let mut router = Router::active(&settings).await;
    let role = format!("{}_other", outbox.name);
    outbox.execute(&format!("CREATE ROLE {role} LOGIN REPLICATION")).await;
    let other = settings.set("postgres.url", outbox.url().replace("postgres@", &format!("{role}@")));
    done(other.run(&["slot", "bookmark", "here"]), &[]);
    refused(
        &other.run(&["slot", "reset", "--to", "here", "--yes"]),
        1,
        "Connect as the role that the router runs as",
    );
    router.assert_running();
    router.stop().await;
    outbox.execute(&format!("DROP ROLE {role}")).await;
}

/// A router would wait for Kafka for ever; who types a command would not.
#[tokio::test]
async fn slot_reset_and_advance_say_that_kafka_does_not_answer() {
    let outbox = Outbox::new().await;
    let settings = Settings::new(&outbox, &Kafka::at("127.0.0.1:1"));
    done(settings.run(&["slot", "bookmark", "here"]), &[]);
    let position = outbox.lsn().await.to_string();
    for arguments in [["reset", "--to", "here", "--dry-run"], ["advance", "--to", &position, "--yes"]] {
        let ran = settings.run(&[&["slot"], &arguments[..]].concat());
        refused(&ran, 1, "cannot read the topic outbox-router.positions");
    }
}

/// The topic is gone, and with it the number by which a running router would know that somebody else was there.
#[tokio::test]
async fn slot_reset_is_noticed_though_the_topic_of_positions_was_deleted() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let topic = format!("positions_{}", outbox.name);
    let settings = Settings::new(&outbox, &kafka).set("delivery.positions_topic", topic.as_str());
    let mut router = Router::active(&settings).await;
    done(settings.run(&["slot", "bookmark", "here"]), &[]);
    outbox.insert_numbers("order", "a", 1..11).await;
    outbox.all_confirmed().await;
    router.signal(Signal::Stop);
    kafka.delete_topic(&topic).await;
    done(settings.run(&["slot", "reset", "--to", "here", "--yes"]), &["10 events"]);
    router.signal(Signal::Continue);
    kafka.holds(&outbox.name, 20).await;
    router.assert_running();
    router.stop().await;
}

#[tokio::test]
async fn slot_advance_leaves_out_what_it_said_it_would() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert_numbers("order", "a", 1..3).await;
    outbox.all_confirmed().await;
    router.stop().await;
    outbox.insert_numbers("order", "left out", 1..8).await;
    let to = outbox.lsn().await.to_string();
    outbox.insert_numbers("order", "a", 3..5).await;
    done(settings.run(&["slot", "advance", "--to", &to, "--dry-run"]), &["7 events", "never sent"]);
    done(settings.run(&["slot", "advance", "--to", &to, "--yes"]), &["7 events", "resumes at"]);
    refused(&settings.run(&["slot", "advance", "--to", &to, "--yes"]), 1, "past");
    refused(&settings.run(&["slot", "advance", "--to", "FFFF/0", "--yes"]), 1, "beyond the end");
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(
        records.iter().map(|record| (record.key(), record.number())).collect::<Vec<_>>(),
        [(Some("a"), 1), (Some("a"), 2), (Some("a"), 3), (Some("a"), 4)]
    );
}

/// One made when there is none of late, the oldest dropped; one that a person made stays.
#[tokio::test]
async fn slot_bookmarks_roll_and_a_time_is_enough_to_go_back() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("bookmarks.every", "1h").set("bookmarks.keep", 2);
    done(settings.run(&["slot", "bookmark", "mine"]), &[]);
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
    let rolled = eventually("the oldest is gone and a new one is there", async || {
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
    let listed = done(settings.run(&["slot", "list", "--json"]), &[]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let made = listed["bookmarks"].as_array().unwrap().last().unwrap()["made"].as_str().unwrap().to_owned();
    done(settings.run(&["slot", "reset", "--to", &made, "--dry-run"]), &["3 events"]);
    done(settings.run(&["slot", "reset", "--to", "2020-01-02T12:00", "--yes"]), &["3 events", "2020-01-02"]);
    kafka.holds(&outbox.name, 6).await;
    outbox.all_confirmed().await;
    router.stop().await;
    assert_eq!(marked(&kafka, &outbox).await, 3);
}

/// What a bookmark holds back has a limit.
#[tokio::test]
async fn slot_bookmarks_that_hold_back_too_much_log_are_dropped() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let old = format!("{}_bookmark_20200101000000", outbox.name);
    outbox.execute(&format!("SELECT pg_copy_logical_replication_slot('{}', '{old}')", outbox.name)).await;
    outbox.execute("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)").await;
    let settings =
        Settings::new(&outbox, &kafka).set("bookmarks.every", "1h").set("bookmarks.max_retained_wal", "1MiB");
    let mut router = Router::active(&settings).await;
    router.logs("bookmark dropped").await;
    let there = format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{old}'");
    assert!(outbox.query(&there).await.is_empty());
    router.stop().await;
}
