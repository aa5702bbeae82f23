//! The row filters that deal out the rows, as SQL, and the question whether a filter is one of them.

use super::{Ids, Shard};
use crate::postgres::quoting;

/// How many ids of each table a filter is tried on, besides NULL.
const SAMPLES: u32 = 1_000;

/// The row filter of one shard on a table whose aggregates are in `column`. Each function is one of Postgres itself, for
/// filters take no others, and the sign is taken off, for `%` keeps it.
pub fn row_filter(ids: Ids, column: &str, shard: Shard) -> String {
    let column = quoting::name(column);
    let hash = match ids {
        Ids::Texts => format!("pg_catalog.hashtext(COALESCE({column}, ''))"),
        Ids::Uuids => format!("COALESCE(pg_catalog.uuid_hash({column}), 0)"),
        Ids::Integers => format!("COALESCE(pg_catalog.hashint8({column}), 0)"),
    };
    format!("({hash} & 2147483647) % {} = {}", shard.of, shard.number)
}

/// A query for the number of ids on which `filter`, as the catalogues give it, decides otherwise than the shard's own. It
/// fails where the filter asks for other columns. `sql_type` is that of the column.
pub fn disagreement(filter: &str, ids: Ids, column: &str, sql_type: &str, shard: Shard) -> String {
    let expected = row_filter(ids, column, shard);
    format!(
        "SELECT pg_catalog.count(*) FROM ({}) AS sample WHERE (({filter}) IS TRUE) <> (({expected}) IS TRUE)",
        samples(ids, column, sql_type)
    )
}

/// A query for ids of many kinds.
fn samples(ids: Ids, column: &str, sql_type: &str) -> String {
    let sample = match ids {
        Ids::Texts => "pg_catalog.repeat('ä' || i, i % 7)",
        Ids::Uuids => "pg_catalog.md5(i::text)",
        // of both signs, and within the narrowest type
        Ids::Integers => "(i * 61 % 65536 - 32768)",
    };
    format!(
        "SELECT NULL::{sql_type} AS {name} UNION ALL SELECT {sample}::{sql_type} \
         FROM pg_catalog.generate_series(1, {SAMPLES}) AS i",
        name = quoting::name(column)
    )
}
