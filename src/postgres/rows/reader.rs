//! Reads a table page by page, each in a short transaction.

use std::time::Instant;

use pg_logical::session::{Row, Session};
use pg_logical::{PgTimestamp, QueryError};

use super::TableRow;
use super::page::{EARLIEST, RowQuery};
use super::spans::Spans;
use crate::outbox::Cursor;

/// How many rows a page has.
const PAGE_ROWS: usize = 2_000;

/// How many bytes its values have.
const PAGE_BYTES: usize = 4 << 20;

/// Which part of a table is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The earliest time of an insert, in microseconds since 1970; `None`: the first row.
    pub since: Option<i64>,
    /// The time before which the inserts were.
    pub until: i64,
    /// The row after which to begin.
    pub after: Option<Cursor>,
}

/// Where a reader is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowReader {
    query: RowQuery,
    spans: Spans,
    /// The last row that was read, if there may be more in the span.
    after: Option<Cursor>,
}

/// A row that was read, with its place.
pub type Found = (TableRow, Cursor);

impl RowReader {
    /// Begins to read this part of the table.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn begin(session: &mut Session, query: RowQuery, extent: Extent) -> Result<Self, QueryError> {
        let Extent { since, until, after } = extent;
        let from = after.as_ref().map(|cursor| cursor.micros).or(since).unwrap_or(EARLIEST);
        // rows are mostly stored in the order of their inserts, so there may be none before this time
        let first = session.query_one(&query.some_early_time()).await?;
        let first = first.and_then(|text| text.parse().ok()).unwrap_or(until);
        let spans = Spans::new(from, i64::saturating_sub(first, from), until, PAGE_ROWS);
        Ok(RowReader { query, spans, after })
    }

    /// The next rows, in the order of their inserts; `None` at the end. A page may be empty.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn next_page(&mut self, session: &mut Session) -> Result<Option<Vec<Found>>, QueryError> {
        let Some((from, to)) = self.spans.current() else { return Ok(None) };
        let sql = self.query.page(from, to, self.after.as_ref(), PAGE_ROWS, PAGE_BYTES);
        let begun = Instant::now();
        let rows = session.query(&sql).await?;
        let took = begun.elapsed();
        let columns = self.query.columns_before();
        let first = rows.first().and_then(micros).unwrap_or(from);
        let there = rows.last().and_then(|row| row.get(0)?.parse().ok()).unwrap_or(0);
        let full = there >= PAGE_ROWS || there > rows.len();
        let mut found: Vec<Found> = Vec::with_capacity(rows.len());
        for row in &rows {
            let before = found.last().map(|(_, cursor)| cursor).or(self.after.as_ref());
            let Some(cursor) = self.cursor(row, before, columns) else { continue };
            let values = (columns..row.len()).map(|index| row.get(index).map(str::to_owned)).collect();
            found.push((TableRow { inserted: PgTimestamp::from_unix_micros(cursor.micros), values }, cursor));
        }
        self.after = found.last().map(|(_, cursor)| cursor.clone()).filter(|_| full);
        self.spans.advance(to, rows.len(), first, self.after.as_ref().map(|after| after.micros), took);
        Ok(Some(found))
    }

    /// The place of a row whose values begin in this column.
    fn cursor(&self, row: &Row, before: Option<&Cursor>, values: usize) -> Option<Cursor> {
        let keys = (3..values).map(|index| row.get(index).unwrap_or_default().to_owned()).collect();
        Some(self.query.cursor(before, micros(row)?, row.get(2)?.to_owned(), keys))
    }
}

fn micros(row: &Row) -> Option<i64> {
    row.get(1)?.parse().ok()
}
