//! Names from the configuration are always quoted for Postgres, whatever they contain.

use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::place::{Place, psql};
use crate::support::router::Router;
use crate::support::settings::Settings;

/// Would end a quoted name, a literal, a dollar-quoted block, a line and a statement.
const HOSTILE: &str = "o\"; DROP TABLE witness; -- ' $$ \\ %s {} $1";

/// Quotes a name as the configuration does in `outbox.table`.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[tokio::test]
async fn identifiers_that_look_like_sql_are_names_in_every_command() {
    let place = Place::new();
    place.psql("CREATE TABLE witness (n int)");
    let role = format!("{}_{HOSTILE}", place.name);
    let settings = Settings::default()
        .set("postgres.url", place.url("postgres"))
        .set("postgres.slot", place.name.as_str())
        .set("postgres.publication", HOSTILE)
        .set("outbox.table", format!("{}.{}", quoted(&format!("s{HOSTILE}")), quoted(HOSTILE)))
        .set("outbox.columns.payload", HOSTILE)
        .set("outbox.columns.aggregate_id", format!("a{HOSTILE}"))
        .set("outbox.message_prefix", HOSTILE)
        .set("heartbeat.interval", "1s")
        .set("name", format!("{}{HOSTILE}", place.name))
        .set("delivery.positions_topic", format!("positions_{}", place.name))
        .set("kafka.'bootstrap.servers'", Kafka::shared().bootstrap)
        .set("route.topic", format!("{}.${{aggregate_type}}", place.name))
        .set("admin.listen", "127.0.0.1:0");

    let printed = settings.run(&["init", "--print-sql", "--role", &role]);
    assert_eq!(printed.code, 0, "{printed:?}");
    let script = place.folder().join("init.sql");
    std::fs::write(&script, &printed.out).unwrap();
    let ran = psql(&place.url("postgres"), &["-f", script.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let init = settings.run(&["init", "--role", &role]);
    assert!(init.code == 0 && init.out.contains("Nothing had to be changed"), "{init:?}");
    let check = settings.run(&["check"]);
    assert_eq!(check.code, 0, "{check:?}");

    let mut router = Router::active(&settings).await;
    let (schema, table) = (quoted(&format!("s{HOSTILE}")), quoted(HOSTILE));
    let (id, payload) = (quoted(&format!("a{HOSTILE}")), quoted(HOSTILE));
    place.psql(&format!(
        "INSERT INTO {schema}.{table} (aggregate_type, event_type, {id}, {payload}) VALUES ('order', 'x', 'a', '1')"
    ));
    let kafka = Kafka::shared();
    kafka.holds(&place.name, 1).await;
    eventually("a heartbeat returns", async || {
        router.assert_running();
        router.status()?["heartbeat"]["lag_seconds"].as_f64()
    })
    .await;
    router.stop().await;
    for arguments in [
        &["route", "--dry-run"][..],
        &["slot", "bookmark", "here"],
        &["slot", "list"],
        &["slot", "reset", "--to", "here", "--dry-run"],
        &["slot", "drop", "here", "--yes"],
    ] {
        let ran = settings.run(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    }
    // tail copies the slot before it checks the position
    let ran = settings.run(&["tail", "--since", "FFFF/0"]);
    assert!(ran.code == 1 && ran.err.contains("is past the end"), "{ran:?}");
    assert_eq!(place.psql("SELECT count(*) FROM witness").trim(), "0");
}

/// Names whose characters are restricted.
#[tokio::test]
async fn identifiers_that_are_invalid_exit_with_2_before_any_connection() {
    let settings = Settings::default()
        .set("postgres.url", "postgres://nobody@192.0.2.1/nowhere")
        .set("kafka.'bootstrap.servers'", "192.0.2.1:9092");
    for (key, value) in [
        ("outbox.table", "public.outbox\"; DROP TABLE x; --"),
        ("outbox.table", "public.outbox; DROP TABLE x"),
        ("postgres.slot", "s'; DROP TABLE x; --"),
        ("postgres.publication", "p\0x"),
        ("outbox.columns.payload", "p\0x"),
        ("outbox.message_prefix", "p\0x"),
        ("name", "n\nforged line"),
        ("delivery.positions_topic", "t; x"),
    ] {
        for arguments in
            [&["run"][..], &["check"], &["init"], &["init", "--print-sql"], &["init", "--print-acls"]]
        {
            let ran = settings.clone().set(key, value).run(arguments);
            assert!(ran.code == 2 && ran.err.contains(key), "{key} {value:?} {arguments:?}: {ran:?}");
        }
    }
}
