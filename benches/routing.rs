//! What routing costs: the way from the bytes of an Insert to a record, for several configurations side by side.
//!
//! `cargo bench --bench routing` prints the median of many rounds for each, and its ratio to the first. The rounds of all
//! take turns, so that a slow moment of the machine hits all alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outbox_router::config::Config;
use outbox_router::config::environment::Environment;
use outbox_router::config::load::load;
use outbox_router::lsn::Lsn;
use outbox_router::outbox::Outbox;
use outbox_router::postgres::pgoutput::{Message, PgTimestamp};
use outbox_router::routing::{Origin, Routed, Router};

const ROUNDS: usize = 41;
const EVENTS: usize = 20_000;

/// About 300 bytes, as an order may have.
const PAYLOAD: &str = r#"{"order": {"id": 4711, "currency": "EUR", "total": 129.9, "customer": {"id": "c-42", "name": "Ada Lovelace", "vip": true}, "items": [{"sku": "A-1", "quantity": 2, "price": 19.95}, {"sku": "B-7", "quantity": 1, "price": 90.0}], "note": null, "tags": ["new", "web"]}, "source": "shop", "version": 3}"#;

const HEADERS: &str = "route.headers.kind = \"${event_type}\"\nroute.headers.region = \"${region}\"\n";

/// Name and configuration; the first is what the others are compared with.
fn cases() -> Vec<(&'static str, String)> {
    let cloudevents = |mode: &str| format!("route.value = \"cloudevents-{mode}\"");
    let debezium = "preset = \"debezium\"\noutbox.columns = { aggregate_type = \"aggregate_type\", aggregate_id = \"aggregate_id\" }\n";
    let rules = "[[route.rules]]\nmatch = { aggregate_type = \"invoice\" }\ndrop = true\n\
                 [[route.rules]]\nmatch = { event_type = \"/Order(Placed|Paid)/\" }\ntopic = \"orders.${match.1 | lower}\"";
    vec![
        ("payload as it is", String::new()),
        ("debezium preset", debezium.to_owned()),
        ("debezium preset, two headers", format!("{debezium}{HEADERS}")),
        ("two headers", HEADERS.to_owned()),
        ("two rules, one with an expression", rules.to_owned()),
        ("cloudevents-binary", cloudevents("binary")),
        ("cloudevents-structured", cloudevents("structured")),
        ("envelope, two members", "route.value = \"envelope\"\nroute.envelope.kind = \"${event_type}\"\nroute.envelope.region = \"${region}\"".to_owned()),
        ("payload_json = \"string\"", "route.payload_json = \"string\"".to_owned()),
        ("payload_json = \"expand\"", "route.payload_json = \"expand\"".to_owned()),
    ]
}

struct Case {
    name: &'static str,
    outbox: Outbox,
    router: Router,
    rounds: Vec<Duration>,
}

fn main() -> Result<()> {
    let insert = insert();
    let mut cases = cases().into_iter().map(|(name, text)| case(name, &text)).collect::<Result<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let begun = Instant::now();
            for n in 0..EVENTS {
                one(case, &insert, n as u64)?;
            }
            case.rounds.push(begun.elapsed());
        }
    }
    println!("{EVENTS} events of {} bytes a round, median of {ROUNDS} rounds\n", PAYLOAD.len());
    let mut base = None;
    for case in &mut cases {
        case.rounds.sort();
        let median = case.rounds.get(ROUNDS / 2).context("no rounds")?;
        let nanos = median.as_nanos() as f64 / EVENTS as f64;
        println!("{:36} {nanos:8.0} ns an event {:7.2}", case.name, nanos / *base.get_or_insert(nanos));
    }
    Ok(())
}

fn one(case: &mut Case, insert: &[u8], n: u64) -> Result<()> {
    let Message::Insert(insert) = Message::decode(black_box(insert))? else { bail!("not an insert") };
    let event = case.outbox.event(&insert)?.context("not the outbox")?;
    let origin = Origin { final_lsn: Lsn(n), xid: 7, commit_time: PgTimestamp(n as i64), ordinal: 1 };
    match case.router.route(&event, &origin)? {
        Routed::Record(record) => {
            black_box(&record);
        }
        Routed::Dropped => bail!("dropped"),
    }
    Ok(())
}

fn case(name: &'static str, text: &str) -> Result<Case> {
    let config = configuration(text)?;
    let router = Router::of(&config);
    let mut outbox = Outbox::of(&config, router.extra_columns());
    let relation = relation();
    let Message::Relation(relation) = Message::decode(&relation)? else { bail!("not a relation") };
    outbox.relation(&relation, false)?;
    Ok(Case { name, outbox, router, rounds: Vec::new() })
}

fn configuration(text: &str) -> Result<Config> {
    let file = tempfile::NamedTempFile::new()?;
    // a preset comes first, tables last
    let (first, rest) =
        text.split_at(if text.starts_with("preset") { text.find('\n').unwrap_or(0) + 1 } else { 0 });
    let required = "postgres.url = \"postgres://bench@localhost/bench\"\nkafka.\"bootstrap.servers\" = \"localhost:1\"\n";
    std::fs::write(file.path(), format!("{first}{required}{rest}"))?;
    let loaded = load(Some(file.path()), &Environment::empty());
    Ok(loaded.map_err(|error| anyhow::anyhow!("{error}"))?.config)
}

const COLUMNS: [(&str, u32, &str); 8] = [
    ("id", 2950, "7f0c1cde-6f0e-4f8e-9f0a-0d2b1a2c3d4e"),
    ("aggregate_type", 25, "order"),
    ("aggregate_id", 25, "4711"),
    ("event_type", 25, "OrderPlaced"),
    ("payload", 3802, PAYLOAD),
    ("headers", 3802, "{}"),
    ("created_at", 1184, "2026-11-21 09:06:15.123456+00"),
    ("region", 25, "eu"),
];

/// A Relation message (Postgres manual, "Logical Replication Message Formats").
fn relation() -> Vec<u8> {
    let mut bytes = vec![b'R'];
    bytes.extend(7u32.to_be_bytes());
    bytes.extend(b"public\0outbox\0d");
    bytes.extend((COLUMNS.len() as u16).to_be_bytes());
    for (name, type_id, _) in COLUMNS {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(type_id.to_be_bytes());
        bytes.extend((-1i32).to_be_bytes());
    }
    bytes
}

/// An Insert message.
fn insert() -> Vec<u8> {
    let mut bytes = vec![b'I'];
    bytes.extend(7u32.to_be_bytes());
    bytes.push(b'N');
    bytes.extend((COLUMNS.len() as u16).to_be_bytes());
    for (_, _, text) in COLUMNS {
        bytes.push(b't');
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}
