//! Rows that are read page by page, and sent again.

use std::collections::VecDeque;
use std::time::Duration;

use pg_logical::{Lsn, Oid};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::rows::{Rows, rows_before};
use crate::error::{Error, Peer};
use crate::postgres::rows::page::Cursor;
use crate::postgres::rows::reader::Found;
use crate::progress::Position;
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled};

/// How far a rate may be made up for after a pause.
const CATCH_UP: Duration = Duration::from_millis(500);

/// Another page is taken when fewer rows are left.
const ROWS_HELD: usize = 1_000;

/// How many rows may be consumed and not acknowledged. Those for which there is no record take no place in the window.
const MAX_SENT: usize = 200_000;

/// The next page, or why there is none. An empty option is the end of the rows.
pub type Page = Result<Option<Vec<Found>>, Error>;

/// Up to where the rows are acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// How many rows of the session.
    pub rows: u64,
    /// The last of them.
    pub last: Option<Cursor>,
}

/// The rows that are consumed and not acknowledged, and how many were before them.
#[derive(Debug, Default)]
pub struct SentRows {
    acknowledged: Acknowledged,
    rest: VecDeque<Cursor>,
}

impl SentRows {
    /// Takes the position up to which everything is acknowledged. Returns whether that is new.
    pub fn acknowledge(&mut self, position: Position) -> bool {
        let rows = rows_before(position);
        let more = usize::try_from(rows.saturating_sub(self.acknowledged.rows)).unwrap_or(usize::MAX);
        let last = self.rest.drain(..more.min(self.rest.len())).next_back();
        let moved = last.is_some();
        if moved {
            self.acknowledged = Acknowledged { rows, last };
        }
        moved
    }

    /// Up to where they are acknowledged.
    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    /// The first one that is not acknowledged.
    pub fn first(&self) -> Option<&Cursor> {
        self.rest.front()
    }
}

/// The source of one session.
pub struct ReplayedRows {
    pages: Receiver<Page>,
    rows: Rows<Cursor>,
    sent: SentRows,
    /// Reading waits for acknowledgements.
    held: bool,
    /// Reading waits for the time of the next row.
    paced: bool,
    tell: watch::Sender<Acknowledged>,
    pace: Pace,
    failed: Option<Error>,
    /// There are no more pages.
    finished: bool,
}

/// Keeps a rate.
struct Pace {
    /// The time between two rows; `None`: as fast as possible.
    interval: Option<Duration>,
    /// When the next row may be sent.
    due: Instant,
}

impl Pace {
    fn new(rate: Option<f64>) -> Self {
        Pace { interval: rate.map(|rate| Duration::from_secs_f64(1.0 / rate)), due: Instant::now() }
    }

    /// Whether the next row may not be sent yet.
    fn waits(&self, now: Instant) -> bool {
        self.interval.is_some() && self.due > now
    }

    /// A row is sent.
    fn sent(&mut self, now: Instant) {
        if let Some(interval) = self.interval {
            let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
            self.due = self.due.max(earliest) + interval;
        }
    }
}

impl ReplayedRows {
    /// Reads `pages` of the table, which `definitions` describe, and tells how many rows are acknowledged. `rate`: rows a second.
    pub fn new(
        pages: Receiver<Page>,
        table: Oid,
        definitions: Vec<Vec<u8>>,
        rate: Option<f64>,
        tell: watch::Sender<Acknowledged>,
    ) -> Self {
        ReplayedRows {
            pages,
            rows: Rows::new(table, definitions),
            sent: SentRows::default(),
            held: false,
            paced: false,
            tell,
            pace: Pace::new(rate),
            failed: None,
            finished: false,
        }
    }

    fn take(&mut self, page: Option<Page>) {
        match page {
            Some(Ok(Some(page))) => self.rows.extend(page.into_iter()),
            Some(Ok(None)) => self.finished = true,
            Some(Err(error)) => self.failed = Some(error),
            None => {
                self.failed = Some(Error::transient(Peer::Postgres, "the session that reads rows has ended"))
            }
        }
    }
}

impl Source for ReplayedRows {
    type End = SentRows;

    fn next(&mut self) -> Result<Read<'_>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let begins = self.rows.beginning().is_some();
        self.held = begins && self.sent.rest.len() >= MAX_SENT;
        self.paced = begins && self.pace.waits(Instant::now());
        if self.held || self.paced {
            return Ok(Read::Nothing);
        }
        match self.rows.next()? {
            Read::Nothing if self.finished => Ok(Read::End(None)),
            read => Ok(read),
        }
    }

    fn consume(&mut self) {
        if self.rows.beginning().is_some() {
            self.pace.sent(Instant::now());
        }
        self.sent.rest.extend(self.rows.consume());
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        self.rows.look_ahead(see);
    }

    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error> {
        if self.sent.acknowledge(delivered.position) {
            self.tell.send_replace(self.sent.acknowledged().clone());
        }
        Ok(SourceState {
            intake: if delivered.ending { Intake::Paused } else { Intake::Behind },
            // there are no positions in a log
            received: Lsn::INVALID,
            confirmed: Lsn::INVALID,
            caught_up: false,
            restarted: false,
            ended: false,
            again: self.held && self.sent.rest.len() < MAX_SENT,
            gathered: false,
        })
    }

    async fn wait(&mut self) -> Result<(), Error> {
        let wants_more = !self.finished && self.failed.is_none() && self.rows.len() < ROWS_HELD;
        tokio::select! {
            biased;
            page = self.pages.recv(), if wants_more => self.take(page),
            () = sleep_until(self.pace.due), if self.paced => {}
            else => std::future::pending().await,
        }
        Ok(())
    }

    fn health(&self) -> Option<Stalled> {
        self.rows.is_empty().then(|| Stalled {
            peer: Peer::Postgres,
            reason: "waiting for the next rows of the table".to_owned(),
        })
    }

    fn is_log_verified(&self) -> bool {
        true
    }

    async fn confirm_last(&mut self, _durable: Lsn) -> Result<(), Error> {
        Ok(())
    }

    async fn close(self, _outcome: &Outcome, _orderly: bool) -> SentRows {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many rows are sent in ten seconds if the loop wakes at most this often, with a pause of one second in the middle.
    fn sent_at(rate: f64, wakes_every: Duration) -> u64 {
        let start = Instant::now();
        let mut pace = Pace { due: start, ..Pace::new(Some(rate)) };
        let (mut now, mut sent, mut paused) = (start, 0, false);
        while now < start + Duration::from_secs(10) {
            if now >= start + Duration::from_secs(5) && !std::mem::replace(&mut paused, true) {
                now += Duration::from_secs(1);
            }
            while !pace.waits(now) {
                pace.sent(now);
                sent += 1;
            }
            now = pace.due.max(now + wakes_every);
        }
        sent
    }

    #[test]
    fn the_rate_is_kept_and_a_long_pause_is_not_made_up_for() {
        for rate in [1.0, 50.0, 1_000.0, 30_000.0] {
            for wakes_every in [Duration::ZERO, Duration::from_millis(2), Duration::from_millis(20)] {
                let sent = sent_at(rate, wakes_every) as f64;
                // nine of the ten seconds, and half of the one that was missed
                let expected = rate * 9.5;
                assert!(
                    (sent - expected).abs() <= expected * 0.05 + 1.0,
                    "{sent} at {rate}/s, {wakes_every:?}"
                );
            }
        }
        assert!(!Pace::new(None).waits(Instant::now()));
    }
}
