//! How a router gets a publication of its own, beside one that others read or whose column list has left out columns.
//!
//! It needs a new slot too: the log before the publication was created cannot be decoded with it.

use pg_logical::quoting;
use pg_logical::quoting::literal;

use super::columns::Columns;
use super::{Catalog, recovery_sql};
use crate::config::OutboxSource;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::outbox::Outbox;
use crate::postgres::slot_functions;
use crate::shards;

/// The steps while the present publication still delivers events. No other reader notices them. `router` is the router's name
/// without the number of a shard; unless it is set, it follows the slot's.
pub fn own_publication(router: &str, source: OutboxSource<'_>) -> Vec<Step> {
    let (_, slot) = own_names(source);
    vec![
        new_settings(router, source, " while the router still runs with the old ones"),
        Step::new(
            "Wait until this shows t: the old slot has then delivered everything that the new one lacks",
        )
        .sql(format!(
            "SELECT o.confirmed_flush_lsn >= n.confirmed_flush_lsn FROM pg_replication_slots o, pg_replication_slots n \
             WHERE o.slot_name = {} AND n.slot_name = {}",
            literal(&source.postgres.slot),
            literal(&slot)
        )),
        start_and_drop(source),
    ]
}

/// The steps for rows that lack columns because of a column list: no publication can complete them in the log, so they are
/// written again. `columns` are those of the outbox tables.
pub fn rewrite_rows(
    router: &str,
    source: OutboxSource<'_>,
    columns: &[Columns],
    catalog: &Catalog,
) -> Vec<Step> {
    let deleted = recovery_sql::in_commit_order(source, &catalog.tables, catalog.confirmed());
    let again: Vec<String> = columns.iter().map(|columns| again(source, columns)).collect();
    vec![
        new_settings(router, source, ""),
        Step::new(
            "The rows are complete in the table. As its owner, run the last statement to write those again that only the old slot has; they \
             may arrive after events that were written since init, and every reader of the table's changes sees them again. Rows deleted \
             since are only in the log: to see them, run the other statements first, in one session",
        )
        .sql(deleted.store)
        .sql(deleted.show)
        .sql(again.join("; ")),
        start_and_drop(source),
    ]
}

/// Refuses a column list that leaves out columns which the router needs: it could read no row.
///
/// # Errors
/// There is one; the exit code is 1.
pub fn check_column_lists(
    router: &str,
    outbox: &Outbox,
    source: OutboxSource<'_>,
    columns: &[Columns],
    catalog: &Catalog,
) -> Result<(), Error> {
    for table in columns {
        let needed = table.needed_of_left_out(outbox);
        if !needed.is_empty() {
            return Err(Error::refused(
                ErrorCode::ColumnList,
                format!(
                    "the column list of the publication {} leaves out {}, which the router needs of the table {}",
                    source.postgres.publication,
                    needed.join(" and "),
                    table.table
                ),
                Remedy::steps(rewrite_rows(router, source, columns, catalog)),
            ));
        }
    }
    Ok(())
}

/// The name of a slot of the router's own, beside one that others read.
pub(super) fn own_slot(source: OutboxSource<'_>) -> String {
    own_names(source).1
}

/// The names of the new publication and slot. Names have at most 63 bytes.
fn own_names(source: OutboxSource<'_>) -> (String, String) {
    let own = |name: &str| name.chars().take(57).collect::<String>() + "_own";
    let (publication, slot) = source.base_names();
    (own(publication), own(slot))
}

/// The first step. `when` says when to create what is new.
fn new_settings(router: &str, source: OutboxSource<'_>, when: &str) -> Step {
    let (publication, slot) = own_names(source);
    Step::new(format!(
        "In the configuration set name = \"{router}\" (its present value), and under `[postgres]` publication = \"{publication}\" and \
         slot = \"{slot}\". Create them{when}"
    ))
    .typing("outbox-router init")
}

/// The last step. The new slot misses no commit after its creation, which waits for open transactions.
fn start_and_drop(source: OutboxSource<'_>) -> Step {
    let each = if source.shard.is_some() { ", and so for each shard" } else { "" };
    Step::new(format!(
        "Stop the router, and start it with the new configuration. If it stops with OBR-3102, because its checkpoint belongs to the old slot, \
         run the --accept-gap command that it prints; events since init may be sent again, and none is left out. Then drop the old slot, which \
         retains log{each}"
    ))
    .typing(format!("outbox-router run{}", shards::argument(source.shard)))
    .sql(slot_functions::drop(&source.postgres.slot))
}

/// The slot's `catalog_xmin` is the oldest transaction that was open at its position, so rows that only it has were written by
/// that transaction or a later one.
fn again(source: OutboxSource<'_>, columns: &Columns) -> String {
    let table = columns.table.in_sql();
    let names: Vec<String> = columns.written.iter().map(|name| quoting::identifier(name)).collect();
    let names = names.join(", ");
    let order = source.outbox.columns.created_at.as_ref().filter(|column| columns.written.contains(column));
    let order = order.map(|column| format!(" ORDER BY {}", quoting::identifier(column))).unwrap_or_default();
    format!(
        "WITH again AS (DELETE FROM {table} WHERE age(xmin) <= (SELECT age(s.catalog_xmin) FROM pg_replication_slots s \
         WHERE s.slot_name = {}) RETURNING *) INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM again{order}",
        literal(&source.postgres.slot)
    )
}
