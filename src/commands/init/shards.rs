//! The publication of a shard. Its row filter depends on the type of the ids, which is only known in the database.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use crate::config::{Config, TableName};
use crate::postgres::row_filter::row_filter;
use crate::shards::{Ids, Shard};

/// A statement that creates it for any type of the ids.
pub(super) fn create_publication(config: &Config, shard: Shard) -> String {
    let publication = quoting::name(&config.postgres.publication);
    let mut statement = literal(&format!("CREATE PUBLICATION {publication} FOR TABLE "));
    for (number, table) in config.outbox.tables.iter().enumerate() {
        let separator = if number == 0 { "" } else { ", " };
        let before = literal(&format!("{separator}{} WHERE (", table.in_sql()));
        statement += &format!("\n  || {before} || {} || ')'", filter_of(config, table, shard));
    }
    statement +=
        &format!("\n  || {}", literal(" WITH (publish = 'insert', publish_via_partition_root = true)"));
    let block = format!("\nBEGIN\nEXECUTE {statement};\nEND\n");
    format!("DO {};", quoting::dollar_quoted(&block))
}

/// The filter on one table, chosen by the type of its column.
fn filter_of(config: &Config, table: &TableName, shard: Shard) -> String {
    let column = &config.outbox.columns.aggregate_id;
    let of = |ids| literal(&row_filter(ids, column, shard));
    format!(
        "(SELECT CASE WHEN a.atttypid = 'pg_catalog.uuid'::pg_catalog.regtype THEN {}\n    \
         WHEN a.atttypid IN ('int2'::pg_catalog.regtype, 'int4'::pg_catalog.regtype, 'int8'::pg_catalog.regtype) THEN {}\n    \
         ELSE {} END\n    \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {}::pg_catalog.regclass AND a.attname = {})",
        of(Ids::Uuids),
        of(Ids::Integers),
        of(Ids::Texts),
        literal(&table.in_sql()),
        literal(column)
    )
}
