//! Any row of any types becomes the same event or the same error from the stream and from a query, and then the same record in
//! every format.

use std::sync::OnceLock;

use outbox_router::config::{Config, ValueForm};
use outbox_router::outbox::{ColumnType, FIELDS, Field, Outbox, OutboxEvent};
use outbox_router::routing::{Origin, Routed, Router};
use outbox_router::topic_name;
use pg_logical::pgoutput::Message;
use pg_logical::{Environment, Lsn, Oid, PgTimestamp};
use serde_json::value::RawValue;

use super::load_text;

const CONFIGURATIONS: [&str; 7] = [
    "",
    "route.text = \"connect\"\nroute.headers.x = \"${x}\"\nroute.key = \"json\"\noutbox.columns.tracing_span_context = \"trace\"",
    "route.text = \"connect\"\nroute.value = \"envelope\"\nroute.envelope.x = \"${x}\"\nroute.payload_json = \"expand\"\nroute.tombstone_on_empty = true",
    "route.value = \"envelope\"\nroute.envelope.x = \"${x | kebab}\"\nroute.expand.null = \"optional_bytes\"\nroute.payload_json = \"expand\"\nroute.expand.empty_array = \"optional_string\"",
    "route.value = \"cloudevents-structured\"\nroute.cloudevents.extensions.x = \"${x}\"\nroute.partition = \"${headers.n}\"",
    "[[route.rules]]\nmatch = { event_type = \"/(?<a>[a-z]+)(?=x)(.)/\", x = [\"1\", false] }\ntopic = \"t.${match.a}.${match.2 | default('y')}\"\nvalue = \"cloudevents-binary\"",
    "route.timestamp = \"created_at\"\nroute.topic = \"${x | lower | default('d')}.${source.sequence}\"",
];

const COLUMNS: [&str; 9] =
    ["id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "x", "trace", "created_at"];

/// Types that Kafka Connect formats specially, and some that it does not.
const BUILT_IN: [u32; 27] = [
    25, 3802, 1184, 17, 16, 20, 23, 114, 142, 600, 700, 701, 790, 1082, 1083, 1114, 1186, 1266, 1560, 1562,
    1700, 2950, 3904, 1009, 1231, 1001, 1185,
];

/// Types of extensions, and domains with the base type that the stream names.
const OWN: [(u32, &str, &str); 4] = [
    (70_000, "public", "hstore"),
    (70_001, "x", "citext"),
    (70_002, "", "int4"),
    (70_003, "pg_catalog", "bytea"),
];

/// Chooses the type of a column. Returns its OID in the stream, and the type.
fn column_type(n: u8, modifier: i32) -> (u32, ColumnType) {
    let n = usize::from(n) % (BUILT_IN.len() + OWN.len());
    if let Some(&id) = BUILT_IN.get(n) {
        return (id, ColumnType::built_in(Oid(id), modifier));
    }
    let (id, schema, name) = OWN[n - BUILT_IN.len()];
    let of = match (schema, name) {
        ("" | "pg_catalog", "int4") => ColumnType::built_in(Oid(23), modifier),
        ("" | "pg_catalog", _) => ColumnType::built_in(Oid(17), modifier),
        _ => ColumnType::own(Oid(id), name),
    };
    (id, of)
}

/// A value of the input. Its first byte selects the kinds other than text.
#[derive(Clone, Copy)]
enum Cell<'a> {
    NoColumn,
    Null,
    Unchanged,
    Binary(&'a [u8]),
    Text(&'a [u8]),
}

impl<'a> Cell<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        match bytes {
            [] => Cell::Null,
            [1] => Cell::Unchanged,
            [2, rest @ ..] => Cell::Binary(rest),
            [3] => Cell::NoColumn,
            [4, rest @ ..] => Cell::Text(rest),
            text => Cell::Text(text),
        }
    }
}

pub fn run(bytes: &[u8]) {
    // the number of the configuration, the type modifier, the types, then the values
    let Some((&[number, a, b, c, d], rest)) = bytes.split_first_chunk::<5>() else { return };
    let Some((types, rest)) = rest.split_first_chunk::<{ COLUMNS.len() }>() else { return };
    let config = &configurations()[usize::from(number) % CONFIGURATIONS.len()];
    let modifier = i32::from_be_bytes([a, b, c, d]);
    let values = rest.split(|byte| *byte == 0x1e).chain(std::iter::repeat(&b""[..]));
    let columns: Vec<Column<'_>> = COLUMNS
        .iter()
        .zip(types)
        .zip(values)
        .map(|((name, n), value)| (*name, column_type(*n, modifier), Cell::of(value)))
        .filter(|(.., cell)| !matches!(cell, Cell::NoColumn))
        .collect();

    let router = Router::of(config);
    let mut outbox = Outbox::of(config, router.extra_columns());
    for (id, schema, name) in OWN {
        let message =
            [&b"Y"[..], &id.to_be_bytes(), schema.as_bytes(), b"\0", name.as_bytes(), b"\0"].concat();
        let Ok(Message::Type(named)) = Message::decode(&message) else { panic!("a type") };
        outbox.type_name(&named);
    }
    let relation = relation(&columns, modifier);
    let Ok(Message::Relation(relation)) = Message::decode(&relation) else { panic!("a relation") };
    let accepted = outbox.relation(&relation, false);
    let insert = insert(&columns);
    let Ok(Message::Insert(insert)) = Message::decode(&insert) else { panic!("an insert") };
    let streamed = match accepted {
        Ok(()) => outbox.event(&insert).map(|event| event.expect("it is the outbox")),
        Err(error) => Err(error),
    };
    let streamed_record = streamed.as_ref().ok().map(|event| record(config, event));

    // a query returns only UTF-8 text
    let texts: Option<Vec<_>> = columns
        .iter()
        .map(|(name, (_, of), cell)| match cell {
            Cell::Null => Some((*name, *of, None)),
            Cell::Text(text) => Some((*name, *of, Some(std::str::from_utf8(text).ok()?))),
            Cell::Unchanged | Cell::Binary(_) | Cell::NoColumn => None,
        })
        .collect();
    let Some(texts) = texts else { return };
    let mut memory = outbox.owned_row(&config.outbox.tables[0]);
    match (outbox.read_row(&mut memory, texts.into_iter()), streamed) {
        (Ok(owned), Ok(streamed)) => {
            for field in FIELDS {
                assert_eq!(owned.field(field), streamed.field(field), "{field:?}");
                assert_eq!(owned.field_type(field), streamed.field_type(field), "{field:?}");
            }
            assert_eq!(Some(record(config, &owned)), streamed_record);
        }
        (Err(owned), Err(streamed)) => assert_eq!(owned.to_string(), streamed.to_string()),
        (owned, streamed) => panic!("{:?} and {:?}", owned.err(), streamed.err()),
    }
}

type Column<'a> = (&'a str, (u32, ColumnType), Cell<'a>);

fn relation(columns: &[Column<'_>], modifier: i32) -> Vec<u8> {
    let mut message = b"R\0\0\0\x07public\0outbox\0d".to_vec();
    message.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (name, (id, _), _) in columns {
        message.push(0);
        message.extend(name.as_bytes());
        message.push(0);
        message.extend(id.to_be_bytes());
        message.extend(modifier.to_be_bytes());
    }
    message
}

fn insert(columns: &[Column<'_>]) -> Vec<u8> {
    let mut message = b"I\0\0\0\x07N".to_vec();
    message.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (.., cell) in columns {
        let (kind, bytes) = match *cell {
            Cell::Null | Cell::NoColumn => (b'n', None),
            Cell::Unchanged => (b'u', None),
            Cell::Binary(bytes) => (b'b', Some(bytes)),
            Cell::Text(bytes) => (b't', Some(bytes)),
        };
        message.push(kind);
        if let Some(bytes) = bytes {
            message.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
            message.extend(bytes);
        }
    }
    message
}

/// The visible outcome of routing an event.
#[derive(Debug, PartialEq)]
enum Outcome {
    Refused(String),
    Dropped,
    Record {
        topic: String,
        partition: Option<i32>,
        key: Option<Vec<u8>>,
        value: Option<Vec<u8>>,
        headers: Vec<(String, Option<Vec<u8>>)>,
        timestamp: i64,
    },
}

fn record(config: &Config, event: &OutboxEvent<'_>) -> Outcome {
    let mut router = Router::of(config);
    let origin = Origin { final_lsn: Lsn(1), xid: 2, commit_time: PgTimestamp(0), ordinal: 1 };
    let record = match router.route(event, &origin) {
        Ok(Routed::Record(record)) => record,
        Ok(Routed::Dropped) => return Outcome::Dropped,
        Err(unroutable) => return Outcome::Refused(unroutable.to_string()),
    };
    assert_eq!(topic_name::check(record.topic), Ok(()));
    assert!(record.partition.is_none_or(|number| number >= 0));
    // Postgres has validated json columns; a value built from another column may not be JSON
    let is_valid =
        |field: Field| !event.field_type(field).is_json() || event.field(field).is_none_or(is_json);
    let built = matches!(config.route.value, ValueForm::Envelope | ValueForm::CloudEventsStructured);
    if let Some(value) = record.value.filter(|_| built && is_valid(Field::Payload)) {
        assert!(is_json(value) && value.starts_with(b"{"), "{}", String::from_utf8_lossy(value));
    }
    if let Some(key) = record.key.filter(|_| config.route.key_as_json && is_valid(Field::AggregateId)) {
        assert!(is_json(key), "{}", String::from_utf8_lossy(key));
    }
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    Outcome::Record {
        topic: record.topic.to_owned(),
        partition: record.partition,
        key: owned(record.key),
        value: owned(record.value),
        headers: record.headers.iter().map(|(name, value)| (name.to_owned(), owned(value))).collect(),
        timestamp: record.timestamp,
    }
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(bytes).is_ok()
}

fn configurations() -> &'static [Config] {
    static LOADED: OnceLock<Vec<Config>> = OnceLock::new();
    LOADED.get_or_init(|| CONFIGURATIONS.into_iter().map(configuration).collect())
}

fn configuration(text: &str) -> Config {
    let required = "postgres.url = \"postgres://r@h/d\"\nkafka.\"bootstrap.servers\" = \"h:1\"\n";
    load_text(&format!("{required}{text}"), &Environment::empty()).unwrap_or_else(|error| panic!("{error}"))
}
