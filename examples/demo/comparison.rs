//! Compares what was committed with what arrived, row by row.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::stage::consumer::Received;
use crate::stage::outbox_table::Row;
use crate::writers::Written;

/// The result of the comparison. Each list has one line per fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Rows in the table.
    pub(crate) rows: usize,
    pub(crate) aggregates: usize,
    /// Records in the topics.
    pub(crate) records: usize,
    /// Rows that arrived at least once.
    pub(crate) arrived: usize,
    /// Records of rows that had arrived before.
    pub(crate) duplicates: usize,
    /// Rows that never arrived.
    pub(crate) lost: Vec<String>,
    /// Events whose first arrival, in the log of their aggregate, comes after that of a later event; aggregates in
    /// several partitions; aggregates whose log does not end with their newest event.
    pub(crate) out_of_order: Vec<String>,
    /// Records that differ from their row in topic, key, value or headers.
    pub(crate) altered: Vec<String>,
    /// Records of no committed row.
    pub(crate) never_committed: Vec<String>,
    /// Events whose COMMIT succeeded and that are missing from the table.
    pub(crate) not_in_table: Vec<String>,
}

impl Findings {
    /// # Errors
    /// A sentence with all faults and the first case of each. Duplicates are allowed.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let kinds = [
            ("lost", &self.lost),
            ("out of order", &self.out_of_order),
            ("altered", &self.altered),
            ("sent though never committed", &self.never_committed),
            ("committed and not in the table", &self.not_in_table),
        ];
        let wrong: Vec<String> = kinds
            .iter()
            .filter_map(|(kind, faults)| faults.first().map(|first| (kind, faults.len(), first)))
            .map(|(kind, count, first)| format!("{count} {kind} (the first: {first})"))
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

/// Compares the rows of the table, what the writers know, and the records.
pub(crate) fn compare(rows: &[Row], written: &Written, records: &[Received]) -> Findings {
    let by_id: HashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut findings = Findings { rows: rows.len(), records: records.len(), ..Findings::default() };
    let mut arrived = HashSet::new();
    let mut logs: BTreeMap<(&str, &str), Vec<Entry>> = BTreeMap::new();
    for record in records {
        let Some(row) = record.id().and_then(|id| by_id.get(id)) else {
            findings.never_committed.push(unexpected(record, written));
            continue;
        };
        if !arrived.insert(row.id.as_str()) {
            findings.duplicates += 1;
        }
        if let Some(what) = difference(row, record) {
            findings.altered.push(format!("{what} of {} at {}", name(row), place(record)));
        }
        let entry = Entry { partition: record.partition, offset: record.offset, sequence: row.sequence };
        logs.entry((&row.aggregate_type, &row.aggregate_id)).or_default().push(entry);
    }
    findings.arrived = arrived.len();
    findings.aggregates = logs.len();
    findings.lost = rows.iter().filter(|row| !arrived.contains(row.id.as_str())).map(name).collect();
    findings.not_in_table =
        written.committed.keys().filter(|id| !by_id.contains_key(id.as_str())).cloned().collect();
    for ((_, aggregate), log) in logs {
        findings.out_of_order.extend(disorder(aggregate, log));
    }
    findings
}

/// One record in the log of an aggregate.
struct Entry {
    partition: i32,
    offset: i64,
    sequence: i64,
}

/// The faults in the order of one aggregate's records, by their offsets.
fn disorder(aggregate: &str, mut log: Vec<Entry>) -> Vec<String> {
    let partitions: HashSet<i32> = log.iter().map(|entry| entry.partition).collect();
    if partitions.len() > 1 {
        return vec![format!("{aggregate} is in {} partitions", partitions.len())];
    }
    log.sort_by_key(|entry| entry.offset);
    let mut faults = Vec::new();
    let mut before = HashSet::new();
    let mut newest = i64::MIN;
    for Entry { partition, offset, sequence } in &log {
        if before.insert(*sequence) && *sequence < newest {
            faults.push(format!(
                "event {sequence} of {aggregate} after event {newest}, partition {partition} offset {offset}"
            ));
        }
        newest = newest.max(*sequence);
    }
    // consumers and compaction would take the old event for the aggregate's last state
    match log.last() {
        Some(last) if last.sequence != newest && faults.is_empty() => {
            faults.push(format!("the last record of {aggregate} is event {} of {newest}", last.sequence));
        }
        _ => {}
    }
    faults
}

/// The first part in which a record differs from its row.
fn difference(row: &Row, record: &Received) -> Option<&'static str> {
    if record.topic != row.topic() {
        Some("topic")
    } else if record.key.as_deref() != Some(row.aggregate_id.as_bytes()) {
        Some("key")
    } else if record.value.as_deref() != row.payload.as_deref().map(str::as_bytes) {
        Some("payload")
    } else if !same_headers(row, record) {
        Some("headers")
    } else {
        None
    }
}

/// `id` and `type` first, then the members of the headers column in any order.
fn same_headers(row: &Row, record: &Received) -> bool {
    let text = |text: &str| Some(text.as_bytes().to_vec());
    let own = [("id".to_owned(), text(&row.id)), ("type".to_owned(), text(&row.event_type))];
    let Some((first, rest)) = record.headers.split_first_chunk::<2>() else { return false };
    let Some(expected) = row.own_headers() else { return false };
    let mut rest = rest.to_vec();
    rest.sort();
    *first == own && rest == expected
}

fn unexpected(record: &Received, written: &Written) -> String {
    let place = place(record);
    match record.id() {
        None => format!("a record without an id at {place}"),
        Some(id) if written.rolled_back.contains(id) => format!("{id}, which was rolled back, at {place}"),
        Some(id) => format!("{id}, which nobody wrote, at {place}"),
    }
}

fn name(row: &Row) -> String {
    format!("event {} of {}, id {}", row.sequence, row.aggregate_id, row.id)
}

fn place(record: &Received) -> String {
    format!("{} partition {} offset {}", record.topic, record.partition, record.offset)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Three events of one order and two of a customer, with correct records.
    struct World {
        rows: Vec<Row>,
        written: Written,
        records: Vec<Received>,
    }

    fn world() -> World {
        let mut rows = Vec::new();
        let mut written = Written::default();
        let mut records = Vec::new();
        let events =
            [("order", 7, 1), ("customer", 1, 1), ("order", 7, 2), ("customer", 1, 2), ("order", 7, 3)];
        for (aggregate_type, number, sequence) in events {
            let row = Row {
                id: format!("{aggregate_type}{number}/{sequence}"),
                aggregate_type: aggregate_type.to_owned(),
                aggregate_id: format!("{aggregate_type}-{number}"),
                event_type: "Changed".to_owned(),
                payload: Some(format!(r#"{{"sequence": {sequence}}}"#)),
                headers: r#"{"writer": 3, "tenant": null, "trace": "é"}"#.to_owned(),
                sequence,
            };
            written.committed.insert(row.id.clone(), Instant::now());
            let offset = records.len() as i64;
            records.push(record(&row, offset));
            rows.push(row);
        }
        written.rolled_back.insert("rolled-back".to_owned());
        World { rows, written, records }
    }

    fn record(row: &Row, offset: i64) -> Received {
        let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        Received {
            topic: row.topic(),
            partition: 2,
            offset,
            key: Some(row.aggregate_id.clone().into_bytes()),
            value: row.payload.clone().map(String::into_bytes),
            headers: vec![
                header("id", &row.id),
                header("type", &row.event_type),
                ("tenant".to_owned(), None),
                header("trace", "é"),
                header("writer", "3"),
            ],
            arrived: Instant::now(),
        }
    }

    type Alteration = fn(&mut Received);

    impl World {
        fn compare(&self) -> Findings {
            compare(&self.rows, &self.written, &self.records)
        }

        /// The records in this order, each at the next offset.
        fn log(&mut self, order: &[usize]) -> Findings {
            let records = order
                .iter()
                .enumerate()
                .map(|(offset, index)| Received { offset: offset as i64, ..self.records[*index].clone() });
            self.records = records.collect();
            self.compare()
        }
    }

    #[track_caller]
    fn assert_fault(findings: &Findings, faults: &[String], expected: &str) {
        assert!(faults.len() == 1 && faults[0].contains(expected), "{findings:?}");
        let sentence = findings.verdict().unwrap_err();
        assert!(sentence.starts_with("1 ") && sentence.contains(expected), "{sentence}");
        assert!(!sentence.contains(';'), "more than one kind: {sentence}");
    }

    #[test]
    fn correct_records_have_no_fault() {
        let findings = world().compare();
        assert_eq!(findings.verdict(), Ok(()));
        let expected = Findings { rows: 5, aggregates: 2, records: 5, arrived: 5, ..Findings::default() };
        assert_eq!(findings, expected);
    }

    #[test]
    fn order_in_the_log_matters_and_order_of_reading_does_not() {
        let mut world = world();
        world.records.reverse();
        assert_eq!(world.compare().verdict(), Ok(()));
    }

    #[test]
    fn a_lost_record_is_found() {
        let findings = world().log(&[0, 1, 3, 4]);
        assert_fault(&findings, &findings.lost, "event 2 of order-7");
        assert_eq!((findings.records, findings.arrived), (4, 4));
    }

    #[test]
    fn a_lost_end_and_an_empty_log_are_found() {
        let findings = world().log(&[0, 1, 2, 3]);
        assert_fault(&findings, &findings.lost, "event 3 of order-7");
        assert_eq!(world().log(&[]).lost.len(), 5);
    }

    #[test]
    fn duplicates_are_counted_and_allowed() {
        // as after a restart from the position before event 2 of the order
        let findings = world().log(&[0, 1, 2, 3, 4, 2, 3, 4]);
        assert_eq!(findings.verdict(), Ok(()));
        assert_eq!((findings.records, findings.arrived, findings.duplicates), (8, 5, 3));
    }

    #[test]
    fn reordered_records_of_an_aggregate_are_found() {
        let findings = world().log(&[0, 1, 4, 3, 2]);
        assert_fault(&findings, &findings.out_of_order, "event 2 of order-7 after event 3");
    }

    #[test]
    fn records_of_different_aggregates_have_no_order() {
        assert_eq!(world().log(&[1, 3, 0, 2, 4]).verdict(), Ok(()));
    }

    #[test]
    fn old_event_repeated_last_is_found() {
        let findings = world().log(&[0, 1, 2, 3, 4, 2]);
        assert_fault(&findings, &findings.out_of_order, "the last record of order-7 is event 2 of 3");
    }

    #[test]
    fn an_aggregate_in_two_partitions_is_found() {
        let mut world = world();
        world.records[4].partition = 1;
        let findings = world.compare();
        assert_fault(&findings, &findings.out_of_order, "order-7 is in 2 partitions");
    }

    #[test]
    fn alteration_of_any_part_is_found() {
        let alterations: [(&str, Alteration); 10] = [
            ("payload", |record| record.value.as_mut().unwrap()[2] = b'x'),
            ("payload", |record| record.value.as_mut().unwrap().truncate(3)),
            ("payload", |record| record.value = None),
            ("key", |record| record.key.as_mut().unwrap()[0] = b'x'),
            ("key", |record| record.key = None),
            ("headers", |record| record.headers[1].1 = Some(b"Other".to_vec())),
            ("headers", |record| record.headers[2].1 = Some(b"null".to_vec())),
            ("headers", |record| record.headers.truncate(4)),
            ("headers", |record| record.headers.push(("more".to_owned(), None))),
            ("topic", |record| record.topic.push('s')),
        ];
        for (what, alter) in alterations {
            let mut world = world();
            alter(&mut world.records[1]);
            let findings = world.compare();
            assert_fault(&findings, &findings.altered, &format!("{what} of event 1 of customer-1"));
        }
    }

    #[test]
    fn altered_duplicate_is_found() {
        let mut world = world();
        let mut again = world.records[4].clone();
        again.offset = 5;
        again.value = Some(b"{}".to_vec());
        world.records.push(again);
        let findings = world.compare();
        assert_fault(&findings, &findings.altered, "payload of event 3 of order-7");
    }

    #[test]
    fn records_of_rolled_back_or_unknown_events_are_found() {
        for (id, what) in [("rolled-back", "rolled back"), ("nobodys", "nobody wrote")] {
            let mut world = world();
            let mut ghost = world.records[4].clone();
            ghost.offset = 5;
            ghost.headers[0].1 = Some(id.as_bytes().to_vec());
            world.records.push(ghost);
            let findings = world.compare();
            assert_fault(&findings, &findings.never_committed, what);
        }
    }

    #[test]
    fn a_record_without_an_id_is_found_and_its_row_is_lost() {
        let mut world = world();
        world.records[4].headers.clear();
        let findings = world.compare();
        assert_eq!((findings.never_committed.len(), findings.lost.len()), (1, 1));
    }

    #[test]
    fn commit_missing_from_the_table_is_found() {
        let mut world = world();
        world.written.committed.insert("vanished".to_owned(), Instant::now());
        let findings = world.compare();
        assert_fault(&findings, &findings.not_in_table, "vanished");
    }
}
