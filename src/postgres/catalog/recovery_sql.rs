//! SQL with which an operator can read what the stream does not contain.
//!
//! As long as the slot has not passed a part of the log, a copy of it with another plugin returns that part in commit order,
//! whatever has happened to the publication and the rows since. An invalidated slot cannot be copied (15: "doesn't reserve
//! WAL", 18: "cannot copy invalidated replication slot"), which only leaves the table.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::table::Table;
use crate::config::{OutboxSource, TableName};

/// A comment after statements that show the rows of all shards, for a router of one shard.
const OF_ALL_SHARDS: &str = " -- rows of all shards";

/// Statements that show the inserts after the slot's position in commit order, including rows deleted since. They belong in
/// one session, whose end drops the copy, and nobody may read the slot meanwhile. `tables` are the outbox tables as they are
/// now.
pub fn in_commit_order(source: OutboxSource<'_>, tables: &[Option<Table>]) -> String {
    let (postgres, outbox) = (source.postgres, source.outbox);
    let slot = literal(&postgres.slot);
    // slot names are unique on the server, and another router may need a copy too: the name contains this router's slot, cut
    // to 63 bytes
    let copy = literal(&format!("{}_rescue", postgres.slot.chars().take(56).collect::<String>()));
    // The rows of a partition are shown under its own name, and those of a table that was renamed or moved to another schema
    // under either name. Only a publication that names a table keeps it when it is moved to another schema.
    let named = |table: &Table| !table.partitioned && !table.published_unnamed();
    let by_name =
        tables.len() == outbox.tables.len() && tables.iter().all(|table| table.as_ref().is_some_and(named));
    let mut wanted: Vec<String> = if by_name {
        // test_decoding quotes names only where it must, as %I does
        let beginning = |table: &TableName| {
            format!("format('table %I.%I: INSERT:', {}, {})", literal(&table.schema), literal(&table.name))
        };
        outbox.tables.iter().map(|table| format!("starts_with(data, {})", beginning(table))).collect()
    } else {
        vec!["data LIKE 'table %: INSERT:%'".to_owned()]
    };
    if let Some(prefix) = &outbox.message_prefix {
        let beginning = literal(&format!("message: transactional: 1 prefix: {prefix},"));
        wanted.push(format!("starts_with(data, {beginning})"));
    }
    format!(
        "SELECT pg_copy_logical_replication_slot({slot}, {copy}, true, 'test_decoding'); \
         SELECT lsn, data FROM pg_logical_slot_peek_changes({copy}, NULL, NULL) WHERE {}{}",
        wanted.join(" OR "),
        of_all_shards(source)
    )
}

/// A query for every outbox row committed after the position of a lost slot, and some committed shortly before. The slot's
/// `catalog_xmin` survives its invalidation. It is the oldest transaction that was open when the slot last moved, so
/// everything committed after its position has that transaction id or a later one. `None`: without a table there is nothing
/// to read.
pub fn from_table(source: OutboxSource<'_>, catalog_xmin: Option<u32>) -> Option<String> {
    let outbox = source.outbox;
    let since = catalog_xmin.map(|xid| format!(" WHERE age(xmin) <= age('{xid}'::xid)")).unwrap_or_default();
    let query = |table: &TableName| {
        let order = outbox
            .columns
            .created_at
            .as_deref()
            .map(|column| format!(" ORDER BY {}", quoting::identifier(column)));
        format!("SELECT * FROM {}{since}{}", table.in_sql(), order.unwrap_or_default())
    };
    let queries: Vec<String> = outbox.tables.iter().map(query).collect();
    (!queries.is_empty()).then(|| queries.join("; ") + of_all_shards(source))
}

/// A statement for each outbox table that inserts the rows again that are still there, from the transaction `since` on. The
/// router sends them again. `None`: without a table there is nothing to send, and with shards it would send the rows of all.
pub fn send_again(source: OutboxSource<'_>, since: u32) -> Option<String> {
    let outbox = source.outbox;
    let order = outbox.columns.created_at.as_deref().map(quoting::identifier);
    let order = order.map(|column| format!(" ORDER BY {column}")).unwrap_or_default();
    let statement = |table: &TableName| {
        let table = table.in_sql();
        format!(
            "WITH again AS (DELETE FROM {table} WHERE age(xmin) <= age('{since}'::xid) RETURNING *) \
             INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM again{order}"
        )
    };
    let statements: Vec<String> = outbox.tables.iter().map(statement).collect();
    (!statements.is_empty() && source.shard.is_none()).then(|| statements.join("; "))
}

fn of_all_shards(source: OutboxSource<'_>) -> &'static str {
    if source.shard.is_some() { OF_ALL_SHARDS } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Outbox, Postgres};
    use crate::postgres::catalog::slot::tests::config;
    use crate::shards::Shard;

    fn table(partitioned: bool) -> Option<Table> {
        Some(Table {
            oid: 1,
            partitioned,
            unlogged: false,
            membership: String::new(),
            published: true,
            row_filter: None,
            traces: Default::default(),
            partitions_watched: false,
        })
    }

    #[test]
    fn the_copy_of_the_slot_is_asked_for_the_outbox_alone() {
        let outbox = Outbox {
            tables: vec![
                TableName { schema: "public".into(), name: "outbox".into() },
                TableName { schema: "it's".into(), name: "Events".into() },
            ],
            message_prefix: Some("outbox".into()),
            ..config().outbox
        };
        let two = Config { outbox, ..config() };
        insta::assert_snapshot!(in_commit_order(two.source(), &[table(false), table(false)]), @r#"SELECT pg_copy_logical_replication_slot('outbox_router', 'outbox_router_rescue', true, 'test_decoding'); SELECT lsn, data FROM pg_logical_slot_peek_changes('outbox_router_rescue', NULL, NULL) WHERE starts_with(data, format('table %I.%I: INSERT:', 'public', 'outbox')) OR starts_with(data, format('table %I.%I: INSERT:', 'it''s', 'Events')) OR starts_with(data, 'message: transactional: 1 prefix: outbox,')"#);
    }

    #[test]
    fn the_copy_has_a_name_that_postgres_takes_and_no_other_router_uses() {
        let postgres = Postgres { slot: "s".repeat(63), ..config().postgres };
        let config = Config { postgres, ..config() };
        let sql = in_commit_order(config.source(), &[table(false)]);
        assert!(sql.contains(&format!("'{}_rescue'", "s".repeat(56))), "{sql}");
    }

    #[test]
    fn a_table_whose_rows_have_other_names_is_not_asked_for_by_name() {
        for tables in [vec![table(true)], vec![None], vec![]] {
            let sql = in_commit_order(config().source(), &tables);
            assert!(sql.ends_with("WHERE data LIKE 'table %: INSERT:%'"), "{sql}");
        }
    }

    #[test]
    fn a_table_that_the_publication_does_not_name_is_not_asked_for_by_name_either() {
        let unnamed = table(false).map(|table| Table { membership: "; 5/6".into(), ..table });
        let sql = in_commit_order(config().source(), &[unnamed]);
        assert!(sql.ends_with("WHERE data LIKE 'table %: INSERT:%'"), "{sql}");
    }

    #[test]
    fn the_table_is_asked_from_the_oldest_open_transaction_on() {
        assert_eq!(
            from_table(config().source(), Some(754)).unwrap(),
            "SELECT * FROM \"public\".\"outbox\" WHERE age(xmin) <= age('754'::xid) ORDER BY \"created_at\""
        );
        let outbox = Outbox { tables: vec![], ..config().outbox };
        let config = Config { outbox, ..config() };
        assert!(from_table(config.source(), Some(754)).is_none());
    }

    #[test]
    fn statements_over_all_shards_say_so() {
        let config = Config { shard: Some(Shard { number: 0, of: 2 }), ..config() };
        assert!(in_commit_order(config.source(), &[table(false)]).ends_with(" -- rows of all shards"));
        assert!(from_table(config.source(), Some(754)).unwrap().ends_with(" -- rows of all shards"));
    }
}
