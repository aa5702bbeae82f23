//! Reads a table page by page, each in a short transaction.

use std::time::{Duration, Instant};

use pg_logical::session::{Row, Session};
use pg_logical::{PgTimestamp, QueryError};

use super::TableRow;
use super::page::{EARLIEST, RowQuery};
use crate::outbox::Cursor;

/// How many rows a page has.
const PAGE_ROWS: usize = 2_000;

/// How many bytes its values have.
const PAGE_BYTES: usize = 4 << 20;

/// The span of time of the first page, in microseconds.
const FIRST_SPAN: i64 = 60_000_000;

/// A span is at most eight times as long as this, in microseconds: 64 days. It is also at most eight times as long as the span before.
const LONGEST_SPAN: i64 = 64 * 86_400_000_000;

/// A page that takes longer makes the next one shorter.
const SLOW: Duration = Duration::from_millis(500);

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
}

/// The spans of time of the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spans {
    from: i64,
    until: i64,
    after: Option<Cursor>,
    /// The length of the next span, in microseconds.
    length: i64,
    /// How long the last page took, if that was long.
    slow: Option<Duration>,
    done: bool,
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
        let spans =
            Spans { after, ..Spans::new(from, FIRST_SPAN.max(i64::saturating_sub(first, from)), until) };
        Ok(RowReader { query, spans })
    }

    /// The next rows, in the order of their inserts; `None` at the end. A page may be empty.
    ///
    /// # Errors
    /// Those of the query.
    pub async fn next_page(&mut self, session: &mut Session) -> Result<Option<Vec<Found>>, QueryError> {
        let spans = &self.spans;
        if spans.done {
            return Ok(None);
        }
        let to = spans.end();
        let sql = self.query.page(spans.from, to, spans.after.as_ref(), PAGE_ROWS, PAGE_BYTES);
        let begun = Instant::now();
        let rows = session.query(&sql).await?;
        let took = begun.elapsed();
        let columns = self.query.columns_before();
        let first = rows.first().and_then(micros).unwrap_or(spans.from);
        let there = rows.last().and_then(|row| row.get(0)?.parse().ok()).unwrap_or(0);
        let full = there >= PAGE_ROWS || there > rows.len();
        let mut found: Vec<Found> = Vec::with_capacity(rows.len());
        for row in &rows {
            let before = found.last().map(|(_, cursor)| cursor).or(spans.after.as_ref());
            let Some(cursor) = self.cursor(row, before, columns) else { continue };
            let values = (columns..row.len()).map(|index| row.get(index).map(str::to_owned)).collect();
            found.push((TableRow { inserted: PgTimestamp::from_unix_micros(cursor.micros), values }, cursor));
        }
        let last = found.last().map(|(_, cursor)| cursor.clone()).filter(|_| full);
        self.spans.advance(to, rows.len(), first, last, took);
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

impl Spans {
    fn new(from: i64, length: i64, until: i64) -> Self {
        Spans { from, until, after: None, length: length.max(1), slow: None, done: from >= until }
    }

    /// The end of the next span.
    fn end(&self) -> i64 {
        self.from.saturating_add(self.length).min(self.until)
    }

    /// After a page that ends at `to`, has so many rows, and took so long. `first`: the time of its first row; `last`: its last row, if
    /// there may be more rows in this span.
    fn advance(&mut self, to: i64, rows: usize, first: i64, last: Option<Cursor>, took: Duration) {
        // a little less than a page
        let wanted = i64::try_from(PAGE_ROWS * 3 / 4).unwrap_or(i64::MAX);
        let of_rows = |length: i64, rows: usize| {
            (length / i64::try_from(rows).unwrap_or(i64::MAX).max(1)).saturating_mul(wanted)
        };
        let longest = self.length.min(LONGEST_SPAN).saturating_mul(8);
        let length = match last {
            Some(cursor) => {
                let time = cursor.micros;
                (self.after, self.from) = (Some(cursor), time);
                of_rows(time.saturating_sub(first), rows)
            }
            None => {
                let length = to.saturating_sub(self.from);
                (self.after, self.from) = (None, to);
                self.done = to >= self.until;
                // the first span may be that before all rows
                if rows == 0 { longest } else { of_rows(length, rows) }
            }
        };
        let slow = (took >= SLOW).then_some(took);
        // without an index, a shorter span takes as long
        let helps = self.slow.is_none_or(|before| took < before * 3 / 4);
        let most = if slow.is_some() && helps { self.length / 2 } else { longest };
        self.length = length.min(most).max(1);
        self.slow = slow;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads rows with these times, which are sorted; returns the numbers of those that were read, and how many pages it took.
    fn read(times: &[i64], since: Option<i64>, until: i64) -> (Vec<usize>, usize) {
        let mut spans = match since {
            Some(since) => Spans::new(since, FIRST_SPAN, until),
            None => Spans::new(EARLIEST, times[0] - EARLIEST, until),
        };
        let (mut read, mut pages) = (Vec::new(), 0);
        while !spans.done {
            let (from, to) = (spans.from, spans.end());
            let after = spans.after.as_ref().map(|cursor| cursor.ties[0].parse::<usize>().unwrap());
            let found: Vec<usize> = (0..times.len())
                .filter(|row| (from..to).contains(&times[*row]) && after.is_none_or(|after| *row > after))
                .take(PAGE_ROWS)
                .collect();
            let last = found.last().map(|row| Cursor {
                micros: times[*row],
                created_at: String::new(),
                ties: vec![row.to_string()],
            });
            let first = found.first().map_or(from, |row| times[*row]);
            let last = last.filter(|_| found.len() == PAGE_ROWS);
            spans.advance(to, found.len(), first, last, Duration::ZERO);
            read.extend(found);
            pages += 1;
        }
        (read, pages)
    }

    #[test]
    fn every_row_is_read_once_and_in_order() {
        let second = 1_000_000;
        let even: Vec<i64> = (0..20_000).map(|n| n * second).collect();
        let same = vec![5 * second; 7_000];
        let bursts: Vec<i64> = (0..10_000).map(|n| (n / 3_000) * 86_400 * second + n % 7).collect();
        let mut sorted = bursts.clone();
        sorted.sort_unstable();
        for times in [even, same, sorted] {
            let (read, pages) = read(&times, None, 400_000 * second);
            assert!(read.iter().copied().eq(0..times.len()), "{} of {}", read.len(), times.len());
            assert!(pages < 100, "{pages} pages");
        }
    }

    #[test]
    fn only_what_lies_between_the_times_is_read() {
        let times: Vec<i64> = (0..100).collect();
        assert_eq!(read(&times, Some(10), 20).0, (10..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_page_that_takes_long_makes_the_next_one_shorter() {
        let mut spans = Spans::new(0, 1_000, i64::MAX);
        spans.advance(1_000, 10, 0, None, SLOW);
        assert_eq!(spans.length, 500);
        // that has not helped
        spans.advance(1_500, 0, 0, None, SLOW);
        assert_eq!(spans.length, 4_000);
    }
}
