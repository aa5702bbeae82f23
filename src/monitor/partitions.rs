//! The partitions of outbox tables.

use std::collections::BTreeMap;

use pg_logical::PgTimestamp;

use super::report::PartitionsReport;

/// What a count of the partitions of an outbox has found.
#[derive(Debug, Clone, Default)]
pub struct CountedPartitions {
    /// When those that were not over begin.
    pub begins: Vec<PgTimestamp>,
    /// How many rows the default partition has.
    pub in_default: u64,
}

/// Partitions begin though nobody counts them again.
pub(super) fn report(
    counted: &BTreeMap<String, CountedPartitions>,
    now: PgTimestamp,
) -> Vec<PartitionsReport> {
    let of_table = |(table, counted): (&String, &CountedPartitions)| PartitionsReport {
        table: table.clone(),
        ahead: counted.begins.iter().filter(|begin| **begin > now).count() as u64,
        in_default: counted.in_default,
    };
    counted.iter().map(of_table).collect()
}
