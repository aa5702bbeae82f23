//! A record as people and programs see it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::pipeline::{Event, Made};
use crate::routing::{Record, Routed};
use crate::unsendable::Unsendable;

/// How much of a value of a header people see, in characters.
const SHOWN: usize = 80;

/// How events are printed.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// One JSON object a line.
    pub json: bool,
    /// With the payload, and not only its size.
    pub payload: bool,
    /// With colours.
    pub colours: bool,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";

impl Style {
    /// What is printed of an event, with the end of the line.
    pub(super) fn line(self, made: &Made<'_>) -> String {
        match &made.routed {
            Ok(Routed::Record(record)) if self.json => self.object(&made.event, record).to_string() + "\n",
            Ok(Routed::Record(record)) => self.block(&made.event, record),
            Ok(Routed::Dropped) => String::new(),
            Err(why) if self.json => refused(&made.event, why).to_string() + "\n",
            Err(why) => self.refusal(&made.event, why),
        }
    }

    fn object(self, event: &Event<'_>, record: &Record<'_>) -> Value {
        let value = record.value.map_or(Value::Null, text);
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value.map_or(Value::Null, text) }))
            .collect();
        let mut object = place(event);
        object.insert("topic".to_owned(), json!(record.topic));
        object.insert("partition".to_owned(), json!(record.partition));
        object.insert("key".to_owned(), record.key.map_or(Value::Null, text));
        object.insert("headers".to_owned(), json!(headers));
        object.insert("timestamp".to_owned(), json!(record.timestamp));
        object.insert("value_bytes".to_owned(), json!(record.value.map(<[u8]>::len)));
        if self.payload {
            object.insert("value".to_owned(), value);
        }
        Value::Object(object)
    }

    fn block(self, event: &Event<'_>, record: &Record<'_>) -> String {
        let key = record.key.map_or("no key".to_owned(), |key| format!("key {}", short(key)));
        let partition = record.partition.map_or(String::new(), |number| format!("  partition {number}"));
        let size = match record.value {
            Some(value) => format!("{} bytes", value.len()),
            None => "tombstone".to_owned(),
        };
        let place = self.painted(DIM, &format!("{}:{}", event.origin.final_lsn, event.origin.ordinal));
        let topic = self.painted(BOLD, record.topic);
        let mut block = format!("{topic}  {key}{partition}  {size}  {place}\n");
        for (name, value) in record.headers.iter() {
            let value = value.map_or("null".to_owned(), short);
            block.push_str(&format!("    {}: {value}\n", short(name.as_bytes())));
        }
        if let Some(value) = record.value.filter(|_| self.payload) {
            block.push_str(&format!("    {}\n", printable(value)));
        }
        block
    }

    fn refusal(self, event: &Event<'_>, why: &Unsendable) -> String {
        let place = self.painted(DIM, &format!("{}:{}", event.origin.final_lsn, event.origin.ordinal));
        let what = self.painted(RED, "cannot be sent");
        let id = event.row.printable_id();
        format!("{what}  the event with id {id}  {place}\n    {}\n", why.detail())
    }

    fn painted(self, code: &str, text: &str) -> String {
        if self.colours { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

fn refused(event: &Event<'_>, why: &Unsendable) -> Value {
    let mut object = place(event);
    object.insert("id".to_owned(), json!(event.row.printable_id()));
    object.insert("refused".to_owned(), json!(why.detail()));
    object.insert("reason".to_owned(), json!(why.reason.name()));
    Value::Object(object)
}

fn place(event: &Event<'_>) -> Map<String, Value> {
    let position = json!(format!("{}:{}", event.origin.final_lsn, event.origin.ordinal));
    Map::from_iter([("position".to_owned(), position)])
}

/// Text where it is UTF-8, else an object with Base64.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// Nothing of it acts on a terminal.
fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let escaped = |c: char| if c.is_control() { c.escape_debug().collect() } else { vec![c] };
            text.chars().flat_map(escaped).collect()
        }
        Err(_) => format!("base64 {}", STANDARD.encode(bytes)),
    }
}

/// The same, of bounded length.
fn short(bytes: &[u8]) -> String {
    let text = printable(bytes);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
