//! Compares the records of both sides.
//!
//! Records are matched by their `id` header, and compared part by part. The records of a key must be in the same order on both
//! sides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::case::{Case, Known};
use crate::outcome::{Outcome, determined};
use crate::record::{Bytes, Record};

/// Stands for the id if a difference concerns no single record.
const NO_ID: &str = "-";

/// How many characters of a value a difference shows, and how many of these precede the first difference.
const LONG: usize = 200;
const BEFORE: usize = 60;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    /// The id of the row, without the leading zeros of a UUID.
    pub(crate) id: String,
    pub(crate) field: String,
    pub(crate) debezium: Option<String>,
    pub(crate) router: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |side: &Option<String>, other: &Option<String>| match side {
            Some(text) => around_difference(text, other.as_deref().unwrap_or_default()),
            None => "(nothing)".to_owned(),
        };
        writeln!(f, "  {} {}", self.id, self.field)?;
        writeln!(f, "    - debezium  {}", shown(&self.debezium, &self.router))?;
        write!(f, "    + router    {}", shown(&self.router, &self.debezium))
    }
}

/// A text, or of a long one what stands around the first place where it is not as `other`.
fn around_difference(text: &str, other: &str) -> String {
    if text.chars().count() <= LONG {
        return text.to_owned();
    }
    let same = text.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    let skipped = same.saturating_sub(BEFORE);
    let part: String = text.chars().skip(skipped).take(LONG).collect();
    let dots = |cut: bool| if cut { "..." } else { "" };
    format!("{}{part}{}", dots(skipped > 0), dots(text.chars().count() > skipped + LONG))
}

/// The result of a case.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) records: usize,
    /// Not listed in the case's differences.md.
    pub(crate) unexpected: Vec<Difference>,
    /// Listed, and found.
    pub(crate) expected: usize,
    /// Listed, and not found.
    pub(crate) vanished: Vec<Known>,
}

impl Findings {
    /// Whether all differences are exactly those that the case lists.
    pub(crate) fn is_same(&self) -> bool {
        self.unexpected.is_empty() && self.vanished.is_empty()
    }
}

/// Compares both sides, and the differences with those that the case lists.
pub(crate) fn compare(case: &Case, debezium: &Outcome, router: &Outcome) -> Findings {
    let mut differences = differences(case, debezium, router);
    differences.sort();
    let is = |difference: &Difference, known: &Known| {
        difference.field == known.field && (known.id == "*" || difference.id == known.id)
    };
    let vanished =
        case.known.iter().filter(|known| !differences.iter().any(|difference| is(difference, known)));
    let vanished = vanished.cloned().collect();
    let found = differences.len();
    differences.retain(|difference| !case.known.iter().any(|known| is(difference, known)));
    Findings {
        records: debezium.stored.len(),
        expected: found - differences.len(),
        unexpected: differences,
        vanished,
    }
}

fn differences(case: &Case, debezium: &Outcome, router: &Outcome) -> Vec<Difference> {
    let mut differences = Vec::new();
    if debezium.failure.is_some() != router.failure.is_some() {
        let failure = |side: &Outcome| side.failure.clone();
        differences.push(difference(NO_ID, "failure", failure(debezium), failure(router)));
    }
    let (theirs, ours) = (by_id(&debezium.records(case)), by_id(&router.records(case)));
    let ids: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    for id in ids {
        match (theirs.get(id), ours.get(id)) {
            (Some(one), Some(other)) => differences.extend(parts(&id.0, one, other)),
            // a failed side sends nothing more, and its failure is reported already
            (Some(_), None) if router.failure.is_some() => {}
            (None, Some(_)) if debezium.failure.is_some() => {}
            (one, other) => {
                let line = |record: &Record| serde_json::to_string(record).unwrap_or_default();
                differences.push(difference(&id.0, "record", one.map(line), other.map(line)));
            }
        }
    }
    differences.extend(order(case, debezium, router));
    differences
}

fn difference(id: &str, field: &str, debezium: Option<String>, router: Option<String>) -> Difference {
    Difference { id: id.to_owned(), field: field.to_owned(), debezium, router }
}

/// The records by id, with repetitions of an id counted separately.
fn by_id(records: &[Record]) -> BTreeMap<(String, usize), Record> {
    let mut found = BTreeMap::new();
    for record in records {
        let id = short_id(record);
        let before = found.keys().filter(|(other, _): &&(String, usize)| *other == id).count();
        found.insert((id, before), record.clone());
    }
    found
}

/// The short form of an id: `12` instead of `00000000-0000-0000-0000-000000000012`.
fn short_id(record: &Record) -> String {
    match record.id() {
        None => NO_ID.to_owned(),
        Some(id) => id.trim_start_matches(['0', '-']).to_owned(),
    }
}

/// The parts of two records that differ.
fn parts(id: &str, one: &Record, other: &Record) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut part = |field: &str, one: Option<String>, other: Option<String>| {
        if one != other {
            differences.push(difference(id, field, one, other));
        }
    };
    part("topic", Some(one.topic.clone()), Some(other.topic.clone()));
    part("partition", one.partition.map(|n| n.to_string()), other.partition.map(|n| n.to_string()));
    part("timestamp", one.timestamp.map(|n| n.to_string()), other.timestamp.map(|n| n.to_string()));
    part("key", shown(one.key.as_ref()), shown(other.key.as_ref()));
    part("value", shown(one.value.as_ref()), shown(other.value.as_ref()));
    let names = |record: &Record| record.headers.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if names(one) == names(other) {
        for ((name, value), (_, other)) in one.headers.iter().zip(&other.headers) {
            part(&format!("header {name}"), shown(value.as_ref()), shown(other.as_ref()));
        }
    } else {
        part("headers", Some(names(one).join(", ")), Some(names(other).join(", ")));
    }
    differences
}

fn shown(bytes: Option<&Bytes>) -> Option<String> {
    bytes.map(|bytes| serde_json::to_string(bytes).unwrap_or_default())
}

/// The keys whose records are on both sides in different orders.
fn order(case: &Case, debezium: &Outcome, router: &Outcome) -> Vec<Difference> {
    let (theirs, ours) = (logs(case, debezium), logs(case, router));
    let mut differences = Vec::new();
    for (key, one) in &theirs {
        let Some(other) = ours.get(key) else { continue };
        // records on one side only are reported as such
        let shared = |log: &[String], other: &[String]| -> Vec<String> {
            log.iter().filter(|id| other.contains(id)).cloned().collect()
        };
        let (one, other) = (shared(one, other), shared(other, one));
        if one != other {
            let (topic, key) = key;
            let field = format!("order of {} in {topic}", shown(Some(key)).unwrap_or_default());
            differences.push(difference(NO_ID, &field, Some(one.join(" ")), Some(other.join(" "))));
        }
    }
    differences
}

/// The ids in the log of each topic and key. Records without a key have no order.
fn logs(case: &Case, outcome: &Outcome) -> BTreeMap<(String, Bytes), Vec<String>> {
    let mut stored: Vec<_> = outcome.stored.iter().collect();
    stored.sort_by_key(|stored| (stored.record.partition, stored.offset));
    let mut logs: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for stored in stored {
        let record = determined(&stored.record, case);
        if let Some(key) = record.key.clone() {
            let log = logs.entry((record.topic.clone(), key)).or_default();
            let mut id = short_id(&record);
            // a repetition counts as a separate record
            while log.contains(&id) {
                id.push('\'');
            }
            log.push(id);
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topics::Stored;

    fn case(known: &[(&str, &str)]) -> Case {
        let known =
            known.iter().map(|(id, field)| Known { id: (*id).to_owned(), field: (*field).to_owned() });
        Case { known: known.collect(), ..Case::default() }
    }

    fn stored(id: &str, key: Option<&str>, value: Option<&str>, offset: i64) -> Stored {
        let bytes = |text: &str| Bytes(text.as_bytes().to_vec());
        let record = Record {
            topic: "t".to_owned(),
            partition: Some(1),
            timestamp: Some(offset),
            key: key.map(bytes),
            headers: vec![("id".to_owned(), Some(bytes(id)))],
            value: value.map(bytes),
        };
        Stored { record, offset }
    }

    fn outcome(stored: Vec<Stored>) -> Outcome {
        Outcome { stored, failure: None }
    }

    fn fields(findings: &Findings) -> Vec<(&str, &str)> {
        findings.unexpected.iter().map(|found| (found.id.as_str(), found.field.as_str())).collect()
    }

    #[test]
    fn equal_records_do_not_differ() {
        let both = || outcome(vec![stored("1", Some("k"), Some("v"), 0), stored("2", None, None, 1)]);
        let findings = compare(&case(&[]), &both(), &both());
        assert_eq!(findings, Findings { records: 2, ..Findings::default() });
    }

    #[test]
    fn every_differing_part_is_reported() {
        let one = outcome(vec![stored("1", Some("k"), Some("v"), 0)]);
        let mut two = outcome(vec![stored("1", Some("k2"), None, 0)]);
        two.stored[0].record.topic = "u".to_owned();
        two.stored[0].record.partition = Some(2);
        two.stored[0].record.headers.push(("type".to_owned(), None));
        let findings = compare(&case(&[]), &one, &two);
        let all = [("1", "headers"), ("1", "key"), ("1", "partition"), ("1", "topic"), ("1", "value")];
        assert_eq!(fields(&findings), all);
        assert!(!findings.is_same());
    }

    #[test]
    fn long_values_are_shortened_around_the_difference() {
        let long = |middle: &str| format!("{}{middle}{}", "a".repeat(500), "b".repeat(500));
        let shown = around_difference(&long("one"), &long("two"));
        assert_eq!(shown, format!("...{}one{}...", "a".repeat(60), "b".repeat(137)));
        assert_eq!(around_difference("short", ""), "short");
    }

    #[test]
    fn null_and_empty_headers_differ() {
        let with = |value: Option<&str>| {
            let mut stored = stored("1", Some("k"), None, 0);
            stored.record.headers.push(("h".to_owned(), value.map(|text| Bytes(text.as_bytes().to_vec()))));
            outcome(vec![stored])
        };
        let findings = compare(&case(&[]), &with(None), &with(Some("")));
        assert_eq!(fields(&findings), [("1", "header h")]);
    }

    #[test]
    fn records_on_one_side_only_are_reported() {
        let one = outcome(vec![stored("1", Some("k"), None, 0), stored("2", Some("k"), None, 1)]);
        let two = outcome(vec![stored("1", Some("k"), None, 0), stored("1", Some("k"), None, 1)]);
        let findings = compare(&case(&[]), &one, &two);
        assert_eq!(
            fields(&findings),
            [("1", "record"), ("2", "record"), ("-", "order of \"k\" in t")][..2].to_vec()
        );
    }

    #[test]
    fn order_matters_only_within_a_key() {
        let one = outcome(vec![stored("1", Some("k"), None, 0), stored("2", Some("k"), None, 1)]);
        let two = outcome(vec![stored("2", Some("k"), None, 0), stored("1", Some("k"), None, 1)]);
        assert_eq!(fields(&compare(&case(&[]), &one, &two)), [("-", "order of \"k\" in t")]);
        let one = outcome(vec![stored("1", None, None, 0), stored("2", None, None, 1)]);
        let two = outcome(vec![stored("2", None, None, 0), stored("1", None, None, 1)]);
        assert!(compare(&case(&[]), &one, &two).is_same());
    }

    #[test]
    fn listed_differences_must_be_found() {
        let one = outcome(vec![stored("1", Some("k"), Some("v"), 0)]);
        let two = outcome(vec![stored("1", Some("k"), Some("w"), 0)]);
        let findings = compare(&case(&[("1", "value")]), &one, &two);
        assert_eq!((findings.is_same(), findings.expected), (true, 1));
        let findings = compare(&case(&[("*", "value")]), &one, &one);
        assert_eq!((findings.is_same(), findings.vanished.len()), (false, 1));
    }

    #[test]
    fn failure_of_one_side_is_reported_once_and_of_both_is_equal() {
        let failed = |records| Outcome { stored: records, failure: Some("no".to_owned()) };
        let all = || vec![stored("1", Some("k"), None, 0), stored("2", Some("k"), None, 1)];
        let findings = compare(&case(&[]), &failed(Vec::new()), &outcome(all()));
        assert_eq!(fields(&findings), [("-", "failure")]);
        assert!(compare(&case(&[]), &failed(all()), &failed(all())).is_same());
    }
}
