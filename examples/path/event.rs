//! An event as Postgres sends it, and the parts of the pipeline.

use std::hint::black_box;

use anyhow::{Context, Result, bail};
use outbox_router::config::Config;
use outbox_router::config::load::load;
use outbox_router::outbox::Outbox;
use outbox_router::progress::{Change, Landmark, Position, Progress, Sequence};
use outbox_router::routing::{Origin, Routed, Router};
use pg_logical::pgoutput::Message;
use pg_logical::{Environment, Lsn, PgTimestamp};

/// A payload of about 300 bytes.
pub(crate) const PAYLOAD: &str = r#"{"order": {"id": 4711, "currency": "EUR", "total": 129.9, "customer": {"id": "c-42", "name": "Ada Lovelace", "vip": true}, "items": [{"sku": "A-1", "quantity": 2, "price": 19.95}, {"sku": "B-7", "quantity": 1, "price": 90.0}], "note": null, "tags": ["new", "web"]}, "source": "shop", "version": 3}"#;

/// Rows per transaction.
const ROWS: u64 = 10;

/// The parts of the pipeline, with one configuration.
pub(crate) struct Path {
    outbox: Outbox,
    router: Router,
}

impl Path {
    pub(crate) fn of(configuration: &str) -> Result<Self> {
        let config = read(configuration)?;
        let router = Router::of(&config);
        let mut outbox = Outbox::of(&config, router.extra_columns());
        let relation = relation();
        let Message::Relation(relation) = Message::decode(&relation)? else { bail!("not a relation") };
        outbox.relation(&relation, false)?;
        Ok(Path { outbox, router })
    }

    /// Decodes bytes to an event.
    pub(crate) fn event(&self, insert: &[u8]) -> Result<()> {
        let Message::Insert(insert) = Message::decode(black_box(insert))? else { bail!("not an insert") };
        black_box(self.outbox.event(&insert)?.context("not the outbox")?);
        Ok(())
    }

    /// Decodes bytes to the `n`th record.
    pub(crate) fn record(&mut self, insert: &[u8], n: u64) -> Result<()> {
        let Message::Insert(insert) = Message::decode(black_box(insert))? else { bail!("not an insert") };
        let event = self.outbox.event(&insert)?.context("not the outbox")?;
        let origin = Origin { final_lsn: Lsn(n), xid: 7, commit_time: PgTimestamp(n as i64), ordinal: 1 };
        match self.router.route(&event, &origin)? {
            Routed::Record(record) => {
                black_box(&record);
            }
            Routed::Dropped => bail!("dropped"),
        }
        Ok(())
    }
}

/// Decodes bytes to a message.
pub(crate) fn decode(insert: &[u8]) -> Result<()> {
    black_box(Message::decode(black_box(insert))?);
    Ok(())
}

/// Issues sequence numbers for this many changes, and acknowledges them in batches from several partitions: each batch in order,
/// the batches in a different order.
pub(crate) fn progress(changes: u64) -> Result<()> {
    const BATCH: u64 = 100;
    const PARTITIONS: u64 = 6;
    let mut progress = Progress::new(Position::default());
    let mut waiting: Vec<Vec<Sequence>> = vec![Vec::new(); PARTITIONS as usize];
    for n in 0..changes {
        if n % ROWS == 0 {
            let itself = Landmark { final_lsn: Lsn(n + 1), xid: 7, commit_time: PgTimestamp(0) };
            progress.begin(itself)?;
        }
        let Change::New(sequence) = progress.change()? else { bail!("delivered before") };
        if n % ROWS == ROWS - 1 {
            progress.commit(Lsn(n + 2))?;
        }
        // the multiplication distributes keys over the partitions without a pattern
        let partition = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % PARTITIONS;
        let Some(batch) = waiting.get_mut(partition as usize) else { continue };
        batch.push(sequence);
        if batch.len() as u64 == BATCH {
            batch.drain(..).for_each(|sequence| progress.acknowledge(sequence));
            black_box(progress.position());
        }
    }
    Ok(())
}

fn read(text: &str) -> Result<Config> {
    let file = tempfile::NamedTempFile::new()?;
    // in TOML a preset comes first and tables last
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
pub(crate) fn insert() -> Vec<u8> {
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
