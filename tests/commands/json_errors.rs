//! A command that fails after `--json` prints why as JSON too: a code, a message, and the steps of the remedy.

use std::fs;

use serde_json::{Value, json};

use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::place::{Place, Ran};
use crate::support::process;
use crate::support::settings::Settings;

/// The object on standard output, which is alone there.
fn error(ran: &Ran, code: i32) -> Value {
    assert_eq!(ran.code, code, "{ran:?}");
    let error: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["effect", "error_code", "events", "message", "ways"]);
    assert!(error["ways"][0]["steps"][0]["text"].is_string(), "{error}");
    // for people
    assert!(ran.err.contains("error: "), "{ran:?}");
    error
}

#[test]
fn json_errors_of_exit_code_1_are_servers_that_refuse_or_are_away() {
    let place = Place::new().with("POSTGRES__URL", "postgres://u@127.0.0.1:1/shop");
    for arguments in [
        &["slot", "list", "--json"][..],
        &["dead-letters", "show", "--json"],
        &["preview", "--json"],
        &["tail", "--json"],
    ] {
        let error = error(&place.run(arguments), 1);
        assert_eq!(
            (&error["error_code"], &error["effect"]),
            (&json!("OBR-1007"), &json!("late")),
            "{arguments:?}"
        );
        assert!(error["message"].as_str().unwrap().contains("127.0.0.1:1"), "{error}");
    }
    let place = Place::new();
    let refused = error(&place.run(&["preview", "--json"]), 1);
    assert_eq!(refused["error_code"], "OBR-4101");
    assert_eq!(refused["message"], "the outbox table public.outbox does not exist in this database");
}

#[test]
fn json_errors_of_exit_code_2_are_usage_and_configuration() {
    let place = Place::new();
    let usage = error(&place.run(&["status", "--json", "--fast"]), 2);
    assert_eq!(usage["error_code"], "OBR-2001");
    assert_eq!(usage["message"], "unexpected argument '--fast' found");
    let usage = error(&place.run(&["route", "--json"]), 2);
    let message = "the following required arguments were not provided: --dry-run";
    assert_eq!((&usage["error_code"], &usage["message"]), (&json!("OBR-2001"), &json!(message)));
    let place = place.with("POSTGRES__SLOT", "Not-A-Slot");
    assert_eq!(error(&place.run(&["check", "--json"]), 2)["error_code"], "OBR-2002");
    let missing = ["import-debezium", "/nowhere/connector.json", "--json"];
    assert_eq!(error(&place.run(&missing), 2)["error_code"], "OBR-2008");
    let help = place.run(&["status", "--json", "--help"]);
    assert!(help.code == 0 && !help.out.contains("error_code"), "{help:?}");
}

/// Commands that complete and find something explain their exit code in the same way.
#[test]
fn json_errors_of_findings() {
    let place = Place::new().with("ADMIN__LISTEN", "127.0.0.1:1");
    let document = |arguments: &[&str]| -> Value {
        let ran = place.run(arguments);
        assert_eq!(ran.code, 1, "{ran:?}");
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
    };
    assert_eq!(document(&["status", "--json"])["error_code"], "OBR-2011");
    let file = place.folder().join("connector.json");
    let text = r#"{"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "database.hostname": "db",
        "database.dbname": "shop", "database.user": "r", "topic.prefix": "shop", "transforms": "outbox,other",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter", "transforms.other.type": "a.Filter"}"#;
    fs::write(&file, text).unwrap();
    let imported = document(&["import-debezium", file.to_str().unwrap(), "--json"]);
    assert_eq!(imported["error_code"], "OBR-2009");
    let mut command = place.command(&["preview", "--stdin", "--json"]);
    let rows = place.folder().join("rows.jsonl");
    let event =
        r#"{"id": "1", "aggregate_type": "a b", "aggregate_id": "1", "event_type": "made", "payload": null}"#;
    fs::write(&rows, format!("{event}\nno json\n")).unwrap();
    let child = process::start(command.stdin(fs::File::open(rows).unwrap()));
    let ran = Ran::of(child.wait_with_output().unwrap());
    let shown: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!((&shown[0]["error_code"], &shown[1]["error_code"]), (&json!("OBR-6001"), &json!("OBR-6008")));
}

#[tokio::test]
async fn json_errors_of_exit_code_3_are_about_events_that_could_be_lost() {
    let (outbox, other) = (Outbox::new().await, Outbox::new().await);
    let settings = Settings::new(&other, &Kafka::shared()).set("postgres.slot", outbox.name.as_str());
    let lost = error(&settings.run(&["slot", "bookmark", "b", "--json"]), 3);
    assert_eq!((&lost["error_code"], &lost["effect"]), (&json!("OBR-3003"), &json!("lost")));
}
