//! The steps that send rows which the stream lacks because of the publication or the table.

use pg_logical::{Lsn, quoting};

use super::Catalog;
use super::first_slot;
use super::recovery_sql::{self, Recovery, Until};
use crate::config::{OutboxSource, TableName};
use crate::error::{Remedy, Step};
use crate::shards;

/// What to do after an alteration while the router ran, once the commands of `fix` are typed. Its position may be later than the slot's, so a
/// start gives the statements if it stops there.
pub(super) fn resume_after_alteration(catalog: &Catalog, source: OutboxSource<'_>, fix: Remedy) -> Remedy {
    let run = format!("outbox-router run{}", shards::argument(source.shard));
    if !source.checkpoints {
        // at most three steps
        let start = Remedy::steps([Step::new("Start the router").typing(run)]);
        return recovery_steps(catalog, source, catalog.confirmed())
            .preceded_by(fix.clone())
            .and("To go on without the rows that were not published", start.preceded_by(fix));
    }
    fix.then_all(Remedy::steps([Step::new(
        "Start the router: it stops again, and prints with its position how to find and send the rows that were not published",
    )
    .typing(run)]))
}

/// The steps that send rows which were written while no publication published them. The router has delivered up to `position`.
pub(super) fn recovery_steps(catalog: &Catalog, source: OutboxSource<'_>, position: Lsn) -> Remedy {
    let Recovery { store, show, send } =
        recovery_sql::in_commit_order(source, &catalog.tables, position, Until::Now);
    let mut save = Step::new(format!(
        "Stop all routers, and create the publication if it does not exist. As an administrator, in one psql session, save what was \
         committed after {position}, in commit order and with rows deleted since. LOCK TABLE waits for transactions that have written to \
         the table, and writers wait for it. The result has the number of rows, and a `slot advance` command for step 3"
    ))
    .typing(catalog.init(source));
    if !source.outbox.tables.is_empty() {
        // a row that was written before the table was published, and is committed only after the rows were saved, would be in neither
        let tables: Vec<String> = source.outbox.tables.iter().map(TableName::in_sql).collect();
        save = save.sql(format!("BEGIN; LOCK TABLE {} IN SHARE MODE; COMMIT", tables.join(", ")));
    }
    Remedy::steps([
        save.sql(store),
        Step::new(format!(
            "Look at the saved rows. What was sent in the last moments before the router stopped is sent twice, and so is the sent part of \
             a transaction. Rows written while the table was unlogged, and older rows of an attached partition, are not among them: they \
             are only in the table. {}",
            recovery_sql::of_which_shards(source)
        ).trim_end().trim_end_matches('.'))
        .sql(show),
        Step::new(format!(
            "Run the `slot advance` command of step 1: the router goes on after the saved rows. That command sees events only as far as the \
             publication has them, so it may count none, or not all. Start the router, and insert the saved rows again{}",
            recovery_sql::REPLACED
        ))
        .typing(format!("outbox-router run{}", shards::argument(source.shard)))
        .sql(send),
    ])
}

/// The finding about an unlogged table.
pub fn unlogged(table: &TableName) -> String {
    format!("the outbox table {table} is unlogged, so its rows are not in the write-ahead log")
}

const ORDINARY: &str = "Make it an ordinary table, which rewrites the table and locks it meanwhile";

/// How a table becomes an ordinary one, and how the rows that were written before are sent. `then` is typed once it is one, before the
/// rows are saved.
pub fn log_table(
    catalog: &Catalog,
    source: OutboxSource<'_>,
    table: &TableName,
    then: Option<&str>,
) -> Remedy {
    let alter = |text: &str| {
        let alter = Step::new(text).sql(format!("ALTER TABLE {} SET LOGGED", table.in_sql()));
        // a publication of all tables publishes it again by itself
        if catalog.publication.as_ref().is_none_or(|publication| publication.shared) || source.shard.is_some()
        {
            return alter;
        }
        alter.sql(format!(
            "ALTER PUBLICATION {} ADD TABLE {}",
            quoting::identifier(&source.postgres.publication),
            table.in_sql()
        ))
    };
    if catalog.slot.is_none() {
        let text = format!("{ORDINARY}, and create the slot");
        return first_slot::create(catalog, source, &text, &Remedy::steps([alter("")]));
    }
    let mut save = alter(&format!(
        "{ORDINARY}. At once, as an administrator, save all of its rows: those written while it was unlogged are nowhere else"
    ));
    let mut go_on = alter(&format!("{ORDINARY}. Start the router"));
    if let Some(then) = then {
        (save, go_on) = (save.typing(then), go_on.typing(then));
    }
    let run = format!("outbox-router run{}", shards::argument(source.shard));
    Remedy::steps(recovery_sql::send_from_table(source, &catalog.named, None, save, "").unwrap_or_default())
        .or("To go on without the rows that were written while it was unlogged", [go_on.typing(run)])
}
