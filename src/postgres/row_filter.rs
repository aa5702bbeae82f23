//! The row filters that distribute rows over shards, and a check whether a filter is one of them.

use pg_logical::quoting;

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
