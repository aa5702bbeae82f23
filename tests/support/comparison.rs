//! Compares the outbox table with the topics, row by row.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::kafka::Record;
use super::outbox::Outbox;

/// Which repetitions of events a test allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// None.
    Never,
    /// After each of this many restarts, the router may have resumed at an earlier event.
    Restarts(usize),
    /// A router that was frozen may repeat events after its successor has sent them. So only the first record of each event
    /// counts.
    Late,
    /// Unlike a real broker, the mock accepts requests that follow a refused one. So only the last record of each event counts.
    Mocked,
}

/// The header of events that are sent again because the position was reset.
pub(crate) const REPLAY: &str = "outbox-router-replay";

/// The number of each record, and whether it has the replay header.
pub(crate) fn numbers_and_marks(records: &[Record]) -> Vec<(u64, bool)> {
    records.iter().map(|record| (record.number(), record.header(REPLAY).is_some())).collect()
}

#[derive(Debug)]
struct Row {
    topic: String,
    key: Option<String>,
    event_type: String,
    payload: Option<String>,
    headers: serde_json::Value,
}

/// Asserts that the records are those of the table: every row with its payload, key and headers, and nothing else. The numbers
/// `n` of each key's payloads must ascend from 1 without a gap. Each allowed repetition is a step back, from where they ascend
/// again.
pub(crate) async fn same(outbox: &Outbox, records: &[Record], repeats: Repeats) {
    let sql =
        "SELECT id::text, aggregate_type, aggregate_id, event_type, payload::text, headers::text FROM outbox";
    let rows: HashMap<String, Row> = outbox
        .query(sql)
        .await
        .into_iter()
        .map(|row| {
            let headers: &str = row.get(5);
            let headers = serde_json::from_str(headers).unwrap();
            let topic = outbox.topic(row.get(1));
            (row.get(0), Row { topic, key: row.get(2), event_type: row.get(3), payload: row.get(4), headers })
        })
        .collect();
    assert!(!rows.is_empty(), "the outbox is empty, so there is nothing to compare");
    for record in records {
        let row = rows.get(record.id()).unwrap_or_else(|| panic!("no row of the outbox: {record:?}"));
        row.assert_is(record);
    }
    let sent: HashSet<_> = records.iter().map(Record::id).collect();
    let lost: Vec<_> = rows.iter().filter(|(id, _)| !sent.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} rows are not in Kafka: {lost:#?}", lost.len(), rows.len());
    in_order(records, repeats);
}

impl Row {
    fn assert_is(&self, record: &Record) {
        assert_eq!(record.topic, self.topic);
        assert_eq!(record.key(), self.key.as_deref());
        assert_eq!(record.value.as_deref(), self.payload.as_deref().map(str::as_bytes));
        assert_eq!(record.header("type"), Some(self.event_type.as_str()));
        let members = self.headers.as_object().unwrap();
        let expected: BTreeMap<_, _> =
            members.iter().map(|(name, value)| (name.clone(), header(value))).collect();
        // after `id` and `type`, a replayed event has a replay header
        let own = 2 + usize::from(record.header(REPLAY).is_some());
        let found: BTreeMap<_, _> = record.headers[own..].iter().cloned().collect();
        assert_eq!(found, expected);
        assert_eq!(record.headers.len(), own + members.len());
    }
}

fn header(value: &serde_json::Value) -> Option<Vec<u8>> {
    match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(text.clone().into_bytes()),
        other => Some(other.to_string().into_bytes()),
    }
}

/// Asserts that the records of each key are in one partition and in order.
pub(crate) fn in_order(records: &[Record], repeats: Repeats) {
    let mut keys: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
    let mut partitions = HashMap::new();
    for record in records {
        let key = (record.topic.as_str(), record.key().unwrap());
        let partition = partitions.entry(key).or_insert(record.partition);
        assert_eq!(*partition, record.partition, "{key:?} is in two partitions");
        keys.entry(key).or_default().push(record);
    }
    for (key, records) in keys {
        let mut numbers: Vec<_> = records.iter().map(|record| record.number()).collect();
        if repeats == Repeats::Mocked {
            let all = numbers.clone();
            numbers = (0..all.len()).filter(|n| !all[n + 1..].contains(&all[*n])).map(|n| all[n]).collect();
        }
        if repeats == Repeats::Late {
            let all = numbers.clone();
            numbers = (0..all.len()).filter(|n| !all[..*n].contains(&all[*n])).map(|n| all[n]).collect();
        }
        assert_eq!(numbers.first(), Some(&1), "{key:?} does not begin at 1: {numbers:?}");
        let mut steps_back = 0;
        for pair in numbers.windows(2) {
            assert!(pair[1] <= pair[0] + 1, "a gap in {key:?} after {}: {numbers:?}", pair[0]);
            steps_back += usize::from(pair[1] <= pair[0]);
        }
        let allowed = match repeats {
            Repeats::Never | Repeats::Late | Repeats::Mocked => 0,
            Repeats::Restarts(restarts) => restarts,
        };
        assert!(
            steps_back <= allowed,
            "{steps_back} steps back in {key:?}, but only {allowed} are allowed: {numbers:?}"
        );
    }
}
