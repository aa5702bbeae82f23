//! An outbox without a table: events as logical messages.

use crate::commands::check::Found;
use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::place::{Place, psql, succeeded};
use crate::support::router::Router;
use crate::support::settings::Settings;

fn message(aggregate_id: &str, n: u32) -> String {
    format!(
        "SELECT pg_logical_emit_message(true, 'outbox', '{{\"id\": \"m{n}\", \"aggregate_type\": \"order\", \
         \"aggregate_id\": \"{aggregate_id}\", \"event_type\": \"made\", \"payload\": {{\"n\" : {n}}}}}');"
    )
}

fn row(aggregate_id: &str, n: u32) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', '{aggregate_id}', '{{\"n\": {n}}}');"
    )
}

#[tokio::test]
async fn messages_and_rows_are_sent_in_commit_order() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.message_prefix", "outbox")
        .set("route.headers.from", "${source.schema}.${source.table}")
        .set("route.headers.sequence", "${source.sequence}");
    for n in (0..60).step_by(3) {
        outbox.execute(&[message("a", n), row("a", n + 1)].concat()).await;
        outbox.execute(&format!("BEGIN; {} ROLLBACK", message("a", 9_999))).await;
        outbox.execute("SELECT pg_logical_emit_message(true, 'other', 's3cret')").await;
        outbox.execute(&message("a", n + 2)).await;
    }
    let earlier_slot = format!("{}_before", outbox.name);
    outbox
        .execute(&format!("SELECT pg_copy_logical_replication_slot('{}', '{earlier_slot}')", outbox.name))
        .await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    // nothing is lost if the router is killed while it sends more
    for n in 60..80 {
        outbox.execute(&message("a", n)).await;
    }
    router.kill();
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let mut numbers: Vec<u64> = Vec::new();
    for number in records.iter().map(|record| record.number()) {
        // the restarted router repeats some
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    assert_eq!(numbers, (0..80).collect::<Vec<u64>>());
    assert_eq!((records[0].id(), records[0].text(), records[0].key()), ("m0", r#"{"n" : 0}"#, Some("a")));
    assert_eq!(records[0].header("from"), Some("message.outbox"));
    assert_eq!(records[1].header("from"), Some("public.outbox"));

    // from an earlier slot, all are sent again to other topics with the same ids and sequences
    let again =
        settings.set("postgres.slot", earlier_slot.as_str()).set("route.topic", outbox.topic("again"));
    let ended = Router::start(&again).exits(3).await;
    let router = Router::with_arguments(&again, &["--accept-gap", ended.accept_gap_position()]);
    let replayed = kafka.records_when(&outbox.topic("again"), 80).await;
    router.stop().await;
    let identity = |record: &Record| {
        (record.number(), record.id().to_owned(), record.header("sequence").map(str::to_owned))
    };
    let mut first: Vec<_> = records.iter().map(identity).collect();
    first.sort();
    first.dedup();
    assert_eq!(replayed.iter().map(identity).collect::<Vec<_>>(), first);
    outbox.execute(&format!("SELECT pg_drop_replication_slot('{earlier_slot}')")).await;
}

/// Rows, messages, keys and headers, sent or parked, whatever the database's encoding is. The last text is also valid as two letters of
/// another encoding.
#[tokio::test]
async fn events_are_utf8_in_a_database_of_any_encoding() {
    for (encoding, text) in [
        ("LATIN1", "Zo\u{eb} \u{c3}\u{a9}"),
        ("WIN1251", "\u{436}\u{44f}"),
        ("EUC_JP", "\u{65e5}\u{672c}"),
        ("SQL_ASCII", "\u{eb}\u{436}\u{65e5}"),
    ] {
        let (outbox, kafka) = (Outbox::with_encoding(encoding).await, Kafka::shared());
        let settings = Settings::new(&outbox, &kafka)
            .set("outbox.message_prefix", "outbox")
            .set("dead_letters.policy", "park")
            .set("topics.allow", vec![outbox.topic("order"), outbox.topic("later")]);
        succeeded(settings.run_async(&["init"]).await, &[]);
        succeeded(settings.run_async(&["check"]).await, &[]);
        let event = |aggregate_type: &str| {
            format!("'{aggregate_type}', '{text}', 'made', '{{\"t\": \"{text}\"}}', '{{\"h\": \"{text}\"}}'")
        };
        let both = |aggregate_type: &str| {
            format!(
                "SELECT outbox_router.emit_message({0}); SELECT outbox_router.emit({0})",
                event(aggregate_type)
            )
        };
        let router = Router::active(&settings).await;
        outbox.execute(&both("order")).await;
        outbox.execute(&both("parked")).await;
        outbox.all_confirmed().await;
        let sent = kafka.records_when(&outbox.topic("order"), 2).await;
        router.stop().await;
        // what was parked is sent once it may be
        let allowed = settings.clone().without("topics.allow");
        let router = Router::active(&allowed).await;
        succeeded(allowed.run_async(&["dead-letters", "retry", "--all"]).await, &["will be tried again"]);
        let parked = kafka.records_when(&outbox.topic("parked"), 2).await;
        router.stop().await;
        for record in sent.iter().chain(&parked) {
            let payload: serde_json::Value = serde_json::from_str(record.text()).unwrap();
            let found = (record.key(), payload["t"].as_str(), record.header("h"));
            assert_eq!(found, (Some(text), Some(text), Some(text)), "{encoding}");
        }
    }
}

#[tokio::test]
async fn messages_need_no_table_but_a_grant() {
    let kafka = Kafka::shared();
    let place = Place::new().with("OUTBOX__MESSAGE_PREFIX", "shop's outbox").with("OUTBOX__TABLE", "");
    let made = place.run(&["init"]);
    assert_eq!(made.code, 0, "{made:?}");
    // Postgres 17 and later have one more argument
    let masked = |text: &str| place.masked(text).replace(",boolean) FROM", ") FROM");
    insta::assert_snapshot!(masked(&made.out));
    let again = place.run(&["init"]);
    assert!(again.out.contains("Nothing had to be changed."), "{again:?}");

    // a role that may call Postgres's function could forge events, which check reports
    let found = Found::at(&place);
    assert_eq!(found.code, 0);
    insta::assert_snapshot!(masked(&found.of("messages")));

    let client = format!("{}_client", place.name);
    place.psql(&format!("CREATE ROLE {client} LOGIN; GRANT USAGE ON SCHEMA outbox_router TO {client}"));
    let emit = |function: &str, payload: &str| {
        format!(
            "SET ROLE {client}; SELECT outbox_router.{function}('order', 'a', 'made', {payload}, '{{\"x\": \"y\"}}')"
        )
    };
    let refused = psql(&place.url("postgres"), &["-c", &emit("emit_message", "'{}'")]);
    assert!(refused.err.contains("permission denied"), "{refused:?}");
    place.psql(&format!(
        "GRANT EXECUTE ON FUNCTION outbox_router.emit_message(text, text, text, jsonb, jsonb), \
         outbox_router.emit_message_bytes(text, text, text, bytea, jsonb) TO {client}"
    ));
    place.psql(&emit("emit_message", "'{\"n\": 1}'"));
    place.psql(&emit("emit_message_bytes", "decode(repeat('00ff', 100), 'hex')"));
    place.psql(&emit("emit_message", "NULL"));

    let tables: Vec<toml::Value> = Vec::new();
    let settings = Settings::default()
        .set("postgres.url", place.url("postgres"))
        .set("postgres.slot", place.name.as_str())
        .set("postgres.publication", place.name.as_str())
        .set("outbox.table", tables)
        .set("outbox.message_prefix", "shop's outbox")
        .set("kafka.'bootstrap.servers'", kafka.bootstrap.as_str())
        .set("route.topic", format!("{}.all", place.name));
    let router = Router::active(&settings).await;
    let records = kafka.records_when(&place.name, 3).await;
    router.stop().await;
    let values: Vec<Option<&[u8]>> = records.iter().map(|record| record.value.as_deref()).collect();
    let bytes = [0, 0xff].repeat(100);
    assert_eq!(values, [Some(&b"{\"n\": 1}"[..]), Some(&bytes), None]);
    assert!(records.iter().all(|record| record.header("x") == Some("y") && record.id().len() == 36));
}

#[tokio::test]
async fn messages_outside_of_transactions_are_not_sent_but_logged() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka).set("outbox.message_prefix", "outbox");
    let mut router = Router::active(&settings).await;
    for n in 0..3 {
        outbox.execute(&message("a", n).replace("(true,", "(false,")).await;
    }
    outbox.execute(&message("a", 3)).await;
    outbox.all_confirmed().await;
    router
        .shows("three changes are ignored", |status| (status["totals"]["ignored_changes"] == 3).then_some(()))
        .await;
    let log = router.stop().await.log;
    assert_eq!(log.matches("is not transactional and was not sent").count(), 1, "{log}");
    let records = kafka.records(&outbox.name).await;
    assert_eq!(records.iter().map(|record| record.number()).collect::<Vec<_>>(), [3]);
}

#[tokio::test]
async fn messages_that_are_not_events_stop_the_router_before_them() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.message_prefix", "outbox")
        .set("route.headers.region", "${region}")
        .set("route.missing_columns", "ignore");
    outbox.execute(&message("a", 1)).await;
    outbox.execute("SELECT pg_logical_emit_message(true, 'outbox', 's3cret')").await;
    outbox.execute(&message("a", 2)).await;
    let ended = Router::start(&settings).exits(3).await;
    ended.says(&[
        "not a JSON object",
        "at byte 1",
        "outbox_router.emit_message",
        "outbox-router slot advance --to ",
    ]);
    assert!(!ended.log.contains("s3cret"), "{}", ended.log);
    assert_eq!(kafka.records(&outbox.name).await.len(), 1);

    settings.run_suggested_command(&ended);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(records.iter().map(|record| record.number()).collect::<Vec<_>>(), [1, 2]);
}
