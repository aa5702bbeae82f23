//! `check` reports each problem with its level, a sentence and a remedy.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;

use outbox_router::error::Remedy;
use pg_logical::Environment;
use pg_logical::connect::Startup;
use pg_logical::conninfo::ConnInfo;
use pg_logical::session::Session;
use serde_json::Value;

use crate::situations::page::keep;
use crate::support::eventually::eventually;
use crate::support::kafka::Kafka;
use crate::support::outbox::{Outbox, connect};
use crate::support::place::{Place, Ran};
use crate::support::pooler::pooler;
use crate::support::process;
use crate::support::router::Router;
use crate::support::settings::Settings;

/// The findings of `check --json`.
pub(crate) struct Found {
    pub(crate) code: i32,
    list: Vec<Value>,
}

impl Found {
    pub(crate) fn at(place: &Place) -> Self {
        Self::in_output(place.run(&["check", "--json"]))
    }

    pub(crate) async fn with(settings: &Settings) -> Self {
        Self::in_output(settings.run_async(&["check", "--json"]).await)
    }

    pub(crate) fn in_output(ran: Ran) -> Self {
        Found { code: ran.code, list: serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}")) }
    }

    /// The findings of one check as lines: level, sentence and remedy.
    pub(crate) fn of(&self, check: &str) -> String {
        let lines = self.list.iter().filter(|finding| finding["check"] == check).map(|finding| {
            let remedy =
                finding["remedy"].as_str().map(|remedy| format!("\n-> {remedy}")).unwrap_or_default();
            format!("{}: {}{remedy}\n", finding["level"].as_str().unwrap(), finding["what"].as_str().unwrap())
        });
        lines.collect()
    }

    /// Keeps the error of this check for docs/errors.
    pub(crate) fn shown(&self, check: &str, known: &[(&str, &str)]) {
        let error = |finding: &&Value| finding["check"] == check && finding["level"] == "error";
        let finding =
            self.list.iter().find(error).unwrap_or_else(|| panic!("no error of {check}: {:?}", self.list));
        let text = |key: &str| finding[key].as_str().unwrap();
        let remedy: Remedy = serde_json::from_value(finding["ways"].clone()).unwrap();
        let message = format!(
            "{}: {}\n  Events: {}\n{}",
            text("code"),
            text("what"),
            text("events"),
            remedy.in_lines()
        );
        keep(&message, known);
    }

    /// The errors, a line each.
    pub(crate) fn errors(&self) -> String {
        let errors = self.list.iter().filter(|finding| finding["level"] == "error");
        errors
            .map(|finding| format!("{} {}: {}\n", finding["code"], finding["check"], finding["what"]))
            .collect()
    }

    /// Asserts that exactly these checks found errors, and that the exit code agrees.
    #[track_caller]
    pub(crate) fn assert_errors(&self, expected: &[&str]) {
        let errors = self.checks("error");
        assert_eq!(errors, expected.iter().copied().collect(), "{:?}", self.list);
        assert_eq!(self.code, i32::from(!expected.is_empty()), "{:?}", self.list);
    }

    /// The checks that found something of this level.
    pub(crate) fn checks(&self, level: &str) -> BTreeSet<&str> {
        let of_level = self.list.iter().filter(|finding| finding["level"] == level);
        of_level.map(|finding| finding["check"].as_str().unwrap()).collect()
    }
}

/// A place in which `init` was run.
pub(super) fn ready() -> Place {
    let place = Place::new();
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    place
}

#[test]
fn no_errors_after_init() {
    let place = ready();
    let found = Found::at(&place);
    found.assert_errors(&[]);
    // the test servers have one broker, no WAL limit, and a superuser as role
    let expected = ["max_slot_wal_keep_size", "replication_factor", "role"];
    assert_eq!(found.checks("warning"), BTreeSet::from(expected));
    let text = place.run(&["check"]);
    assert!(text.out.ends_with("3 warnings, no errors.\n"), "{text:?}");
    assert!(!text.out.contains('\u{1b}'), "colours without a terminal");
}

#[test]
fn the_keys_of_the_json_are_stable() {
    let found = Found::at(&ready());
    for finding in &found.list {
        let keys: Vec<&String> = finding.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["check", "code", "effect", "events", "level", "remedy", "ways", "what"]);
        let bad = finding["level"] == "warning" || finding["level"] == "error";
        assert_eq!(finding["remedy"].is_string(), bad, "{finding}");
    }
}

#[test]
fn everything_is_missing() {
    let place = Place::new();
    let found = Found::at(&place);
    assert_eq!(found.code, 1);
    assert_eq!(found.checks("error"), BTreeSet::from(["slot"]));
    insta::assert_snapshot!(place.masked(&found.of("slot")));
}

#[test]
fn unreachable_kafka_does_not_hide_findings_about_postgres() {
    let place = ready().with("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1");
    let found = Found::at(&place);
    found.assert_errors(&["kafka_connection"]);
    assert!(found.of("kafka_connection").contains("Connection refused"), "{:?}", found.list);
    assert!(found.of("slot").starts_with("ok"), "{:?}", found.list);
}

#[test]
fn unreachable_postgres_does_not_hide_findings_about_kafka() {
    let place = Place::new().with("POSTGRES__URL", "postgres://u:hunter2@127.0.0.1:1/shop");
    let found = Found::at(&place);
    found.assert_errors(&["postgres_connection"]);
    insta::assert_snapshot!(found.of("postgres_connection"));
    assert!(found.of("kafka_connection").starts_with("ok"), "{:?}", found.list);
    assert!(!format!("{:?}", found.list).contains("hunter2"));
}

#[tokio::test]
async fn postgres_that_ends_the_session_is_not_reported_as_unreachable() {
    let place = ready();
    let client = connect(&place.url("postgres")).await.unwrap();
    client.batch_execute("BEGIN; LOCK TABLE outbox").await.unwrap();
    let checking = tokio::task::spawn_blocking(move || Found::at(&place));
    let end =
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'outbox'::regclass AND NOT granted";
    eventually("check waits for the table", async || client.query(end, &[]).await.unwrap().pop()).await;
    let found = checking.await.unwrap();
    found.assert_errors(&["postgres_connection"]);
    assert!(found.of("postgres_connection").starts_with("ok: Postgres "), "{:?}", found.list);
    assert!(found.of("postgres_connection").contains("-> After connecting, Postgres"), "{:?}", found.list);
    assert!(found.of("kafka_connection").starts_with("ok"), "{:?}", found.list);
}

#[test]
fn publications_that_miss_events() {
    for (sql, name) in [
        ("ALTER PUBLICATION {} SET (publish = 'update')", "without_inserts"),
        (
            "DROP TABLE outbox; CREATE TABLE other (i int); CREATE TABLE outbox (id uuid, aggregate_type text, \
          aggregate_id text NOT NULL, event_type text, payload jsonb)",
            "another_table",
        ),
        (
            "DROP PUBLICATION {}; ALTER TABLE outbox SET UNLOGGED; \
             CREATE PUBLICATION {} FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root)",
            "unlogged",
        ),
        (
            "DROP TABLE outbox; CREATE TABLE outbox (id uuid, aggregate_type text, aggregate_id text NOT NULL, \
          event_type text, payload jsonb) PARTITION BY LIST (aggregate_type); ALTER PUBLICATION {} ADD TABLE outbox; \
          ALTER PUBLICATION {} SET (publish_via_partition_root = false)",
            "names_of_partitions",
        ),
    ] {
        let place = ready();
        place.psql(&sql.replace("{}", &place.name));
        let found = Found::at(&place);
        assert_eq!((found.code, found.checks("error")), (1, BTreeSet::from(["publication"])), "{name}");
        insta::assert_snapshot!(format!("publication_{name}"), place.masked(&found.of("publication")));
    }
}

#[test]
fn publications_that_work_but_are_a_risk() {
    let place = ready();
    if place.server_version() < 150_000 {
        return;
    }
    place.psql(&format!(
        "ALTER PUBLICATION {0} SET TABLE outbox WHERE (aggregate_type <> 'draft'); \
         ALTER PUBLICATION {0} SET (publish = 'insert, update')",
        place.name
    ));
    let found = Found::at(&place);
    assert_eq!(found.code, 0, "{:?}", found.list);
    let both = found.of("publication_row_filter") + &found.of("publication_content");
    insta::assert_snapshot!(place.masked(&both));
}

#[test]
fn column_lists_without_required_or_optional_columns() {
    let place = ready();
    if place.server_version() < 150_000 {
        return;
    }
    let list = |columns: &str| {
        place.psql(&format!("ALTER PUBLICATION {} SET TABLE outbox ({columns})", place.name));
        let found = Found::at(&place);
        (found.code, place.masked(&found.of("publication_columns")))
    };
    let (code, text) = list("id, aggregate_type, aggregate_id, event_type");
    assert_eq!(code, 1);
    insta::assert_snapshot!("column_list_without_payload", text);
    let (code, text) = list("id, aggregate_type, aggregate_id, event_type, payload, created_at");
    assert_eq!(code, 0);
    insta::assert_snapshot!("column_list_without_headers", text);
}

const ROW: &str =
    "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'placed')";

#[test]
fn columns_that_are_missing_or_of_the_wrong_type() {
    let place = ready();
    place.psql("ALTER TABLE outbox DROP COLUMN payload, DROP COLUMN headers, ADD COLUMN headers int");
    // rows of before could be sent
    let found = Found::at(&place);
    found.assert_errors(&[]);
    assert!(found.of("columns").contains("rows written since then will stop the router"));
    place.psql(ROW);
    let found = Found::at(&place);
    found.assert_errors(&["columns"]);
    insta::assert_snapshot!(found.of("columns"));
}

/// Postgres publishes generated columns from version 18 on, and only on request.
#[test]
fn generated_columns_count_if_they_are_published() {
    let place = ready();
    place
        .psql("ALTER TABLE outbox ADD COLUMN region text GENERATED ALWAYS AS (lower(aggregate_type)) STORED");
    let topic = format!("{}.${{region}}", place.name);
    let place = place.with("ROUTE__TOPIC", &topic);
    place.psql(ROW);
    let found = Found::at(&place);
    found.assert_errors(&["columns"]);
    insta::assert_snapshot!(found.of("columns"));
    if place.server_version() >= 180_000 {
        let name = &place.name;
        for sql in [
            "ALTER PUBLICATION {} SET (publish_generated_columns = stored)",
            "ALTER PUBLICATION {} SET (publish_generated_columns = none); ALTER PUBLICATION {} SET TABLE outbox \
             (id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, region)",
        ] {
            place.psql(&sql.replace("{}", name));
            let found = Found::at(&place);
            assert_eq!(found.checks("error"), BTreeSet::new(), "{sql}: {:?}", found.list);
        }
    }
}

#[test]
fn nullable_aggregate_id_and_topic_per_event() {
    let place = ready();
    place.psql("ALTER TABLE outbox ALTER COLUMN aggregate_id DROP NOT NULL");
    let place = {
        let topic = format!("{}.${{id}}", place.name);
        place.with("ROUTE__TOPIC", &topic)
    };
    let found = Found::at(&place);
    assert_eq!(found.code, 0, "{:?}", found.list);
    insta::assert_snapshot!(place.masked(&(found.of("aggregate_id") + &found.of("topic_template"))));
}

#[test]
fn a_role_that_may_not_replicate() {
    let place = ready();
    let poor = format!("{}_poor", place.name);
    place.psql(&format!("CREATE ROLE {poor} LOGIN"));
    let place = {
        let url = place.url(&poor);
        place.with("POSTGRES__URL", &url)
    };
    let found = Found::at(&place);
    found.assert_errors(&["role"]);
    insta::assert_snapshot!(place.masked(&found.of("role")));
}

#[test]
fn slot_of_another_plugin() {
    let place = Place::new();
    place.psql(&format!("SELECT pg_create_logical_replication_slot('{}', 'test_decoding')", place.name));
    insta::assert_snapshot!(place.masked(&Found::at(&place).of("slot")));
}

#[tokio::test]
async fn topics_that_block_or_lose_events() {
    let place = ready();
    place.psql("ALTER TABLE outbox ALTER COLUMN aggregate_id DROP NOT NULL");
    place.psql(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'a', 'b', 'c', to_jsonb(repeat('x', 5000))",
    );
    let kafka = Kafka::shared();
    kafka.create_topic(&format!("{}.compacted", place.name), 1, &[("cleanup.policy", "compact")]).await;
    kafka.create_topic(&format!("{}.stuck", place.name), 1, &[("min.insync.replicas", "2")]).await;
    kafka.create_topic(&format!("{}.small", place.name), 1, &[("max.message.bytes", "2000")]).await;
    kafka.create_topic(&format!("{}.short", place.name), 1, &[("retention.ms", "600000")]).await;
    let found = Found::at(&place);
    assert_eq!(found.code, 1);
    assert_eq!(found.checks("error"), BTreeSet::from(["message_size"]));
    let checks =
        ["cleanup_policy", "min_insync_replicas", "message_size", "retention", "row_sizes", "topics"];
    let text: String = checks.iter().map(|check| found.of(check)).collect();
    insta::assert_snapshot!(place.masked(&text));
}

#[test]
fn a_fixed_topic_that_is_not_created() {
    let place = ready();
    let topic = format!("{}-orders", place.name);
    let place = place.with("ROUTE__TOPIC", &topic);
    assert!(Found::at(&place).of("topics").contains("will be created"));
    let place = place.with("TOPICS__CREATE", "false");
    let found = Found::at(&place);
    found.assert_errors(&["positions_topic", "topics"]);
    insta::assert_snapshot!(place.masked(&found.of("topics")));
}

#[test]
fn more_replicas_than_brokers() {
    let place = ready().with("TOPICS__REPLICATION_FACTOR", "3");
    let found = Found::at(&place);
    assert_eq!(found.code, 1);
    insta::assert_snapshot!(place.masked(&(found.of("topic_creation") + &found.of("replication_factor"))));
}

#[test]
fn a_pooler_in_the_url() {
    let place = ready();
    let url = place.url("postgres");
    let (_, rest) = url.split_once('@').unwrap();
    let (host, database) = rest.split_once('/').unwrap();
    let port = pooler(host.to_owned(), "replication");
    let through = format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable");
    let place = place.with("POSTGRES__URL", &through);
    let found = Found::at(&place);
    found.assert_errors(&["replication_connection"]);
    insta::assert_snapshot!(
        place.masked(&found.of("replication_connection")).replace(&port.to_string(), "PORT")
    );
}

#[test]
fn warnings_of_the_configuration_are_findings() {
    let mut place = ready();
    let file = place.folder().join("outbox-router.toml");
    let url = place.url("postgres:hunter2");
    std::fs::write(&file, format!("[postgres]\nurl = \"{url}\"\n")).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    place.unset("POSTGRES__URL");
    let found = Found::at(&place);
    assert_eq!(found.code, 0, "{:?}", found.list);
    insta::assert_snapshot!(place.masked(&found.of("configuration")));
}

#[test]
fn an_invalid_configuration_exits_with_2() {
    assert_eq!(Place::new().with("POSTGRES__SLOT", "Not A Slot").run(&["check"]).code, 2);
    assert_eq!(Place::new().with("ROUTE__TOPIC", "a b").run(&["check"]).code, 2);
}

/// As a connector does that is only paused.
#[tokio::test]
async fn the_slot_has_a_reader_that_is_not_a_router() {
    let place = ready();
    let conninfo = ConnInfo::parse(&place.url("postgres"), &Environment::empty()).unwrap();
    let startup = Startup { replication: true, application_name: "Debezium Streaming", ..Startup::default() };
    let mut session = Session::connect(&conninfo, &startup).await.unwrap();
    let sql = format!(
        "START_REPLICATION SLOT {0} LOGICAL 0/0 (proto_version '1', publication_names '{0}')",
        place.name
    );
    // it does not expect a stream, which has begun then
    session.query(&sql).await.unwrap_err();
    let found = Found::at(&place);
    found.assert_errors(&[]);
    let text = found.of("slot");
    assert!(text.starts_with("warning: ") && text.contains("application_name Debezium Streaming"), "{text}");
    assert!(text.contains("is not a router\n-> Stop it"), "{text}");

    let mut router = process::start(&mut place.command(&["run"]));
    let mut lines = BufReader::new(router.stderr.take().unwrap()).lines();
    let waits = lines.find(|line| line.as_ref().unwrap().contains("waiting for the slot")).unwrap().unwrap();
    router.kill().unwrap();
    router.wait().unwrap();
    assert!(
        waits.contains("Debezium Streaming") && waits.contains("which is not a router: stop it"),
        "{waits}"
    );
    drop(session);
}

/// Each bookmark takes a slot.
#[test]
fn more_bookmarks_than_slots() {
    let place = ready().with("BOOKMARKS__EVERY", "1h").with("BOOKMARKS__KEEP", "1000");
    let found = Found::at(&place);
    found.assert_errors(&[]);
    assert!(found.of("bookmarks").contains("1002 slots"), "{:?}", found.list);
}

/// The limit is for the statements of applications.
#[test]
fn commands_ignore_a_statement_timeout() {
    let place = Place::new();
    place.psql(&format!("ALTER DATABASE {} SET statement_timeout = 1", place.name));
    assert_eq!(place.run(&["init"]).code, 0);
    let found = Found::at(&place);
    found.assert_errors(&[]);
}

/// A router that was renamed does not see the events that it parked under its old name.
#[test]
fn events_that_were_parked_under_another_name() {
    let place = Place::new().with("DEAD_LETTERS__POLICY", "park");
    let ran = place.run(&["init"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let found = Found::at(&place);
    assert_eq!(found.of("dead_letters"), "ok: the router can park events, and none are parked\n");
    place.psql(
        "INSERT INTO outbox_router.dead_letters (router, final_lsn, change, xid, committed_at, source, reason, detail, event) \
         SELECT CASE n WHEN 3 THEN 'shop' ELSE E'old\\x1b' || n END, '0/1', n, 1, now(), 'public.outbox', 'topic', '', '{}' \
         FROM generate_series(1, 3) n",
    );
    let found = Found::at(&place);
    found.assert_errors(&[]);
    insta::assert_snapshot!(place.masked(&found.of("dead_letters")));
    place.psql(
        "INSERT INTO outbox_router.dead_letters (router, final_lsn, change, xid, committed_at, source, reason, detail, event) \
         SELECT n, '0/1', 1, 1, now(), 'public.outbox', 'topic', '', '{}' FROM generate_series(1, 9) n",
    );
    let of_many = Found::at(&place).of("dead_letters");
    assert!(of_many.contains("1 (1), 2 (1), 3 (1), 4 (1), 5 (1), others\n"), "{of_many}");
}

#[tokio::test]
async fn another_router_at_the_address_of_the_admin_endpoint() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let settings = settings.set("admin.listen", format!("127.0.0.1:{}", router.admin_port().unwrap()));
    assert_eq!(Found::with(&settings).await.of("admin_endpoint"), "", "it is this router's own");
    let found = Found::with(&settings.set("name", "other")).await.of("admin_endpoint");
    assert!(found.starts_with("warning: the router ") && found.contains("cannot run beside it"), "{found}");
}
