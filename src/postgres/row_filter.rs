//! The row filters that distribute rows over shards, and a check whether a filter is one of them.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use crate::config::TableName;
use crate::shards::{Ids, Shard};

/// The row filter of one shard on a table with the aggregate ids in `column`. Filters may only use functions of Postgres
/// itself. The sign bit is masked, because `%` keeps the sign.
pub fn row_filter(ids: Ids, column: &str, shard: Shard) -> String {
    let column = quoting::identifier(column);
    let hash = match ids {
        Ids::Texts => format!("pg_catalog.hashtext(COALESCE({column}, ''))"),
        Ids::Uuids => format!("COALESCE(pg_catalog.uuid_hash({column}), 0)"),
        Ids::Integers => format!("COALESCE(pg_catalog.hashint8({column}), 0)"),
    };
    format!("({hash} & 2147483647) % {} = {}", shard.of, shard.number)
}

/// A statement that begins and ends like this and has the tables in between, each with its row filter. A filter depends on the type of
/// the aggregate ids in `column`, which only the database knows. `newline` may be a space.
pub fn with_filtered_tables(
    begins: &str,
    tables: &[TableName],
    column: &str,
    shard: Shard,
    ends: &str,
    newline: &str,
) -> String {
    let mut statement = literal(begins);
    for (number, table) in tables.iter().enumerate() {
        let separator = if number == 0 { "" } else { ", " };
        let before = literal(&format!("{separator}{} WHERE (", table.in_sql()));
        statement +=
            &format!("{newline}  || {before} || {} || ')'", filter_of(table, column, shard, newline));
    }
    if !ends.is_empty() {
        statement += &format!("{newline}  || {}", literal(ends));
    }
    format!(
        "DO {}",
        quoting::dollar_quoted(&format!("{newline}BEGIN{newline}EXECUTE {statement};{newline}END{newline}"))
    )
}

/// An expression for the filter on one table, chosen by the type of its column.
fn filter_of(table: &TableName, column: &str, shard: Shard, newline: &str) -> String {
    let of = |ids| literal(&row_filter(ids, column, shard));
    format!(
        "(SELECT CASE WHEN a.atttypid = 'pg_catalog.uuid'::pg_catalog.regtype THEN {}{newline}    \
         WHEN a.atttypid IN ('int2'::pg_catalog.regtype, 'int4'::pg_catalog.regtype, 'int8'::pg_catalog.regtype) THEN {}{newline}    \
         ELSE {} END{newline}    \
         FROM pg_catalog.pg_attribute a WHERE a.attrelid = {}::pg_catalog.regclass AND a.attname = {})",
        of(Ids::Uuids),
        of(Ids::Integers),
        of(Ids::Texts),
        literal(&table.in_sql()),
        literal(column)
    )
}

/// Whether `filter`, as the catalogues give it, is that of the shard. It must be the same expression: a different one may
/// agree on many ids and still leave out another.
pub fn is_that_of(filter: &str, ids: Ids, column: &str, shard: Shard) -> bool {
    bare(filter) == bare(&row_filter(ids, column, shard))
}

/// Removes what Postgres may print differently: brackets, quotes of names, casts between types of text or integers, schemas.
/// The rest is unambiguous, because each operator in it has a different precedence.
fn bare(filter: &str) -> String {
    let mut text: String = filter.chars().filter(|c| !matches!(c, '(' | ')' | '"' | ' ')).collect();
    for added in ["pg_catalog.", "::text", "::charactervarying", "::bigint"] {
        text = text.replace(added, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_known_as_postgres_prints_it() {
        let shard = Shard { number: 1, of: 2 };
        for (ids, printed) in [
            (Ids::Texts, "(((hashtext(COALESCE(aggregate_id, ''::text)) & 2147483647) % 2) = 1)"),
            (
                Ids::Texts,
                "(((hashtext((COALESCE(aggregate_id, ''::character varying))::text) & 2147483647) % 2) = 1)",
            ),
            (Ids::Uuids, "(((COALESCE(uuid_hash(aggregate_id), 0) & 2147483647) % 2) = 1)"),
            (Ids::Integers, "(((COALESCE(hashint8((aggregate_id)::bigint), 0) & 2147483647) % 2) = 1)"),
        ] {
            assert!(is_that_of(printed, ids, "aggregate_id", shard), "{printed}");
            for other in [
                printed.replace("% 2", "% 3"),
                printed.replace("= 1", "= 0"),
                printed.replace("& 2147483647", "& 7"),
                printed.replace("aggregate_id", "other"),
                format!("({printed} AND (aggregate_id <> 'vip'))"),
            ] {
                assert!(!is_that_of(&other, ids, "aggregate_id", shard), "{other}");
            }
        }
    }
}
