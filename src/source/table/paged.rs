//! Rows of pages that are read ahead, and which of them are sent.

use pg_logical::Oid;

use super::rows::Rows;
use super::sent::{Acknowledged, SentRows};
use crate::error::Error;
use crate::outbox::Cursor;
use crate::postgres::rows::pages::{Page, Pages};
use crate::relay::Read;

/// Another page is taken when fewer rows are left, with fewer bytes of values.
const ROWS_HELD: usize = 1_000;
const BYTES_HELD: usize = 4 << 20;

/// How many rows may be consumed and not acknowledged. Those for which there is no record take no place in the window.
const MAX_SENT: usize = 200_000;

pub(super) struct PagedRows {
    pages: Pages,
    rows: Rows<Cursor>,
    pub(super) sent: SentRows,
    /// Reading waits for acknowledgements.
    held: bool,
    failed: Option<Error>,
    /// There are no more pages.
    finished: bool,
}

impl PagedRows {
    /// The rows of these pages of a table, which `definitions` describe, after those that are acknowledged.
    pub(super) fn new(
        pages: Pages,
        table: Oid,
        definitions: Vec<Vec<u8>>,
        acknowledged: Acknowledged,
    ) -> Self {
        PagedRows {
            pages,
            rows: Rows::new(table, definitions, acknowledged.rows),
            sent: SentRows::after(acknowledged),
            held: false,
            failed: None,
            finished: false,
        }
    }

    /// Whether a row begins next.
    pub(super) fn begins(&self) -> bool {
        self.rows.beginning().is_some()
    }

    pub(super) fn next(&mut self) -> Result<Read<'_>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.held = self.begins() && self.sent.len() >= MAX_SENT;
        if self.held { Ok(Read::Nothing) } else { self.rows.next() }
    }

    pub(super) fn consume(&mut self) {
        // a position may lie between the row and its commit
        self.sent.extend(self.rows.beginning().cloned());
        self.rows.consume();
    }

    pub(super) fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        self.rows.look_ahead(see);
    }

    /// Whether reading can go on that waited for acknowledgements.
    pub(super) fn is_released(&self) -> bool {
        self.held && self.sent.len() < MAX_SENT
    }

    /// Whether no row is left to consume for now.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether there are no more pages.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Waits for the next page, if one is wanted. Cancel-safe.
    pub(super) async fn read(&mut self) {
        let few = self.rows.len() < ROWS_HELD && self.rows.bytes() < BYTES_HELD;
        let page: Page = if few && !self.finished && self.failed.is_none() {
            self.pages.next().await
        } else {
            std::future::pending().await
        };
        match page {
            Ok(Some(page)) => self.rows.extend(page.into_iter()),
            Ok(None) => self.finished = true,
            Err(error) => self.failed = Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::rows::TableRow;
    use pg_logical::PgTimestamp;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    /// Rows of a megabyte, four to a page, and how many pages were made.
    fn of_large_rows() -> (PagedRows, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let pages = Pages::from_thread(move || {
            counted.fetch_add(1, Relaxed);
            let row = || TableRow { inserted: PgTimestamp(0), values: vec![Some("x".repeat(1 << 20))] };
            let cursor = || Cursor { micros: 0, created_at: String::new(), ties: Vec::new() };
            Ok(Some((0..4).map(|_| (row(), cursor())).collect()))
        });
        (PagedRows::new(pages, Oid(7), Vec::new(), Acknowledged::default()), made)
    }

    #[tokio::test]
    async fn large_rows_are_not_read_far_ahead() {
        let (mut rows, made) = of_large_rows();
        rows.read().await;
        // two more wait, and the thread has one that it cannot pass on
        while made.load(Relaxed) < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::select! {
            biased;
            () = rows.read() => panic!("another page is taken"),
            () = std::future::ready(()) => {}
        }
        // begin, change and commit
        (0..3).for_each(|_| rows.consume());
        rows.read().await;
        assert_eq!(rows.rows.len(), 7);
    }
}
