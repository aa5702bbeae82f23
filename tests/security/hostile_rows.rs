//! Whoever may insert rows chooses their content. No row can make the router write elsewhere, forge its output or crash it, but
//! some stop it.

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::{Outbox, TABLE};
use crate::support::router::{Ended, Router};
use crate::support::settings::Settings;
use crate::support::shared;

/// Checks that the router stops at this row without sending anything, names the event, and prints only lines of its own.
async fn assert_stops(settings: &Settings, outbox: &Outbox, case: &str, insert: &str) -> Ended {
    let id: String = outbox.query(&format!("{insert} RETURNING id::text")).await[0].get(0);
    let before = Kafka::shared().count(&outbox.name).await.unwrap();
    let ended = Router::start(settings).exits(3).await;
    ended.says(&[&id, "slot advance --to"]);
    let control = |c: char| c.is_control() && c != '\n';
    // a line of the log, or one of the message: what it means for events, a way out, a step or a command
    let own = |line: &str| {
        let step = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_digit())
                || text.ends_with(". Then start the router again. Nothing was skipped")
        };
        let of_message = |text: &str| {
            ["Events: ", "To park this event", "To go on without", "outbox-router "]
                .iter()
                .any(|begin| text.starts_with(begin))
                || step(text)
        };
        line.starts_with("20")
            || line.starts_with("error: ")
            || line.strip_prefix("  ").is_some_and(|text| of_message(text.trim_start()))
    };
    assert!(!ended.log.contains(control) && ended.log.lines().all(own), "{case}: {}", ended.log);
    assert!(ended.log.len() < 20_000, "{case}: {} bytes are logged", ended.log.len());
    assert_eq!(Kafka::shared().count(&outbox.name).await, Ok(before), "{case}");
    outbox.released().await;
    outbox.execute("DELETE FROM outbox").await;
    settings.advance_past_everything(outbox).await;
    ended
}

fn of_type(aggregate_type: &str) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ({aggregate_type}, 'a', '{{}}')"
    )
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn hostile_rows_reach_no_topic_but_those_of_the_template() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    for (case, aggregate_type) in [
        ("10 kB", "repeat('x', 10240)"),
        ("a path", "'../../etc/passwd'"),
        ("a Cyrillic letter", "U&'\\043erder'"),
        ("a zero-width space", "U&'order\\200b'"),
        ("the symbol for NUL", "U&'order\\2400'"),
        ("a control character", "E'order\\x01'"),
        ("a log line", "E'order\\n2026-01-01T00:00:00.000Z  INFO forged'"),
        ("an error's line", "E'order\\nerror: forged'"),
        ("a template", "'${source.sequence}'"),
    ] {
        assert_stops(&settings, &outbox, case, &of_type(aggregate_type)).await;
    }
    // the row's text is the whole topic name
    let anywhere = settings.clone().set("route.topic", "${aggregate_type}");
    let allowed = anywhere.clone().set("topics.allow", vec![outbox.topic("*")]);
    let positions_topic = format!("kept.{}", outbox.name);
    let positions = settings.clone().set("delivery.positions_topic", positions_topic.as_str());
    for (settings, topic) in [
        (&anywhere, "__consumer_offsets"),
        (&anywhere, "__transaction_state"),
        (&anywhere, "outbox-router.positions"),
        (&allowed, "another.topic"),
        (&allowed, format!("{}.a b", outbox.name).as_str()),
    ] {
        assert_stops(settings, &outbox, topic, &of_type(&format!("'{topic}'"))).await;
    }
    // another positions topic lacks the checkpoint
    let ended = Router::start(&positions).exits(3).await;
    let mut router = Router::with_arguments(&positions, &["--accept-gap", ended.accept_gap_position()]);
    router.ready().await;
    router.stop().await;
    for (settings, topic) in [
        (&positions.clone().set("route.topic", "${aggregate_type}"), positions_topic.as_str()),
        (&positions.clone().set("route.topic", "kept.${aggregate_type}"), outbox.name.as_str()),
    ] {
        assert_stops(settings, &outbox, topic, &of_type(&format!("'{topic}'"))).await;
    }
    assert_eq!(kafka.partitions("another.topic").await, 0);
}

#[tokio::test]
async fn hostile_rows_arrive_as_plain_data() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    kafka.create_topic(&outbox.topic("order"), 1, &[("max.message.bytes", "20000000")]).await;
    let headers = r#"{"id": "forged", "type": "forged", "outbox-router-replay": "forged", "": "empty",
        "a\nb: c": "d\r\ne: f", "\u001b[2J": "\u001b[31m", "ключ": "\u202e", "n": 1e400, "deep": [[[{"id": 1}]]]}"#;
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, headers) VALUES ('order', E'a\\nb\\x1b', '1', $h${headers}$h$)"
        ))
        .await;
    let many = "(SELECT jsonb_object_agg('h' || n, n) FROM generate_series(1, 99998) n)";
    // librdkafka, with which the test reads, returns no headers of a record that has more than 100,000
    outbox
        .execute(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload, headers) VALUES ('order', repeat('k', 1048576), '2', {many})"
        ))
        .await;
    // the output for people has no control characters
    let settings = Settings::new(&outbox, &kafka);
    let shown = settings.run(&["route", "--dry-run"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(!shown.out.contains(|c: char| c.is_control() && c != '\n'), "{:?}", shown.out.get(..4000));

    let router = Router::start(&settings);
    outbox.all_confirmed().await;
    let log = router.stop().await.log;
    assert!(!log.contains("forged"), "{log}");
    let records = kafka.records(&outbox.topic("order")).await;
    let [first, second]: &[Record; 2] = records.as_slice().try_into().unwrap();
    assert_eq!(first.key(), Some("a\nb\u{1b}"));
    let named = |name: &str| first.headers.iter().filter(|(known, _)| known == name).count();
    assert_eq!((named("id"), named("type"), named("outbox-router-replay")), (1, 1, 0));
    assert_ne!(first.header("id"), Some("forged"));
    assert_eq!(first.header("a\nb: c"), Some("d\r\ne: f"));
    assert_eq!(first.header("\u{1b}[2J"), Some("\u{1b}[31m"));
    assert_eq!(first.header("deep"), Some(r#"[[[{"id": 1}]]]"#));
    assert_eq!(second.key().unwrap().len(), 1 << 20);
    assert_eq!(second.headers.len(), 100_000);
    assert_eq!(second.header("h99998"), Some("99998"));
}

/// JSON of any depth, length or form, with every option that parses or transforms it.
#[tokio::test]
async fn hostile_rows_of_json_are_refused_or_sent_without_a_crash() {
    let table = TABLE.replace("payload jsonb", "payload text").replace("headers jsonb", "headers text");
    let (outbox, kafka) = (Outbox::with_table(shared::postgres(), &table).await, Kafka::shared());
    let contracts = tempfile::tempdir().unwrap();
    std::fs::create_dir(contracts.path().join("order")).unwrap();
    std::fs::write(contracts.path().join("order/happened.json"), r#"{"type": "array"}"#).unwrap();
    let settings = Settings::new(&outbox, &kafka);
    let rejecting = settings
        .clone()
        .set("contracts.directory", contracts.path().to_str().unwrap())
        .set("contracts.on_violation", "reject");
    let forms = [
        ("as it is", settings.clone()),
        ("expanded", settings.clone().set("route.payload_json", "expand")),
        ("in an envelope", settings.clone().set("route.value", "envelope")),
        ("in a CloudEvent", settings.clone().set("route.value", "cloudevents-structured")),
        ("under contract", rejecting),
        ("by a header", settings.clone().set("route.headers.x", "${headers.x | default('none')}")),
    ];
    let deep = "repeat('[', 400000) || repeat(']', 400000)";
    let deep_objects = "repeat('{\"a\":', 100000) || '1' || repeat('}', 100000)";
    let open = "repeat('[', 400000)";
    let number = "'[' || repeat('9', 400000) || ']'";
    let wide = "'[' || repeat('0,', 200000) || '0]'";
    let (mut sent, mut refused) = (0, 0);
    for (form, settings) in &forms {
        for payload in [deep, deep_objects, open, number, wide, "'pay10ad'", "''"] {
            for (column, other) in [("payload", "headers"), ("headers", "payload")] {
                let sql = format!(
                    "INSERT INTO outbox (aggregate_type, aggregate_id, {column}, {other}) VALUES ('order', 'a', {payload}, '{{}}')"
                );
                outbox.execute(&sql).await;
                let shown = settings.run(&["route", "--dry-run", "--json"]);
                outbox.execute("DELETE FROM outbox").await;
                assert!([0, 1].contains(&shown.code), "{form}, {column} {payload}: {}", shown.err);
                let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
                match shown[0]["outcome"].as_str().unwrap() {
                    "record" => sent += 1,
                    "refused" => {
                        refused += 1;
                        let reason = shown[0]["reason"].as_str().unwrap();
                        assert!(!reason.contains("pay10ad") && reason.len() < 500, "{reason}");
                    }
                    other => panic!("{form}, {column} {payload}: {other}"),
                }
            }
        }
    }
    println!("{sent} would be sent, {refused} refused");
    assert!(sent > 0 && refused > 0);
    settings.advance_past_everything(&outbox).await;
    // the router too, not only `route`
    for (form, settings) in [&forms[2], &forms[4]] {
        let insert = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', {open})"
        );
        let ended = assert_stops(settings, &outbox, form, &insert).await;
        assert!(!ended.log.contains("[[[["), "{form}: the payload is quoted");
    }
}
