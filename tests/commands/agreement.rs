//! `check` reports an error where `run` would refuse, with the same code, and nowhere else: a router has run, things are damaged at
//! random, and both commands are asked.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::check::Found;
use crate::support::kafka::Kafka;
use crate::support::outbox::Outbox;
use crate::support::router::{Ended, Router};
use crate::support::seed;
use crate::support::settings::{Settings, positions_topic};

/// Something that may be wrong, or only looks as if it were.
enum Damage {
    /// Statements, with `{}` for the slot's name. They may fail, since damages can exclude each other.
    Sql(&'static str),
    /// A setting, with `{}` for the beginning of the topics' names.
    Setting(&'static str, &'static str),
    /// A list of one string.
    List(&'static str, &'static str),
    /// A setting that is a number or a truth value.
    Other(&'static str, &'static str),
    /// A setting of the positions topic.
    Positions(&'static str, &'static str),
}

use Damage::{List, Other, Positions, Setting, Sql};

const DAMAGES: &[(&str, Damage)] = &[
    ("no slot", Sql("SELECT pg_drop_replication_slot('{}')")),
    (
        "a slot of another plugin",
        Sql(
            "SELECT pg_drop_replication_slot('{}'); SELECT pg_create_logical_replication_slot('{}', 'test_decoding')",
        ),
    ),
    (
        "a slot that was created again",
        Sql(
            "SELECT pg_drop_replication_slot('{}'); SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
        ),
    ),
    ("a slot that was moved", Sql("SELECT pg_replication_slot_advance('{}', pg_current_wal_insert_lsn())")),
    ("no publication", Sql("DROP PUBLICATION outbox_router")),
    (
        "a publication that was created again",
        Sql("DROP PUBLICATION outbox_router; CREATE PUBLICATION outbox_router FOR TABLE outbox \
         WITH (publish = 'insert', publish_via_partition_root = true)"),
    ),
    ("a publication without inserts", Sql("ALTER PUBLICATION outbox_router SET (publish = 'update')")),
    (
        "a publication that publishes more",
        Sql("ALTER PUBLICATION outbox_router SET (publish = 'insert, delete')"),
    ),
    ("a publication without the table", Sql("ALTER PUBLICATION outbox_router DROP TABLE outbox")),
    (
        "a publication of all tables",
        Sql(
            "DROP PUBLICATION outbox_router; CREATE PUBLICATION outbox_router FOR ALL TABLES WITH (publish = 'insert')",
        ),
    ),
    (
        "an unlogged table",
        Sql("DROP PUBLICATION outbox_router; ALTER TABLE outbox SET UNLOGGED; \
         CREATE PUBLICATION outbox_router FOR ALL TABLES WITH (publish = 'insert')"),
    ),
    ("no table", Sql("DROP TABLE outbox")),
    ("a view", Sql("ALTER TABLE outbox RENAME TO events; CREATE VIEW outbox AS SELECT * FROM events")),
    ("no primary key", Sql("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey")),
    ("another table in the configuration", Setting("outbox.table", "public.orders")),
    ("another publication in the configuration", Setting("postgres.publication", "orders")),
    ("a column that the table lacks", Setting("outbox.columns.payload", "body")),
    ("a topic of a column that the table lacks", Setting("route.topic", "{}.${region}")),
    ("topics that are not allowed", List("topics.allow", "orders")),
    ("a positions topic that is an event topic", Setting("delivery.positions_topic", "{}.order")),
    ("no positions topic", Setting("delivery.positions_topic", "")),
    ("a topic that nobody creates", Other("topics.create", "false")),
    ("a positions topic that deletes", Positions("cleanup.policy", "delete")),
    ("a positions topic that compacts and deletes", Positions("cleanup.policy", "compact,delete")),
    ("a positions topic for small records", Positions("max.message.bytes", "100")),
    ("no column for payloads", Sql("ALTER TABLE outbox DROP COLUMN payload")),
    ("another name of the column for payloads", Sql("ALTER TABLE outbox RENAME payload TO body")),
    ("another name of a column that rows need", Sql("ALTER TABLE outbox RENAME aggregate_type TO kind")),
    ("a column that rows need in another place", Sql("ALTER TABLE outbox DROP COLUMN aggregate_type")),
    ("no column for headers", Sql("ALTER TABLE outbox DROP COLUMN headers")),
    ("headers of another type", Sql("ALTER TABLE outbox ALTER headers TYPE integer[] USING NULL")),
    (
        "times of another type",
        Sql("ALTER TABLE outbox ALTER created_at DROP DEFAULT, ALTER created_at TYPE text"),
    ),
    (
        "a publication without the column for payloads",
        Sql(
            "ALTER PUBLICATION outbox_router SET TABLE outbox (id, aggregate_type, aggregate_id, event_type)",
        ),
    ),
    (
        "a publication of other rows",
        Sql("ALTER PUBLICATION outbox_router SET TABLE outbox WHERE (aggregate_type = 'other')"),
    ),
    ("parking without a table", Setting("dead_letters.policy", "park")),
    ("exactly-once delivery", Setting("delivery.mode", "exactly-once")),
    ("two shards", Other("shards.count", "2")),
];

impl Damage {
    async fn apply(&self, outbox: &Outbox, settings: Settings) -> Settings {
        let named = |text: &str| text.replace("{}", &outbox.name);
        match self {
            Sql(sql) => {
                let _ = outbox.client().await.batch_execute(&named(sql)).await;
                settings
            }
            Setting(key, value) => settings.set(key, named(value)),
            Positions(name, value) => {
                Kafka::shared().alter_topic(&positions_topic(outbox), &[(name, value)]).await;
                settings
            }
            List(key, value) => settings.set(key, vec![named(value)]),
            Other(key, value) => settings.set(key, value.parse::<toml::Value>().unwrap()),
        }
    }
}

/// Applies damages to a set-up that has worked. Returns the checks that report errors, and how a router ends that is started then;
/// `None` if it goes on.
async fn check_and_run(damages: &[&(&str, Damage)]) -> (String, Option<Ended>) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let mut settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    outbox.insert("order", "1", "{}").await;
    outbox.all_confirmed().await;
    router.stop().await;
    for (_, damage) in damages {
        settings = damage.apply(&outbox, settings).await;
    }
    // something to send or, without a table, at least something to confirm
    let client = outbox.client().await;
    let _ =
        client.batch_execute("INSERT INTO outbox (aggregate_type, aggregate_id) VALUES ('order', '1')").await;
    outbox.execute("SELECT pg_logical_emit_message(true, 'nobody', '')").await;
    let checked = settings.run_async(&["check", "--json"]).await;
    // a faulty configuration ends both commands before they ask a server
    let errors = if checked.code == 2 { checked.err } else { Found::in_output(checked).errors() };
    let lsn = outbox.lsn().await;
    let router = Router::start(&settings);
    let ended = tokio::select! {
        ended = router.ended() => Some(ended),
        () = outbox.confirmed_past(lsn) => None,
    };
    (errors, ended)
}

/// What the two commands disagree about; empty if nothing.
async fn disagreement(damages: &[&(&str, Damage)]) -> String {
    let names: Vec<&str> = damages.iter().map(|(name, _)| *name).collect();
    match check_and_run(damages).await {
        (errors, Some(ended)) if !errors.contains(ended.code()) => {
            format!("{names:?}: check: {errors}; run: {}\n", ended.message())
        }
        (errors, None) if !errors.is_empty() => format!("{names:?}: run goes on; check: {errors}"),
        _ => String::new(),
    }
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn check_and_run_agree_about_each_damage() {
    let mut found = String::new();
    for damage in DAMAGES {
        found += &disagreement(&[damage]).await;
    }
    assert!(found.is_empty(), "{found}");
}

#[tokio::test]
#[ignore = "runs in scripts/test --full"]
async fn check_and_run_agree_about_damages_at_random() {
    let mut random = seed::random();
    let mut found = String::new();
    for _ in 0..12 {
        let count = random.random_range(2..=3);
        let damages: Vec<_> = DAMAGES.choose_multiple(&mut random, count).collect();
        found += &disagreement(&damages).await;
    }
    assert!(found.is_empty(), "{found}");
}
