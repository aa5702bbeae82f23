//! Spans of time, one for each page of rows: so long that a page is nearly full, however many rows there are in a span.

use std::time::Duration;

/// The shortest first span, in microseconds.
const FIRST_SPAN: i64 = 60_000_000;

/// A span is at most eight times as long as this, in microseconds: 64 days. It is also at most eight times as long as the span before.
const LONGEST_SPAN: i64 = 64 * 86_400_000_000;

/// A page that takes longer makes the next one shorter.
const SLOW: Duration = Duration::from_millis(500);

/// The spans of time of the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spans {
    from: i64,
    until: i64,
    /// The length of the next span, in microseconds.
    length: i64,
    /// How long the last page took, if that was long.
    slow: Option<Duration>,
    done: bool,
    /// How many rows a page has.
    page_rows: usize,
}

impl Spans {
    /// From a time to before another, in microseconds since 1970. The first span has this length, or a minute.
    pub fn new(from: i64, length: i64, until: i64, page_rows: usize) -> Self {
        Spans { from, until, length: length.max(FIRST_SPAN), slow: None, done: from >= until, page_rows }
    }

    /// The present span; `None` at the end.
    pub fn current(&self) -> Option<(i64, i64)> {
        (!self.done).then(|| (self.from, self.from.saturating_add(self.length).min(self.until)))
    }

    /// After a page that ends at `to`, has so many rows, and took so long. `first`: the time of its first row, or before; `last`: that of
    /// its last row, if there may be more rows in this span.
    pub fn advance(&mut self, to: i64, rows: usize, first: i64, last: Option<i64>, took: Duration) {
        // a little less than a page
        let wanted = i64::try_from(self.page_rows.saturating_mul(3) / 4).unwrap_or(i64::MAX).max(1);
        let of_rows = |length: i64, rows: usize| {
            (length / i64::try_from(rows).unwrap_or(i64::MAX).max(1)).saturating_mul(wanted)
        };
        let longest = self.length.min(LONGEST_SPAN).saturating_mul(8);
        let length = match last {
            Some(time) => {
                self.from = time;
                of_rows(time.saturating_sub(first), rows)
            }
            None => {
                let length = to.saturating_sub(self.from);
                self.from = to;
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
    use crate::postgres::rows::page::EARLIEST;

    const PAGE_ROWS: usize = 2_000;

    /// Reads rows with these times, which are sorted; returns the numbers of those that were read, and how many pages it took.
    fn read(times: &[i64], since: Option<i64>, until: i64) -> (Vec<usize>, usize) {
        let mut spans = match since {
            Some(since) => Spans::new(since, FIRST_SPAN, until, PAGE_ROWS),
            None => Spans::new(EARLIEST, times[0] - EARLIEST, until, PAGE_ROWS),
        };
        let (mut read, mut pages, mut after) = (Vec::new(), 0, None);
        while let Some((from, to)) = spans.current() {
            let found: Vec<usize> = (0..times.len())
                .filter(|row| (from..to).contains(&times[*row]) && after.is_none_or(|after| *row > after))
                .take(PAGE_ROWS)
                .collect();
            let first = found.first().map_or(from, |row| times[*row]);
            after = found.last().copied().filter(|_| found.len() == PAGE_ROWS);
            spans.advance(to, found.len(), first, after.map(|row| times[row]), Duration::ZERO);
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
        let mut spans = Spans { length: 1_000, ..Spans::new(0, 0, i64::MAX, PAGE_ROWS) };
        spans.advance(1_000, 10, 0, None, SLOW);
        assert_eq!(spans.length, 500);
        // that has not helped
        spans.advance(1_500, 0, 0, None, SLOW);
        assert_eq!(spans.length, 4_000);
    }
}
