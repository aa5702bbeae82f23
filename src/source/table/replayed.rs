//! Rows that are read page by page, and sent again.

use std::time::Duration;

use pg_logical::{Lsn, Oid};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::paged::PagedRows;
use super::sent::{Acknowledged, SentRows};
use crate::error::{Error, Peer};
use crate::postgres::rows::pages::Pages;
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled};

/// How far a rate may be made up for after a pause.
const CATCH_UP: Duration = Duration::from_millis(500);

/// The source of one session.
pub struct ReplayedRows {
    rows: PagedRows,
    /// Reading waits for the time of the next row.
    paced: bool,
    tell: watch::Sender<Acknowledged>,
    pace: Pace,
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
        pages: Pages,
        table: Oid,
        definitions: Vec<Vec<u8>>,
        rate: Option<f64>,
        tell: watch::Sender<Acknowledged>,
    ) -> Self {
        ReplayedRows {
            rows: PagedRows::new(pages, table, definitions, Acknowledged::default()),
            paced: false,
            tell,
            pace: Pace::new(rate),
        }
    }
}

impl Source for ReplayedRows {
    type End = SentRows;

    fn next(&mut self) -> Result<Read<'_>, Error> {
        self.paced = self.rows.begins() && self.pace.waits(Instant::now());
        if self.paced {
            return Ok(Read::Nothing);
        }
        let finished = self.rows.is_finished() && self.rows.is_empty();
        match self.rows.next()? {
            Read::Nothing if finished => Ok(Read::End(None)),
            read => Ok(read),
        }
    }

    fn consume(&mut self) {
        if self.rows.begins() {
            self.pace.sent(Instant::now());
        }
        self.rows.consume();
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        self.rows.look_ahead(see);
    }

    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error> {
        if self.rows.sent.acknowledge(delivered.position) {
            self.tell.send_replace(self.rows.sent.acknowledged().clone());
        }
        Ok(SourceState {
            intake: if delivered.ending { Intake::Paused } else { Intake::Behind },
            // there are no positions in a log
            received: Lsn::INVALID,
            confirmed: Lsn::INVALID,
            caught_up: false,
            restarted: false,
            ended: false,
            again: self.rows.is_released(),
            gathered: false,
        })
    }

    async fn wait(&mut self) -> Result<(), Error> {
        tokio::select! {
            biased;
            () = self.rows.read() => {}
            () = sleep_until(self.pace.due), if self.paced => {}
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
        self.rows.sent
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
