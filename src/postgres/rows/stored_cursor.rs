//! A cursor in a row of the router's own tables: its time, also as text, and the texts of what orders rows of the same time.

use pg_logical::quoting::literal;
use pg_logical::session::Row;

use super::{micros_of, moment, text_array};
use crate::outbox::Cursor;

/// The columns in a SELECT, for [`read`].
pub fn columns() -> String {
    format!("{}, last_created_at, to_json(last_ties)", micros_of("last_inserted_at"))
}

/// The cursor whose [`columns`] begin at `first`; `None`: none was stored.
pub fn read(row: &Row, first: usize) -> Option<Cursor> {
    Some(Cursor {
        micros: row.get(first)?.parse().ok()?,
        created_at: row.get(first + 1)?.to_owned(),
        ties: serde_json::from_str(row.get(first + 2)?).ok()?,
    })
}

/// The assignments of an UPDATE, each with a comma before it; none without a cursor.
pub fn assignments(cursor: Option<&Cursor>) -> String {
    cursor.map_or_else(String::new, |cursor| {
        format!(
            ", last_inserted_at = {}, last_created_at = {}, last_ties = {}",
            moment(cursor.micros),
            literal(&cursor.created_at),
            text_array(&cursor.ties)
        )
    })
}
