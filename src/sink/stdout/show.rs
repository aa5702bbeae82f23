//! How a record is printed, as text or as JSON.

use serde::Serialize;

use crate::json::Bytes;
use crate::pipeline::{Event, PipelineOutput};
use crate::routing::{Record, Routed};
use crate::terminal::{on_one_line, shortened};
use crate::unsendable::Unsendable;

/// How many characters of a key or of a header's value are printed.
const SHOWN: usize = 80;

/// How many headers are printed.
const HEADERS: usize = 20;

/// How events are printed.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// One JSON object a line.
    pub json: bool,
    /// Print the payload, not only its size.
    pub payload: bool,
    /// With colours.
    pub colours: bool,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const YELLOW: &str = "33";

/// A record as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    position: String,
    topic: &'a str,
    /// null: the key determines it.
    partition: Option<i32>,
    key: Option<Bytes<'a>>,
    headers: Vec<Header<'a>>,
    /// Milliseconds since the Unix epoch.
    timestamp: i64,
    /// null: a tombstone.
    value_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Option<Bytes<'a>>>,
    /// How the payload breaks its contract; null if it does not, or has none.
    violation: Option<String>,
}

/// An event that cannot be sent, as JSON.
#[derive(Serialize)]
struct Refused {
    position: String,
    id: String,
    /// The reason's name.
    reason: &'static str,
    /// The reason in full.
    refused: String,
}

#[derive(Serialize)]
struct Header<'a> {
    name: &'a str,
    value: Option<Bytes<'a>>,
}

impl Style {
    /// The text for an event, with a line feed; empty if routing drops it.
    pub(super) fn line(self, made: &PipelineOutput<'_>) -> String {
        match &made.routed {
            Ok(Routed::Record(record)) if self.json => json(&self.shown(&made.event, record)),
            Ok(Routed::Record(record)) => self.block(&made.event, record),
            Ok(Routed::Dropped) => String::new(),
            Err(why) if self.json => json(&refused(&made.event, why)),
            Err(why) => self.refusal(&made.event, why),
        }
    }

    fn shown<'a>(self, event: &Event<'_>, record: &Record<'a>) -> Shown<'a> {
        let header =
            |(name, value): (&'a str, Option<&'a [u8]>)| Header { name, value: value.map(Bytes::of) };
        Shown {
            position: position(event),
            topic: record.topic,
            partition: record.partition,
            key: record.key.map(Bytes::of),
            headers: record.headers.iter().map(header).collect(),
            timestamp: record.timestamp,
            value_bytes: record.value.map(<[u8]>::len),
            value: self.payload.then(|| record.value.map(Bytes::of)),
            violation: record.violation.map(ToString::to_string),
        }
    }

    fn block(self, event: &Event<'_>, record: &Record<'_>) -> String {
        let topic = self.coloured(BOLD, record.topic);
        let key = record.key.map_or("no key".to_owned(), |key| format!("key {}", short(key)));
        let partition = record.partition.map_or(String::new(), |number| format!("  partition {number}"));
        let size = record.value.map_or("tombstone".to_owned(), size);
        let place = self.coloured(DIM, &position(event));
        let mut block = format!("{topic}  {key}{partition}  {size}  {place}\n");
        for (name, value) in record.headers.iter().take(HEADERS) {
            let value = value.map_or("null".to_owned(), short);
            block.push_str(&format!("    {}: {value}\n", short(name.as_bytes())));
        }
        if record.headers.len() > HEADERS {
            block.push_str(&format!("    and {} more headers\n", record.headers.len() - HEADERS));
        }
        if let Some(violation) = record.violation {
            let although = self.coloured(YELLOW, "would be sent although");
            block.push_str(&format!("    {although} {}\n", printable(violation.to_string().as_bytes())));
        }
        if let Some(value) = record.value.filter(|_| self.payload) {
            block.push_str(&format!("    {}\n", printable(value)));
        }
        block
    }

    fn refusal(self, event: &Event<'_>, why: &Unsendable) -> String {
        let what = self.coloured(RED, "cannot be sent");
        let place = self.coloured(DIM, &position(event));
        let (id, detail) = (event.row.printable_id(), why.detail());
        format!("{what}  the event with id {id}  {place}\n    {}\n", printable(detail.as_bytes()))
    }

    fn coloured(self, code: &str, text: &str) -> String {
        if self.colours { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

fn refused(event: &Event<'_>, why: &Unsendable) -> Refused {
    let (id, refused) = (event.row.printable_id(), why.detail());
    Refused { position: position(event), id, reason: why.reason.name(), refused }
}

/// The LSN of its commit, which `--since` takes, and its number in the transaction.
fn position(event: &Event<'_>) -> String {
    format!("{}:{}", event.origin.final_lsn, event.origin.ordinal)
}

fn json(object: &impl Serialize) -> String {
    // cannot fail: texts and numbers only
    serde_json::to_string(object).unwrap_or_default() + "\n"
}

fn size(value: &[u8]) -> String {
    match value.len() {
        1 => "1 byte".to_owned(),
        bytes => format!("{bytes} bytes"),
    }
}

/// Escapes control characters, which could act on a terminal.
fn printable(bytes: &[u8]) -> String {
    match Bytes::of(bytes) {
        Bytes::Text(text) => on_one_line(&text),
        Bytes::Base64 { base64 } => format!("base64 {base64}"),
    }
}

/// As [`printable`], cut to [`SHOWN`] characters.
fn short(bytes: &[u8]) -> String {
    shortened(&printable(bytes), SHOWN).into_owned()
}
