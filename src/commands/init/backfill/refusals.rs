//! What keeps rows from before a slot from being sent.

use pg_logical::quoting::literal;
use pg_logical::session::Session;
use pg_logical::{Lsn, QueryError};

use crate::config::{Config, TableName};
use crate::error::{Effect, Error, ErrorCode, Remedy, Step};
use crate::postgres::backfills::{self, Stored};
use crate::postgres::dead_letters;
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::read_only;
use crate::postgres::slot_functions;

/// `--only` as a condition on `q`.
pub(super) async fn verified(
    session: &mut Session,
    table: &TableName,
    condition: &str,
) -> Result<String, Error> {
    // a comment at its end must not hide what follows
    let inside = format!("({condition}\n)");
    // one that closes the parenthesis does not close the bracket
    for form in [&inside, &format!("(ARRAY[{condition}\n])[1]")] {
        let sql = format!("SELECT FROM {} q WHERE {form} LIMIT 0", table.in_sql());
        if let Err(error) = session.query(&read_only(&sql)).await {
            let QueryError::Server { .. } = error else { return Err(error.into()) };
            session.query("ROLLBACK").await?;
            return Err(Error::usage(
                ErrorCode::CommandLine,
                format!("--only: {error}"),
                "Give a condition on the columns of the outbox table, as after WHERE",
            ));
        }
    }
    Ok(inside)
}

/// Refuses while events are parked: those of rows from before the slot would overtake them.
pub(super) async fn nothing_parked(session: &mut Session, config: &Config) -> Result<(), Error> {
    // those of rows that are about to be read again
    session.query(&dead_letters::sql::forget_of_table(&config.name)).await?;
    let sql = format!(
        "SELECT EXISTS (SELECT FROM {} d WHERE d.router = {} OR starts_with(d.router, {}))",
        dead_letters::sql::TABLE,
        literal(&config.name),
        literal(&format!("{}/", config.name))
    );
    match session.query_one(&read_only(&sql)).await?.as_deref() {
        Some("t") => Err(impossible(
            format!(
                "events of the router {} are parked, and rows from before a new slot would be sent before them",
                config.name
            ),
            Remedy::steps([Step::new("Retry or discard them, with the router running")
                .typing("outbox-router dead-letters list")]),
        )),
        _ => Ok(()),
    }
}

/// Refuses a publication that leaves out rows or columns: the table has them.
pub(super) async fn not_filtered(
    session: &mut Session,
    config: &Config,
    layout: &TableLayout,
    has_condition: bool,
) -> Result<(), Error> {
    let publication = &config.postgres.publication;
    // before 15 there are neither
    let sql = format!(
        "SELECT to_jsonb(r) ->> 'prqual' IS NOT NULL, to_jsonb(r) ->> 'prattrs' IS NOT NULL FROM pg_publication_rel r \
         JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = {} AND r.prrelid = {}",
        literal(publication),
        layout.oid().0
    );
    let found = session.query(&read_only(&sql)).await?;
    let has = |index: usize| found.first().and_then(|row| row.get(index)) == Some("t");
    if has(1) {
        let what = format!(
            "the publication {publication} has a column list, which does not apply to rows of the table"
        );
        return Err(impossible(what, "Remove it, or leave out --backfill"));
    }
    if has(0) && !has_condition {
        let what = format!(
            "the publication {publication} has a row filter, which does not apply to rows of the table"
        );
        return Err(impossible(what, "Give the same condition with --only"));
    }
    Ok(())
}

/// Refuses while slots for another number of shards exist: what they hold is in the table too.
pub(crate) fn no_other_shards(slots: &[String]) -> Result<(), Error> {
    match slots {
        [] => Ok(()),
        slots => Err(impossible(
            format!(
                "there are slots for another number of shards, whose events are in the table too: {}",
                slots.join(", ")
            ),
            "Run init without --backfill, and then shards change",
        )),
    }
}

/// Refuses configurations whose rows cannot be sent from the table.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    table(config)?;
    config.for_rows(None).map(drop).map_err(|needs| {
        impossible(
            format!("`[route]`: `{}` uses a value that only the log has", needs.0),
            "Leave it out until the rows are sent, or leave out --backfill",
        )
    })
}

/// The only table: the order of an aggregate's events in several is not known.
pub(super) fn table(config: &Config) -> Result<&TableName, Error> {
    if config.polling.is_some() {
        return Err(impossible(
            "this router polls the table, and sends every row whose status is new in any case".to_owned(),
            "Leave out --backfill",
        ));
    }
    match config.outbox.tables.as_slice() {
        [table] => Ok(table),
        [] => Err(impossible("no outbox table is configured".to_owned(), "Leave out --backfill")),
        _ => Err(impossible(
            "there are several outbox tables, and nothing tells in which order their rows were inserted"
                .to_owned(),
            "Leave out --backfill, or configure one table until its rows are sent",
        )),
    }
}

/// What an existing slot, with its first position if nobody has moved it, means for `--backfill`, or without it for an unfinished one.
/// Returns whether the slot is to be created anew.
pub(crate) async fn begins_anew(
    session: &mut Session,
    slot: &str,
    confirmed: Option<Lsn>,
    asked: bool,
) -> Result<bool, Error> {
    match backfills::find(session, slot).await? {
        Some(Stored::Incomplete) if asked => {
            session.query(&slot_functions::drop(slot)).await?;
            Ok(true)
        }
        Some(Stored::Incomplete) => Err(incomplete(slot)),
        Some(Stored::Begun(backfill))
            if backfill.finished || confirmed == Some(backfill.selection.slot_start) =>
        {
            if asked {
                let (done, all) = (backfill.done.rows, backfill.selection.rows);
                tracing::info!(
                    "the slot {slot} was created with --backfill before: {done} of {all} rows are sent; --since and --only change nothing"
                );
            }
            Ok(false)
        }
        Some(Stored::Begun(_)) | None if asked => Err(too_late(slot)),
        Some(Stored::Begun(_)) | None => Ok(false),
    }
}

/// Refuses to forget rows that are not sent yet, because their slot is gone.
pub(crate) async fn refuse_to_forget(session: &mut Session, slot: &str) -> Result<(), Error> {
    match backfills::find(session, slot).await? {
        Some(Stored::Begun(backfill)) if !backfill.finished => {
            let (done, all) = (backfill.done.rows, backfill.selection.rows);
            Err(impossible(
                format!("the slot {slot} is gone, and only {done} of {all} rows from before it are sent"),
                Remedy::steps([Step::new(
                    "Begin again, with the same --since and --only: those rows are sent twice",
                )
                .typing("outbox-router init --backfill")])
                .or(
                    "If the others must not be sent",
                    [Step::new("Delete what is stored about them, and run init again")
                        .sql(backfills::forget(slot))],
                ),
            )
            .meaning(
                Effect::Lost,
                "those that were in the slot and whose rows are deleted; the others are in the table",
            ))
        }
        Some(Stored::Incomplete) => Err(incomplete(slot)),
        Some(Stored::Begun(_)) | None => Ok(()),
    }
}

fn incomplete(slot: &str) -> Error {
    impossible(
        format!("`init --backfill` was interrupted before the slot {slot} was complete, or is still running"),
        Remedy::steps([Step::new("Wait for it, or run it again").typing("outbox-router init --backfill")])
            .or(
                "To go on without rows from before the slot",
                [Step::new("Delete what is stored about them, and run init again")
                    .sql(backfills::forget(slot))],
            ),
    )
}

/// The slot exists, and only its creation shows which rows are there before it.
fn too_late(slot: &str) -> Error {
    let again = Step::new(
        "Send rows of the table again, whether they were sent or not; this shows how many there are",
    )
    .typing("outbox-router replay --dry-run");
    impossible(
        format!(
            "the slot {slot} exists already, and only when it is created can the rows from before it be told from those in it"
        ),
        Remedy::steps([Step::new("If no router has read the slot, drop it, and run init again")
            .sql(slot_functions::drop(slot))])
        .or("Otherwise", [again]),
    )
}

pub(super) fn impossible(what: String, remedy: impl Into<Remedy>) -> Error {
    Error::refused(ErrorCode::BackfillImpossible, what, remedy).meaning(Effect::None, "")
}
