//! The outbox table is altered while the router runs.

use crate::support::kafka::{Kafka, Record};
use crate::support::outbox::Outbox;
use crate::support::router::{Ended, Router};
use crate::support::sentences::Sentences;
use crate::support::settings::Settings;
use crate::support::shared;

struct Setup {
    outbox: Outbox,
    kafka: Kafka,
    router: Router,
}

impl Setup {
    async fn new() -> Self {
        let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
        let router = Router::active(&Settings::new(&outbox, &kafka)).await;
        outbox.insert("order", "a", "{\"n\": 1}").await;
        kafka.holds(&outbox.name, 1).await;
        Setup { outbox, kafka, router }
    }

    /// Waits for `count` records, stops the router, and returns the records' texts in order.
    async fn texts(self, count: usize) -> Vec<String> {
        let records = self.kafka.records_when(&self.outbox.name, count).await;
        self.outbox.all_confirmed().await;
        self.router.stop().await;
        texts(&records)
    }
}

fn texts(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.text().to_owned()).collect()
}

#[tokio::test]
async fn columns_that_are_added_and_dropped_have_no_effect() {
    let setup = Setup::new().await;
    setup.outbox.execute("ALTER TABLE outbox ADD COLUMN first text DEFAULT 'x'").await;
    setup.outbox.insert("order", "a", "{\"n\": 2}").await;
    setup.outbox.execute("ALTER TABLE outbox DROP COLUMN headers, DROP COLUMN created_at").await;
    setup.outbox.insert("order", "a", "{\"n\": 3}").await;
    setup.outbox.execute("ALTER TABLE outbox DROP COLUMN first").await;
    setup.outbox.insert("order", "a", "{\"n\": 4}").await;
    assert_eq!(setup.texts(4).await, ["{\"n\": 1}", "{\"n\": 2}", "{\"n\": 3}", "{\"n\": 4}"]);
}

/// A row is read with the columns that the table had when it was inserted, even if a transaction alters the table between two
/// rows.
#[tokio::test]
async fn columns_of_a_row_are_those_at_its_insert() {
    let setup = Setup::new().await;
    let insert = |n| {
        format!("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '{n}');")
    };
    let altered = "ALTER TABLE outbox DROP COLUMN headers; ALTER TABLE outbox ADD COLUMN more int DEFAULT 7;";
    setup.outbox.execute(&[&insert(2), altered, &insert(3)].concat()).await;
    assert_eq!(setup.texts(3).await, ["{\"n\": 1}", "2", "3"]);
}

#[tokio::test]
async fn columns_that_change_their_type_are_read_by_their_new_type() {
    let setup = Setup::new().await;
    setup.outbox.execute("ALTER TABLE outbox ALTER payload TYPE json USING '{ }'").await;
    setup
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '[ 2]')")
        .await;
    setup.outbox.execute("ALTER TABLE outbox ALTER payload TYPE bytea USING ''").await;
    setup
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', 'three')")
        .await;
    setup
        .outbox
        .execute("ALTER TABLE outbox ALTER aggregate_type TYPE varchar(9), ALTER event_type TYPE char(9)")
        .await;
    setup
        .outbox
        .execute("INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', 'four')")
        .await;
    assert_eq!(setup.texts(4).await, ["{\"n\": 1}", "[ 2]", "three", "four"]);
}

/// Alterations, each with the values of the row that is inserted after it. The payload is its number.
const ALTERATIONS: [(&str, &str); 10] = [
    ("SELECT", "'a', '{\"n\": 2}'"),
    // rewrites the table
    ("ALTER TABLE outbox ADD COLUMN stamp timestamptz DEFAULT clock_timestamp()", "'a', '{\"n\": 3}'"),
    ("ALTER TABLE outbox DROP COLUMN payload, ADD COLUMN payload text", "'a', ' {\"n\":4} '"),
    (
        "ALTER TABLE outbox DROP COLUMN aggregate_id; ALTER TABLE outbox ADD COLUMN aggregate_id text",
        "'b', '5'",
    ),
    ("ALTER TABLE outbox ALTER payload TYPE bytea USING convert_to(payload, 'UTF8')", "'b', '6'"),
    ("ALTER TABLE outbox ALTER aggregate_id TYPE bigint USING ascii(aggregate_id)", "-7, '7'"),
    ("ALTER TABLE outbox RENAME payload TO body; ALTER TABLE outbox RENAME body TO payload", "7, '8'"),
    ("ALTER TABLE outbox RENAME event_type TO kind; ALTER TABLE outbox RENAME stamp TO event_type", "7, '9'"),
    ("ALTER TABLE outbox DROP COLUMN headers", "7, '10'"),
    ("ALTER TABLE outbox DROP COLUMN created_at", "7, NULL"),
];

fn alterations() -> String {
    let statement = |(alteration, values): (&str, &str)| {
        format!(
            "{alteration}; INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ('order', {values}); "
        )
    };
    ALTERATIONS.map(statement).concat()
}

/// The records are the same in one transaction or many, and while the router runs or before it starts.
#[tokio::test]
async fn columns_altered_in_every_way_that_keeps_their_names_are_read() {
    for backlog in [false, true] {
        for one_transaction in [false, true] {
            let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
            outbox.execute("ALTER TABLE outbox ALTER event_type DROP NOT NULL").await;
            let settings = Settings::new(&outbox, &kafka).set("topics.partitions", 1);
            let running = if backlog { None } else { Some(Router::active(&settings).await) };
            if one_transaction {
                outbox.execute(&alterations()).await;
            } else {
                for statement in alterations().split_inclusive(';') {
                    outbox.execute(statement).await;
                }
            }
            let router = running.unwrap_or_else(|| Router::start(&settings));
            outbox.all_confirmed().await;
            let ended = router.stop().await;
            let records = kafka.records(&outbox.name).await;
            let seen: Vec<_> = records
                .iter()
                .map(|record| (record.key().unwrap(), record.value.as_deref().map(String::from_utf8_lossy)))
                .map(|(key, value)| (key.to_owned(), value.map(|value| value.into_owned())))
                .collect();
            let row = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
            let expected = [
                row("a", "{\"n\": 2}"),
                row("a", "{\"n\": 3}"),
                row("a", " {\"n\":4} "),
                row("b", "5"),
                row("b", "6"),
                row("-7", "7"),
                row("7", "8"),
                row("7", "9"),
                row("7", "10"),
                ("7".to_owned(), None),
            ];
            assert_eq!(
                seen, expected,
                "backlog: {backlog}, one transaction: {one_transaction}\n{}",
                ended.log
            );
        }
    }
}

/// A custom table: every column has another name, one is quoted, two are missing, one serves two purposes, and the topic is built
/// from further columns.
#[tokio::test]
async fn columns_with_custom_names_select_the_topic() {
    let table = "CREATE TABLE outbox (\"Nr\" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, region text, \
                 tier smallint, customer uuid, kind varchar(40), body text)";
    let (outbox, kafka) = (Outbox::with_table(shared::postgres(), table).await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka)
        .set("outbox.columns.id", "Nr")
        .set("outbox.columns.aggregate_type", "kind")
        .set("outbox.columns.aggregate_id", "customer")
        .set("outbox.columns.event_type", "kind")
        .set("outbox.columns.payload", "body")
        .set("outbox.columns.headers", false)
        .set("outbox.columns.created_at", false)
        .set("route.topic", outbox.topic("${region}-${tier}.${event_type}"));
    let router = Router::active(&settings).await;
    let customer = "0b0e3f6c-9a8b-4c5d-8e7f-001122334455";
    for (region, tier, kind) in
        [("eu", 1, "placed"), ("us", 2, "placed"), ("eu", 1, "paid"), ("eu", 1, "placed")]
    {
        outbox
            .execute(&format!(
                "INSERT INTO outbox (region, tier, customer, kind, body) \
                 VALUES ('{region}', {tier}, '{customer}', '{kind}', 'the body')"
            ))
            .await;
    }
    let records = kafka.records_when(&outbox.name, 4).await;
    router.stop().await;
    let seen: Vec<_> = records.iter().map(|record| (record.topic.as_str(), record.id())).collect();
    let topic = |name: &str| outbox.topic(name);
    let (paid, placed, other) = (topic("eu-1.paid"), topic("eu-1.placed"), topic("us-2.placed"));
    assert_eq!(seen, [(paid.as_str(), "3"), (placed.as_str(), "1"), (&placed, "4"), (&other, "2")]);
    for record in records {
        assert_eq!((record.key(), record.text(), record.headers.len()), (Some(customer), "the body", 2));
        assert!(record.topic.ends_with(record.header("type").unwrap()));
    }
}

/// An alteration that stops the router, and the configuration key with which it can continue.
struct Stop {
    case: &'static str,
    before: (&'static str, &'static str),
    alteration: &'static str,
    after: (&'static str, &'static str),
}

const UNCHANGED: (&str, &str) = ("outbox.columns.id", "id");

const STOPS: [Stop; 6] = [
    Stop {
        case: "renamed",
        before: UNCHANGED,
        alteration: "RENAME payload TO body",
        after: ("outbox.columns.payload", "body"),
    },
    Stop {
        case: "dropped",
        before: UNCHANGED,
        alteration: "DROP COLUMN event_type",
        after: ("outbox.columns.event_type", "aggregate_type"),
    },
    Stop {
        case: "an optional one that was named, dropped",
        before: ("outbox.columns.headers", "headers"),
        alteration: "DROP COLUMN headers",
        after: ("outbox.columns.headers", "false"),
    },
    Stop {
        case: "headers retyped",
        before: UNCHANGED,
        alteration: "DROP COLUMN headers, ADD COLUMN headers int DEFAULT 1, ADD COLUMN meta jsonb",
        after: ("outbox.columns.headers", "meta"),
    },
    Stop {
        case: "created_at retyped",
        before: ("route.timestamp", "created_at"),
        alteration: "ALTER created_at DROP DEFAULT, ALTER created_at TYPE text",
        after: ("route.timestamp", "commit"),
    },
    Stop {
        case: "a column of the topic dropped",
        before: ("route.topic", "${shop}.${event_type}"),
        alteration: "DROP COLUMN shop",
        after: ("route.topic", "${aggregate_type}.${event_type}"),
    },
];

fn with(settings: Settings, (key, value): (&str, &str)) -> Settings {
    if value == "false" { settings.set(key, false) } else { settings.set(key, value) }
}

/// Asserts that the row before the alteration arrives and is confirmed, and that the rows after it arrive after a start with a
/// corrected configuration.
async fn stopped_and_resumed(stop: &Stop) -> (Outbox, Ended) {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let alter = format!(
        "ALTER TABLE outbox ADD COLUMN shop text DEFAULT '{0}', ALTER aggregate_type SET DEFAULT '{0}', \
         ALTER created_at DROP NOT NULL",
        outbox.name
    );
    outbox.execute(&alter).await;
    let settings = Settings::new(&outbox, &kafka).set("route.topic", outbox.topic("all"));
    let settings = with(settings.set("topics.partitions", 1), stop.before);
    let router = Router::active(&settings).await;
    let insert = |n| format!("INSERT INTO outbox (aggregate_id) VALUES ('{n}');");
    outbox.execute(&insert(1)).await;
    outbox.all_confirmed().await;
    outbox.execute(&format!("ALTER TABLE outbox {}", stop.alteration)).await;
    outbox.execute(&insert(2)).await;
    outbox.execute(&insert(3)).await;
    let stopped = router.exits(3).await;
    assert_eq!(kafka.count(&outbox.name).await, Ok(1), "{}: {}", stop.case, stopped.log);

    let router = Router::start(&with(settings, stop.after));
    outbox.all_confirmed().await;
    let ended = router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let mut keys: Vec<_> = records.iter().filter_map(Record::key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["1", "2", "3"], "{}: {}", stop.case, ended.log);
    (outbox, stopped)
}

#[tokio::test]
async fn columns_that_stop_the_router_are_named_and_the_next_start_resumes_there() {
    let [a, b, c, d, e, f] = STOPS.each_ref().map(stopped_and_resumed);
    let (a, b, c, d, e, f) = tokio::join!(a, b, c, d, e, f);
    let mut sentences = Sentences::default();
    for (stop, (outbox, ended)) in STOPS.iter().zip([a, b, c, d, e, f]) {
        sentences.of(stop.case, &outbox, &ended);
    }
    insta::assert_snapshot!(sentences.text());
}

/// The rows before the alteration in the same transaction have been sent.
#[tokio::test]
async fn columns_altered_within_a_transaction_stop_the_router_within_it() {
    let Setup { outbox, kafka, router } = Setup::new().await;
    outbox.all_confirmed().await;
    let insert = |column: &str, n| {
        format!("INSERT INTO outbox (aggregate_type, aggregate_id, {column}) VALUES ('order', 'a', '{n}');")
    };
    let alter = "ALTER TABLE outbox RENAME payload TO body;";
    let back = "ALTER TABLE outbox RENAME body TO payload;";
    outbox
        .execute(&[&insert("payload", 2), alter, &insert("body", 3), back, &insert("payload", 4)].concat())
        .await;
    outbox.execute(&insert("payload", 5)).await;
    router.exits(3).await.says(&["no column \"payload\""]);
    assert_eq!(kafka.count(&outbox.name).await, Ok(2));

    // no payload column exists in all rows of the transaction, so another takes its place: rows arrive without their payload
    let router = Router::start(&Settings::new(&outbox, &kafka).set("outbox.columns.payload", "event_type"));
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(texts(&records), ["{\"n\": 1}", "2", "happened", "happened", "happened"]);
}

/// Rows in the WAL have the name that the table had when they were inserted.
#[tokio::test]
async fn rows_from_before_the_table_was_renamed_are_events_too() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    outbox.insert("order", "a", "1").await;
    outbox.execute("ALTER TABLE outbox RENAME TO events").await;
    outbox
        .execute("INSERT INTO events (aggregate_type, aggregate_id, payload) VALUES ('order', 'a', '2')")
        .await;
    let settings = Settings::new(&outbox, &kafka).set("outbox.table", "public.events");
    let router = Router::active(&settings).await;
    let records = kafka.records_when(&outbox.name, 2).await;
    assert_eq!(texts(&records), ["1", "2"]);
    router.stop().await;
}

/// The stream has the base type of a domain, and the names of types that are not built in.
#[tokio::test]
async fn columns_of_domains_and_of_arrays_of_enums_are_read_by_their_base_type() {
    let kafka = Kafka::shared();
    let table = "CREATE DOMAIN bytes AS bytea; CREATE DOMAIN flag AS boolean; CREATE DOMAIN nested AS flag; \
                 CREATE TYPE mood AS ENUM ('sad', 'happy'); \
                 CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
                 aggregate_id text, event_type text NOT NULL, payload bytes, urgent nested, moods mood[])";
    let outbox = Outbox::with_table(crate::support::shared::postgres(), table).await;
    let settings = Settings::new(&outbox, &kafka)
        .set("route.text", "connect")
        .set("route.headers.urgent", "${urgent}")
        .set("route.headers.moods", "${moods}");
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, urgent, moods) \
             VALUES ('t', 'a', 'made', '\\x00ff', true, '{happy,sad}')",
        )
        .await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    assert_eq!(records[0].value.as_deref(), Some(&[0, 0xff][..]));
    assert_eq!(records[0].header("urgent"), Some("true"));
    assert_eq!(records[0].header("moods"), Some(r#"["happy","sad"]"#));
}

/// In an envelope, a number stays a number.
#[tokio::test]
async fn members_of_domains_have_the_type_of_the_base_type() {
    let kafka = Kafka::shared();
    let table = "CREATE DOMAIN price AS numeric(10,2); CREATE DOMAIN deep AS price CHECK (value > 0); \
                 CREATE DOMAIN prices AS numeric[]; CREATE DOMAIN size AS bigint; CREATE DOMAIN document AS jsonb; \
                 CREATE DOMAIN mask AS bit(8); \
                 CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
                 aggregate_id text, event_type text NOT NULL, payload jsonb, plain numeric, price price, deep deep, prices prices, \
                 each price[], size size, document document, mask mask)";
    let outbox = Outbox::with_table(crate::support::shared::postgres(), table).await;
    let mut settings = Settings::new(&outbox, &kafka).set("route.value", "envelope");
    for column in ["plain", "price", "deep", "prices", "each", "size", "document", "mask"] {
        settings = settings.set(&format!("route.envelope.{column}"), format!("${{{column}}}"));
    }
    outbox
        .execute(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, plain, price, deep, prices, each, size, document, \
             mask) VALUES ('t', 'a', 'made', '{}', 1.50, 1.5, 2.5, '{1.5}', '{1.5}', 7, '{\"n\": 1e400}', B'10000001')",
        )
        .await;
    let preview = settings.run(&["preview", "--json"]);
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let records = kafka.records(&outbox.name).await;
    let value = records[0].text();
    for member in [
        r#""plain":1.50"#,
        r#""price":1.50"#,
        r#""deep":2.50"#,
        r#""prices":"{1.5}""#,
        r#""each":"{1.50}""#,
        r#""size":7"#,
        r#""document":{"n": 1000000"#,
        r#""mask":"10000001""#,
    ] {
        assert!(value.contains(member), "{member}: {value}");
    }
    let shown: Vec<serde_json::Value> = serde_json::from_str(&preview.out).unwrap();
    assert_eq!(shown[0]["value"], value);
}

/// The router stops at rows of a table that was renamed, and reads them after the table is renamed back.
#[tokio::test]
async fn columns_of_a_table_that_was_renamed_and_got_its_name_back_are_read() {
    let (outbox, kafka) = (Outbox::new().await, Kafka::shared());
    let settings = Settings::new(&outbox, &kafka);
    let router = Router::active(&settings).await;
    let insert = |table: &str, n: u32| {
        format!(
            "INSERT INTO {table} (aggregate_type, aggregate_id, payload) VALUES ('t', 'a', '{{\"n\": {n}}}');"
        )
    };
    let rename = "ALTER TABLE outbox RENAME TO elsewhere;";
    outbox.execute(&[&insert("outbox", 1), rename, &insert("elsewhere", 2)].concat()).await;
    // reported by the stream or by the catalogue watch, whichever is first
    router.exits(3).await.says(&["public.outbox"]);
    outbox.released().await;
    outbox.execute("ALTER TABLE elsewhere RENAME TO outbox").await;
    outbox.insert_numbers("t", "a", 3..4).await;
    let router = Router::active(&settings).await;
    outbox.all_confirmed().await;
    router.stop().await;
    let mut numbers: Vec<_> = kafka.records(&outbox.name).await.iter().map(Record::number).collect();
    // the first router may have sent the beginning of the transaction
    numbers.dedup();
    assert_eq!(numbers.iter().rev().take(3).rev().copied().collect::<Vec<_>>(), [1, 2, 3]);
}
