//! Whether a role can read every row from before a slot.

use pg_logical::quoting;
use pg_logical::session::Session;

use super::{Backfill, Stored, TABLE, find, is_readable};
use crate::config::TableName;
use crate::error::{Effect, Error, ErrorCode, Remedy, Step};
use crate::postgres::rows::layout::TableLayout;
use crate::postgres::rows::read_only;

/// Refuses a role that may not read every row. Asks only the catalogues, so that a locked table delays nothing.
///
/// # Errors
/// The refusal, or those of the query.
pub async fn verify(
    session: &mut Session,
    role: &str,
    layout: &TableLayout,
    table: &TableName,
) -> Result<(), Error> {
    let oid = layout.oid().0;
    let sql = format!("SELECT has_table_privilege({oid}, 'SELECT'), row_security_active({oid})");
    let rows = session.query(&read_only(&sql)).await?;
    let value = |index: usize| rows.first().and_then(|row| row.get(index));
    let role = quoting::identifier(role);
    let (what, remedy) = match (value(0), value(1)) {
        (Some("t"), Some("f")) => return Ok(()),
        (Some("t"), _) => (
            format!("row-level security of {table} may hide rows from the role {role}"),
            Step::new("As a superuser let the role read all rows, at least until they are sent")
                .sql(format!("ALTER ROLE {role} BYPASSRLS")),
        ),
        _ => (
            format!(
                "the role {role} may not read {table}, and rows from before the slot are read with SELECT"
            ),
            Step::new("As the table's owner allow it, at least until they are sent")
                .sql(format!("GRANT SELECT ON {} TO {role}", table.in_sql())),
        ),
    };
    Err(Error::refused(ErrorCode::BackfillImpossible, what, Remedy::steps([remedy])))
}

/// The table of a backfill, among these.
///
/// # Errors
/// It is another one.
pub fn table<'a>(tables: &'a [TableName], backfill: &Backfill) -> Result<&'a TableName, Error> {
    let outbox = &backfill.selection.outbox;
    match tables {
        [table] if table.in_sql() == *outbox => Ok(table),
        _ => Err(Error::not_safe(
            ErrorCode::BackfillImpossible,
            format!(
                "rows of {outbox} from before the slot are not sent yet, and that is not the outbox table of this configuration"
            ),
            "Set `[outbox] table` back until they are sent",
        )),
    }
}

/// Refuses what would lose or repeat rows from before these slots that are not sent yet. `why`: what that would be, as a clause.
///
/// # Errors
/// The refusal, or those of the query.
pub async fn refuse_unfinished(session: &mut Session, slots: &[String], why: &str) -> Result<(), Error> {
    match is_readable(session).await? {
        None => return Ok(()),
        Some(true) => {}
        Some(false) => {
            return Err(Error::refused(
                ErrorCode::BackfillImpossible,
                format!("this role may not read {TABLE}, which says whether rows from before the slot are still to be sent"),
                "Give --url of a role that may, such as the one that ran `outbox-router init`",
            )
            .meaning(Effect::None, ""));
        }
    }
    for slot in slots {
        let Some(stored) = find(session, slot).await? else { continue };
        let left = match &stored {
            Stored::Begun(backfill) if backfill.finished => continue,
            Stored::Begun(backfill) => backfill.selection.rows.saturating_sub(backfill.done.rows).to_string(),
            Stored::Incomplete => "some".to_owned(),
        };
        return Err(Error::refused(
            ErrorCode::BackfillImpossible,
            format!("{left} rows from before the slot {slot} are not sent yet, and {why}"),
            Remedy::steps([Step::new("Let the router send them first; this shows how far it is")
                .typing("outbox-router status")]),
        )
        .meaning(Effect::None, ""));
    }
    Ok(())
}
