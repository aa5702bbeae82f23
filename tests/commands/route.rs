//! `route --dry-run` shows the records that the router sends.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::kafka::Kafka;
use crate::support::place::{Place, Ran};
use crate::support::process;
use crate::support::router::Router;
use crate::support::settings::Settings;

fn shown(ran: &Ran) -> Vec<Value> {
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
}

/// An outbox with columns of many types, and a configuration that uses them.
fn ready() -> Place {
    let place = Place::new();
    let place = place
        .with("ROUTE__HEADERS__AT", "${at}")
        .with("ROUTE__HEADERS__FLAG", "${flag}")
        .with("ROUTE__HEADERS__MOODS", "${moods}")
        .with("ROUTE__TEXT", "connect");
    place.psql(
        "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN some_moods AS mood[]; CREATE DOMAIN moods AS some_moods; \
         CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
         aggregate_id bigint, event_type text NOT NULL, payload bytea, headers jsonb NOT NULL DEFAULT '{}', \
         created_at timestamptz NOT NULL DEFAULT clock_timestamp(), at timestamptz, flag boolean, moods moods)",
    );
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    place.psql(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, at, flag, moods) VALUES \
         ('00000000-0000-0000-0000-000000000001', 'order', 1, 'made', '\\x00ff', '{\"n\": 1}', '2026-01-02 03:04:05+02', true, '{happy}'), \
         ('00000000-0000-0000-0000-000000000002', 'order', NULL, 'made', 'text', '{}', NULL, false, NULL)",
    );
    place
}

#[tokio::test]
async fn a_dry_run_shows_what_is_sent_and_touches_nothing() {
    let (place, kafka) = (ready(), Kafka::shared());
    let slot = || {
        place.psql("SELECT confirmed_flush_lsn, active FROM pg_replication_slots WHERE database = current_database()")
    };
    let before = slot();
    let dry = shown(&place.run(&["route", "--dry-run", "--json"]));
    assert_eq!(dry.len(), 2);
    let first =
        shown(&place.run(&["route", "--dry-run", "--json", "--id", "00000000-0000-0000-0000-000000000001"]));
    assert_eq!(first.len(), 1);
    assert_eq!(shown(&place.run(&["route", "--dry-run", "--json", "--limit", "1"])).len(), 1);
    let text = place.run(&["route", "--dry-run"]);
    assert!(text.code == 0 && text.out.contains("2026-01-02T01:04:05.000000Z"), "{text:?}");
    assert_eq!(slot(), before);
    assert_eq!(kafka.partitions(&format!("{}.order", place.name)).await, 0);

    let settings = Settings::default()
        .set("postgres.url", place.url("postgres"))
        .set("postgres.slot", place.name.as_str())
        .set("postgres.publication", place.name.as_str())
        .set("kafka.'bootstrap.servers'", kafka.bootstrap.as_str())
        .set("route.topic", format!("{}.${{aggregate_type}}", place.name))
        .set("route.headers.at", "${at}")
        .set("route.headers.flag", "${flag}")
        .set("route.headers.moods", "${moods}")
        .set("route.text", "connect")
        .set("admin.listen", "127.0.0.1:0");
    let router = Router::active(&settings).await;
    let records = kafka.records_when(&place.name, 2).await;
    router.stop().await;
    let text = |bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({ "base64": "AP8=" }),
        })
    };
    for record in records {
        let expected = dry.iter().find(|shown| shown["id"] == record.id()).unwrap();
        assert_eq!((&expected["outcome"], &expected["topic"]), (&json!("record"), &json!(record.topic)));
        let sent = (json!(text(&record.key)), json!(text(&record.value)));
        assert_eq!((&expected["key"], &expected["value"]), (&sent.0, &sent.1));
        let headers: Vec<Value> = record
            .headers
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": text(value) }))
            .collect();
        assert_eq!(expected["headers"], json!(headers));
    }
}

#[test]
fn without_a_time_the_newest_rows_are_those_that_were_written_last() {
    let place = Place::new().with("OUTBOX__COLUMNS__CREATED_AT", "false");
    assert_eq!(place.run(&["init"]).code, 0);
    let insert = |key: &str| {
        place.psql(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '{key}', 'made', '{{}}')"
        ));
    };
    for key in ["1", "2", "3"] {
        insert(key);
    }
    // the next row gets the place of the first
    place.psql("DELETE FROM outbox WHERE aggregate_id = '1'");
    place.psql("VACUUM outbox");
    insert("4");
    let rows = shown(&place.run(&["preview", "--json", "--limit", "2"]));
    let keys: Vec<&Value> = rows.iter().map(|row| &row["key"]).collect();
    assert_eq!(keys, ["4", "3"]);
}

#[test]
fn json_on_standard_input_needs_no_server() {
    let place = Place::new()
        .with("POSTGRES__URL", "postgres://nobody@127.0.0.1:1/none")
        .with("ROUTE__TOPIC", "shop.${aggregate_type}");
    let mut command = place.command(&["route", "--dry-run", "--stdin"]);
    let mut child = process::start(command.stdin(Stdio::piped()));
    let lines = [
        r#"{"id": "e1", "aggregate_type": "order", "aggregate_id": "1", "event_type": "made", "payload": {"a": 1}}"#,
        "",
        r#"{"id": "e2", "aggregate_type": "a b", "aggregate_id": null, "event_type": "made", "payload": null}"#,
        "no json",
    ];
    child.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 1, "{ran:?}");
    insta::assert_snapshot!(ran.out);
}

#[test]
fn a_role_without_select_is_refused_and_url_names_another() {
    let place = ready();
    let poor = format!("{}_poor", place.name);
    place.psql(&format!("CREATE ROLE {poor} LOGIN"));
    let url = place.url(&poor);
    let administrator = place.url("postgres");
    let place = place.with("POSTGRES__URL", &url);
    let ran = place.run(&["route", "--dry-run"]);
    assert!(ran.code == 1 && ran.err.contains("SELECT privilege") && ran.err.contains("--url"), "{ran:?}");
    let ran = place.run(&["preview", "--url", &administrator, "--json"]);
    assert!(ran.code != 2 && !shown(&ran).is_empty(), "{ran:?}");
    let other = Place::new();
    let ran = place.run(&["preview", "--url", &other.url("postgres")]);
    assert!(ran.code == 2 && ran.err.contains("--url leads to the database"), "{ran:?}");
    let ran = Place::new().run(&["route"]);
    assert!(ran.code == 2 && ran.err.contains("--dry-run"), "{ran:?}");
}

#[test]
fn an_id_is_compared_as_the_type_of_its_column() {
    let place = ready();
    place.psql("UPDATE outbox SET id = '00000000-0000-0000-0000-0000000000ab' WHERE aggregate_id = 1");
    let upper = "00000000-0000-0000-0000-0000000000AB";
    assert_eq!(shown(&place.run(&["route", "--dry-run", "--json", "--id", upper])).len(), 1);
    let ran = place.run(&["route", "--dry-run", "--id", "17"]);
    assert!(ran.code == 2 && ran.err.contains("--id is not a valid value of the column \"id\""), "{ran:?}");
}

#[test]
fn a_view_as_outbox_is_refused() {
    let place = ready();
    place.psql("ALTER TABLE outbox RENAME TO events; CREATE VIEW outbox AS SELECT * FROM events");
    let ran = place.run(&["route", "--dry-run"]);
    assert!(
        ran.code == 1
            && ran.err.contains("which must be an ordinary or partitioned table")
            && !ran.err.contains("SELECT privilege"),
        "{ran:?}"
    );
}
