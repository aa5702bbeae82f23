//! Checks the topics at the end: every committed row is there, in order, and repetitions equal the first record.

use std::collections::{BTreeMap, HashMap, HashSet};

use comfy_table::{CellAlignment, Table, presets};

use super::writers::Row;
use crate::record::{Bytes, Record};
use crate::topics::{Ends, Stored};

/// A phase in which one program alone read the slot.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// The end of the topics when the phase was over.
    pub(crate) ends: Ends,
}

/// The number of records in a phase.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Count {
    name: &'static str,
    records: usize,
    /// Of these, records of rows that had arrived in an earlier phase.
    again: usize,
    /// Of these, records of rows that had arrived earlier in this phase.
    twice: usize,
}

/// The verdict.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    counts: Vec<Count>,
    committed: usize,
    /// Committed and in no topic.
    lost: usize,
    /// Descriptions of everything that is wrong.
    wrong: Vec<String>,
}

/// Judges all records, by phase.
pub(crate) fn judge(committed: &[Row], stored: &[Stored], phases: &[Phase]) -> Judgement {
    let rows: HashMap<&str, &Row> = committed.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut judgement = Judgement {
        counts: phases.iter().map(|phase| Count { name: phase.name, ..Count::default() }).collect(),
        committed: committed.len(),
        ..Judgement::default()
    };
    let mut stored: Vec<&Stored> = stored.iter().collect();
    stored.sort_by_key(|stored| (&stored.record.topic, stored.record.partition, stored.offset));
    let mut first: HashMap<&str, (usize, Record)> = HashMap::new();
    let mut last_number: HashMap<i32, i64> = HashMap::new();
    for stored in stored {
        let record = without_time(&stored.record);
        let row = stored.record.id().and_then(|id| Some((id, *rows.get(id)?)));
        let (Some((id, row)), Some(phase)) = (row, phase_of(stored, phases)) else {
            judgement.wrong.push(format!("nobody committed what is in {}", place(stored)));
            continue;
        };
        let Some(count) = judgement.counts.get_mut(phase) else { continue };
        count.records += 1;
        if let Some((earlier, as_first)) = first.get(id) {
            if *earlier == phase {
                count.twice += 1;
            } else {
                count.again += 1;
            }
            if record != *as_first {
                let was = serde_json::to_string(as_first).unwrap_or_default();
                let is = serde_json::to_string(&record).unwrap_or_default();
                judgement
                    .wrong
                    .push(format!("{} is not as it came first\n    {was}\n    {is}", place(stored)));
            }
            continue;
        }
        if record.key != Some(Bytes(row.aggregate.to_string().into_bytes())) {
            judgement.wrong.push(format!("the key in {} is not {}", place(stored), row.aggregate));
        }
        // a key has one partition, in which the numbers of first arrivals increase by one
        let last = last_number.insert(row.aggregate, row.number).unwrap_or(0);
        if row.number <= last {
            let (aggregate, number) = (row.aggregate, row.number);
            let at = place(stored);
            judgement.wrong.push(format!("aggregate {aggregate}: {number} comes behind {last}, in {at}"));
        }
        first.insert(id, (phase, record));
    }
    judgement.lost = rows.keys().filter(|id| !first.contains_key(**id)).count();
    judgement.wrong.extend(in_two_partitions(first.values().map(|(_, record)| record)));
    judgement
}

/// The first phase that ended after the record.
fn phase_of(stored: &Stored, phases: &[Phase]) -> Option<usize> {
    let partition = (stored.record.topic.clone(), stored.record.partition?);
    phases.iter().position(|phase| phase.ends.get(&partition).is_some_and(|end| stored.offset < *end))
}

/// Ignores the timestamp, which without a column for it is the time of the commit or of Debezium's processing.
fn without_time(record: &Record) -> Record {
    Record { timestamp: None, ..record.clone() }
}

fn in_two_partitions<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<String> {
    let mut places: BTreeMap<Option<&Bytes>, HashSet<(&str, Option<i32>)>> = BTreeMap::new();
    for record in records {
        places.entry(record.key.as_ref()).or_default().insert((&record.topic, record.partition));
    }
    let scattered = places.into_iter().filter(|(_, places)| places.len() > 1);
    scattered
        .map(|(key, places)| {
            let key = serde_json::to_string(&key).unwrap_or_default();
            format!("the records of {key} are in {} partitions", places.len())
        })
        .collect()
}

fn place(stored: &Stored) -> String {
    let partition = stored.record.partition.unwrap_or_default();
    format!("{}/{partition} at {}", stored.record.topic, stored.offset)
}

impl Judgement {
    /// Whether every row arrived and nothing is wrong.
    pub(crate) fn is_good(&self) -> bool {
        self.lost == 0 && self.wrong.is_empty()
    }

    /// Whether rows are missing.
    pub(crate) fn lacks_rows(&self) -> bool {
        self.lost > 0
    }

    /// Descriptions of everything that is wrong.
    pub(crate) fn wrong(&self) -> &[String] {
        &self.wrong
    }

    pub(crate) fn render(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["who read the slot", "records", "sent before"]);
        for count in &self.counts {
            let before = count.again + count.twice;
            table.add_row([count.name.to_owned(), count.records.to_string(), before.to_string()]);
        }
        for column in [1, 2] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let records: usize = self.counts.iter().map(|count| count.records).sum();
        let (committed, lost, wrong) = (self.committed, self.lost, self.wrong.len());
        format!(
            "{table}\n\n{committed} rows committed, {records} records, {lost} rows lost, {wrong} records wrong\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: &str = "outbox.event.order";

    /// Rows 1, 2, 3 of aggregate 7, and row 4 of aggregate 8.
    fn committed() -> Vec<Row> {
        let row = |id: &str, aggregate, number| Row { id: id.to_owned(), aggregate, number };
        vec![row("a", 7, 1), row("b", 7, 2), row("c", 7, 3), row("d", 8, 1)]
    }

    fn record(id: &str, key: &str, partition: i32, offset: i64) -> Stored {
        let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
        let record = Record {
            topic: TOPIC.to_owned(),
            partition: Some(partition),
            timestamp: Some(offset),
            key: Some(bytes(key)),
            headers: vec![("id".to_owned(), Some(bytes(id)))],
            value: Some(bytes(&format!("value of {id}"))),
        };
        Stored { record, offset }
    }

    /// One phase up to the offset 2 of partition 0, another up to the end.
    fn judged(stored: &[Stored]) -> Judgement {
        let ends = |end| Ends::from([((TOPIC.to_owned(), 0), end), ((TOPIC.to_owned(), 1), end)]);
        let phases = [Phase { name: "one", ends: ends(2) }, Phase { name: "other", ends: ends(9) }];
        judge(&committed(), stored, &phases)
    }

    fn in_partition_0(ids: &[&str]) -> Vec<Stored> {
        let key = |id: &str| if id == "d" { "8" } else { "7" };
        (0..).zip(ids).map(|(offset, id)| record(id, key(id), 0, offset)).collect()
    }

    #[test]
    fn repetitions_are_counted_and_allowed() {
        let judgement = judged(&in_partition_0(&["a", "b", "b", "a", "c", "d", "d"]));
        assert!(judgement.is_good(), "{judgement:?}");
        let one = Count { name: "one", records: 2, ..Count::default() };
        let other = Count { name: "other", records: 5, again: 2, twice: 1 };
        assert_eq!(judgement.counts, [one, other]);
    }

    #[test]
    fn missing_row_is_lost() {
        let judgement = judged(&in_partition_0(&["a", "b", "d"]));
        assert!(judgement.lacks_rows() && !judgement.is_good());
        assert_eq!((judgement.lost, judgement.wrong.len()), (1, 0));
    }

    #[test]
    fn lower_number_after_higher_is_a_fault() {
        let judgement = judged(&in_partition_0(&["a", "c", "b", "d"]));
        assert_eq!(judgement.wrong, ["aggregate 7: 2 comes behind 3, in outbox.event.order/0 at 2"]);
    }

    #[test]
    fn record_without_committed_row_is_a_fault() {
        let judgement = judged(&in_partition_0(&["a", "b", "c", "d", "e"]));
        assert_eq!(judgement.wrong, ["nobody committed what is in outbox.event.order/0 at 4"]);
    }

    #[test]
    fn repetition_may_differ_only_in_time() {
        let mut stored = in_partition_0(&["a", "b", "c", "d", "a"]);
        stored[4].record.value = None;
        let judgement = judged(&stored);
        assert!(judgement.wrong.concat().starts_with("outbox.event.order/0 at 4 is not as it came first"));
    }

    #[test]
    fn wrong_key_or_partition_is_a_fault() {
        let mut stored = in_partition_0(&["a", "b", "d"]);
        stored.push(record("c", "7", 1, 0));
        assert!(judged(&stored).wrong.concat().contains("are in 2 partitions"));
        stored[3] = record("c", "8", 0, 3);
        assert_eq!(judged(&stored).wrong, ["the key in outbox.event.order/0 at 3 is not 7"]);
    }
}
