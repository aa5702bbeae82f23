//! What one side sent for a case's rows.

use crate::case::Case;
use crate::record::{Bytes, Record};
use crate::topics::Stored;

/// The records, and whether they are complete.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) stored: Vec<Stored>,
    /// Why it stopped before the last row.
    pub(crate) failure: Option<String>,
}

impl Outcome {
    /// The records in the order of their header `id`, and within one by place; without what the rows do not determine.
    pub(crate) fn records(&self, case: &Case) -> Vec<Record> {
        let mut stored: Vec<&Stored> = self.stored.iter().collect();
        stored.sort_by_key(|stored| {
            let record = &stored.record;
            (record.id().map(str::to_owned), record.topic.clone(), record.partition, stored.offset)
        });
        stored.into_iter().map(|stored| determined(&stored.record, case)).collect()
    }

    /// The records, a line each; a failure as the last line.
    pub(crate) fn json_lines(&self, case: &Case) -> anyhow::Result<String> {
        let mut lines = String::new();
        for record in self.records(case) {
            lines.push_str(&serde_json::to_string(&record)?);
            lines.push('\n');
        }
        if let Some(failure) = &self.failure {
            lines.push_str(&serde_json::to_string(&serde_json::json!({ "failed": failure }))?);
            lines.push('\n');
        }
        Ok(lines)
    }

    /// A short summary.
    pub(crate) fn summary(&self) -> String {
        match &self.failure {
            Some(failure) => format!("{} records, then: {failure}", self.stored.len()),
            None => format!("{} records", self.stored.len()),
        }
    }
}

/// Without the partition of a record that no key and no column sends to one, without the time of sending, and without
/// the number of the span that Debezium adds to the trace; members of JSON objects by name where the case says so.
pub(crate) fn determined(record: &Record, case: &Case) -> Record {
    let mut record = record.clone();
    let placed =
        case.setting("table.fields.additional.placement").is_some_and(|text| text.contains(":partition"));
    if record.key.is_none() && !placed {
        record.partition = None;
    }
    if case.setting("table.field.event.timestamp").is_none() {
        record.timestamp = None;
    }
    if case.settings.tracing {
        for (name, value) in &mut record.headers {
            if let ("traceparent", Some(value)) = (name.as_str(), value) {
                value.without_span();
            }
        }
    }
    if case.settings.any_member_order {
        record.value = record.value.map(Bytes::with_sorted_members);
    }
    record
}
