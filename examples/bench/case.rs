//! The cases: variations of a plain one, each of one property.

use serde::{Deserialize, Serialize};

use crate::measure::backlog::Backlog;
use crate::measure::ground::PARTITIONS;

/// A kind of backlog, and the settings for its delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) rows: u64,
    pub(crate) payload: u64,
    pub(crate) rows_of_a_transaction: u64,
    pub(crate) aggregates: u64,
    pub(crate) topics: u64,
    pub(crate) partitions: u32,
    pub(crate) compression: String,
    /// Connections that write in the meantime, each one row per second.
    #[serde(default)]
    pub(crate) writers: u32,
}

impl Case {
    /// The plain case: 400 bytes, ten rows per transaction.
    pub(crate) fn plain(name: &str, rows: u64) -> Self {
        Case {
            name: name.to_owned(),
            rows,
            payload: 400,
            rows_of_a_transaction: 10,
            aggregates: 1_000,
            topics: 1,
            partitions: PARTITIONS,
            compression: "none".to_owned(),
            writers: 0,
        }
    }

    /// The plain case and its variations, with about this many rows.
    pub(crate) fn varied(rows: u64) -> Vec<Case> {
        let plain = |name: &str| Case::plain(name, rows);
        let mut cases = vec![plain("plain")];
        for (name, payload, bytes) in
            [("200 B", 200, 0), ("1.6 kB", 1_600, 0), ("20 kB", 20_000, 400), ("1 MB", 1_000_000, 500)]
        {
            // at most this many megabytes
            let rows = if bytes == 0 { rows } else { rows.min(bytes * 1_000_000 / payload) };
            cases.push(Case { payload, rows, ..plain(&format!("payload {name}")) });
        }
        for (name, each) in [("1 row", 1), ("1,000 rows", 1_000), ("1,000,000 rows", 1_000_000)] {
            let rows = rows.max(each);
            cases.push(Case {
                rows_of_a_transaction: each,
                rows,
                ..plain(&format!("transactions of {name}"))
            });
        }
        for (name, partitions) in [("1 partition", 1), ("100 partitions", 100)] {
            cases.push(Case { partitions, ..plain(name) });
        }
        cases.push(Case { topics: 1_000, partitions: 1, ..plain("1,000 topics") });
        for (name, aggregates) in [("10 aggregates", 10), ("1,000,000 aggregates", 1_000_000)] {
            cases.push(Case { aggregates, rows: rows.max(aggregates), ..plain(name) });
        }
        for codec in ["lz4", "zstd"] {
            cases.push(Case { compression: codec.to_owned(), ..plain(codec) });
        }
        cases
    }

    /// The growth series: name, size, and the case with that size.
    pub(crate) fn growing(rows: u64, largest_backlog: u64) -> Vec<(&'static str, u64, Case)> {
        let plain = |what: &str, size: u64| Case::plain(&format!("{what} {size}"), rows);
        let mut cases = Vec::new();
        let mut backlog = 10_000;
        while backlog <= largest_backlog {
            cases.push(("backlog", backlog, Case::plain(&format!("backlog {backlog}"), backlog)));
            backlog *= 10;
        }
        for size in [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000] {
            let case = plain("transaction", size);
            cases.push((
                "rows of a transaction",
                size,
                Case { rows_of_a_transaction: size, rows: rows.max(size), ..case },
            ));
        }
        for size in [1, 10, 100, 1_000] {
            cases.push(("topics", size, Case { topics: size, partitions: 1, ..plain("topics", size) }));
        }
        for size in [10, 1_000, 100_000, 1_000_000] {
            let case = plain("aggregates", size);
            cases.push(("aggregates", size, Case { aggregates: size, rows: rows.max(size), ..case }));
        }
        cases
    }

    /// Backlogs that the router may read in bulk, of at most `largest_backlog` rows. A row takes about 610 bytes of log.
    pub(crate) fn for_bulk_reads(largest_backlog: u64) -> Vec<Case> {
        let lags = [("10 MB", 16_000), ("100 MB", 160_000), ("1 GB", 1_600_000), ("10 GB", 16_000_000)];
        let mut cases: Vec<Case> = lags
            .into_iter()
            .filter(|(_, rows)| *rows <= largest_backlog)
            .map(|(lag, rows)| Case { payload: 286, ..Case::plain(&format!("lag of {lag}"), rows) })
            .collect();
        for (name, payload, rows) in [
            ("1 kB", 1_000, 200_000),
            ("1.6 kB", 1_600, 150_000),
            ("4 kB", 4_000, 100_000),
            ("20 kB", 20_000, 20_000),
            ("1 MB", 1_000_000, 1_000),
        ] {
            cases.push(Case { payload, ..Case::plain(&format!("bulk, payload {name}"), rows) });
        }
        let rows = 1_000_000;
        cases.push(Case { rows_of_a_transaction: rows, ..Case::plain("bulk, one transaction", rows) });
        cases.push(Case { writers: 1_000, payload: 286, ..Case::plain("bulk, 1,000 writers", 500_000) });
        cases
    }

    /// The name with only letters, digits and hyphens.
    pub(crate) fn id(&self) -> String {
        let mut id: String = self
            .name
            .chars()
            .filter(|c| *c != ',')
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect();
        id.insert_str(0, "bench-");
        id
    }

    pub(crate) fn backlog(&self) -> Backlog {
        Backlog {
            name: self.id().replace('-', "_"),
            rows: self.rows,
            payload: self.payload,
            rows_of_a_transaction: self.rows_of_a_transaction,
            aggregates: self.aggregates,
            types: self.topics,
        }
    }

    /// A template as in `[route] topic`.
    pub(crate) fn topic(&self) -> String {
        let id = self.id();
        if self.topics > 1 { format!("{id}.${{aggregate_type}}") } else { id }
    }

    /// Additional lines of the router's configuration.
    pub(crate) fn settings(&self) -> String {
        match self.compression.as_str() {
            "none" => String::new(),
            codec => format!("kafka.\"compression.type\" = \"{codec}\"\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn case_names_are_unique_and_valid_in_postgres_and_kafka() {
        let cases = Case::varied(200_000);
        let growing = Case::growing(200_000, 10_000_000);
        let bulk = Case::for_bulk_reads(u64::MAX);
        let all = cases.iter().chain(growing.iter().map(|(_, _, case)| case)).chain(&bulk);
        let ids: Vec<String> = all.map(Case::id).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert!(ids.iter().all(|id| id.len() < 60 && !id.contains([' ', '.', ','])), "{ids:?}");
    }

    #[test]
    fn each_case_varies_one_property() {
        let plain = Case::plain("plain", 200_000);
        for case in Case::varied(200_000) {
            let differences = [
                case.payload != plain.payload,
                case.rows_of_a_transaction != plain.rows_of_a_transaction,
                case.aggregates != plain.aggregates,
                // with six partitions each, a thousand topics would measure the broker
                case.topics != plain.topics || case.partitions != plain.partitions,
                case.compression != plain.compression,
            ];
            assert!(differences.into_iter().filter(|differs| *differs).count() <= 1, "{}", case.name);
            assert!(case.rows >= case.rows_of_a_transaction.max(1), "{}", case.name);
        }
    }
}
