//! How a router gets a publication of its own, beside one that others read or whose column list leaves out columns.
//!
//! It needs a new slot too: the log before the publication was created cannot be decoded with it.

use pg_logical::quoting::{literal, with_suffix};

use super::Catalog;
use super::columns::Columns;
use super::first_slot;
use super::recovery_sql::{self, Recovery, Until};
use crate::config::OutboxSource;
use crate::error::{Error, ErrorCode, Remedy, Step};
use crate::outbox::Outbox;
use crate::postgres::slot_functions;
use crate::shards;

/// The steps while the present publication still delivers events. No other reader notices them.
pub(super) fn own_publication(catalog: &Catalog, source: OutboxSource<'_>) -> Vec<Step> {
    let slot = source.of_this_shard(&own_slot(source));
    vec![
        new_settings(catalog, source, " while the router still runs with the old ones"),
        Step::new(
            "Wait until this shows t: the old slot has then delivered everything that the new one lacks",
        )
        .sql(format!(
            "SELECT o.confirmed_flush_lsn >= n.confirmed_flush_lsn FROM pg_replication_slots o, pg_replication_slots n \
             WHERE o.slot_name = {} AND n.slot_name = {}",
            literal(&source.postgres.slot),
            literal(&slot)
        )),
        Step::new(start(source, "")).typing(run(source)).sql(slot_functions::drop(&source.postgres.slot)),
    ]
}

/// The steps if rows are not published, or not as a whole. Everything that the new slot lacks is read from the old one, which has
/// delivered up to its position.
pub(super) fn own_publication_with_rows(catalog: &Catalog, source: OutboxSource<'_>) -> Vec<Step> {
    let slot = source.of_this_shard(&own_slot(source));
    let Recovery { store, show, send } =
        recovery_sql::in_commit_order(source, &catalog.tables, catalog.confirmed(), Until::Slot(&slot));
    vec![
        new_settings(catalog, source, ""),
        Step::new(format!(
            "As an administrator, in one psql session, save what only the old slot has, in commit order and with rows deleted since, and look \
             at it. What was sent in the last moments before the router stopped is sent twice. {}",
            recovery_sql::of_which_shards(source)
        ).trim_end().trim_end_matches('.'))
        .sql(store)
        .sql(show),
        Step::new(start(
            source,
            &format!(
                " Insert the saved rows again{}, and every reader of the table's changes sees them again.",
                recovery_sql::REPLACED
            ),
        ))
        .typing(run(source))
        .sql(send)
        .sql(slot_functions::drop(&source.postgres.slot)),
    ]
}

/// The ways to a publication of the router's own.
pub(super) fn own_publication_remedy(catalog: &Catalog, source: OutboxSource<'_>) -> Remedy {
    if catalog.slot.is_some() {
        return Remedy::steps(own_publication_with_rows(catalog, source));
    }
    let (publication, _) = own_names(source);
    let text = format!(
        "In the configuration set, under `[postgres]`, publication = \"{publication}\". Create it and the slot, and start the router"
    );
    first_slot::create(catalog, source, &text, &Remedy::default())
}

/// Refuses a column list that leaves out columns which the router needs: it could read no row.
///
/// # Errors
/// There is one; the exit code is 1.
pub fn check_column_lists(
    outbox: &Outbox,
    source: OutboxSource<'_>,
    columns: &[Columns],
    catalog: &Catalog,
) -> Result<(), Error> {
    for table in columns {
        let needed = table.needed_of_left_out(outbox);
        if !needed.is_empty() {
            let refused = Error::refused(
                ErrorCode::ColumnList,
                format!(
                    "the column list of the publication {} leaves out {}, which the router needs of the table {}",
                    source.postgres.publication,
                    needed.join(" and "),
                    table.table
                ),
                own_publication_remedy(catalog, source),
            );
            return Err(if catalog.slot.is_some() { refused } else { refused.without_slot() });
        }
    }
    Ok(())
}

/// The name of a slot of the router's own, beside one that others read.
pub(super) fn own_slot(source: OutboxSource<'_>) -> String {
    own_names(source).1
}

/// The names of the new publication and slot.
fn own_names(source: OutboxSource<'_>) -> (String, String) {
    let (publication, slot) = source.base_names();
    (with_suffix(publication, "_own"), with_suffix(slot, "_own"))
}

/// The first step. `when` says when to create what is new.
fn new_settings(catalog: &Catalog, source: OutboxSource<'_>, when: &str) -> Step {
    let (publication, slot) = own_names(source);
    Step::new(format!(
        "In the configuration set name = \"{}\" (its present value), and under `[postgres]` publication = \"{publication}\" and \
         slot = \"{slot}\". Create them{when}",
        source.router
    ))
    .typing(catalog.init(source))
}

/// The text of the last step. The new slot misses no commit after its creation, which waits for open transactions.
fn start(source: OutboxSource<'_>, then: &str) -> String {
    let each = if source.shard.is_some() { ", and so for each shard" } else { "" };
    format!(
        "Stop the router, and start it with the new configuration. If it stops with OBR-3102, because its checkpoint belongs to the old slot, \
         run the --accept-gap command that it prints; events since init may be sent again, and none is left out.{then} Then drop the old slot, \
         which retains log{each}"
    )
}

fn run(source: OutboxSource<'_>) -> String {
    format!("outbox-router run{}", shards::argument(source.shard))
}
