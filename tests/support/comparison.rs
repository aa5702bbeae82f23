//! The outbox table and the topics, row by row.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::kafka::Record;
use super::outbox::Outbox;

/// How the same event came to be in the log more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// Not allowed.
    Never,
    /// After each of so many restarts the stream may have gone on somewhat earlier.
    Restarts(usize),
    /// A process that was frozen may send again what its successor has sent already, behind that. So only where each event is
    /// for the first time counts.
    Late,
    /// A mock broker takes requests that follow a refused one, which a real one does not. So only where each event is
    /// for the last time counts.
    Mocked,
}

/// The header of what is sent again because the position was reset.
pub(crate) const REPLAY: &str = "outbox-router-replay";

/// The number of each record, and whether it is marked as sent again.
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

/// Fails unless the log holds what the table holds: every row with its payload, key and headers; nothing else; and per
/// key the numbers `n` of the payloads from 1 on, without a gap, in their order. Where repeats are allowed, each is a
/// step back in a run that then goes on without a gap.
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
    assert!(!rows.is_empty(), "nothing was written, so nothing is compared");
    for record in records {
        let row = rows.get(record.id()).unwrap_or_else(|| panic!("in no row: {record:?}"));
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
        // what was sent again on purpose says so
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

/// The order of each key in its partition.
pub(crate) fn in_order(records: &[Record], repeats: Repeats) {
    let mut keys: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
    let mut homes = HashMap::new();
    for record in records {
        let key = (record.topic.as_str(), record.key().unwrap());
        let home = homes.entry(key).or_insert(record.partition);
        assert_eq!(*home, record.partition, "{key:?} is in two partitions");
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
        assert_eq!(numbers.first(), Some(&1), "{key:?} begins in the middle: {numbers:?}");
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
            "{steps_back} steps back in {key:?}, allowed are {allowed}: {numbers:?}"
        );
    }
}
