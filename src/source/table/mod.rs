//! The outbox table as a source: rows that a worker claims.
//!
//! Each row becomes a transaction of one change. Positions in the log do not exist; in their place stands the number of the row in
//! this session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pg_logical::pgoutput::Message;
use pg_logical::{Lsn, Oid};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::Instant;

use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::pipeline::Change;
use crate::postgres::polling::messages::{ClaimedRow, FromWorker};
use crate::postgres::polling::table::write_insert;
use crate::progress::{Landmark, Partial};
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled};

/// The source of one session.
pub struct TableSource {
    from_worker: UnboundedReceiver<FromWorker>,
    /// Tells the worker to claim nothing more.
    stopping: Arc<AtomicBool>,
    table: Oid,
    /// Messages about the table that are still to be read.
    definitions: VecDeque<Vec<u8>>,
    /// Rows that are not consumed, each with the time by which it has to be sent.
    rows: VecDeque<(ClaimedRow, Instant)>,
    /// What `next` returns for the first row.
    stage: Stage,
    /// The Insert message of the first row.
    insert: Vec<u8>,
    /// The number of the first row, from 0.
    number: u64,
    /// Why the worker has failed, until the loop is told.
    failed: Option<Error>,
    /// The worker has found nothing to claim since the last rows.
    nothing_due: bool,
    /// Why the worker waits for Postgres.
    silent: Option<String>,
    /// The session ends once nothing is due.
    until_nothing_due: bool,
    monitor: Monitor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Change,
    Commit,
}

impl TableSource {
    /// Reads what a worker claims. `definitions`: the messages that describe the table.
    pub fn new(
        from_worker: UnboundedReceiver<FromWorker>,
        stopping: Arc<AtomicBool>,
        table: Oid,
        definitions: Vec<Vec<u8>>,
        until_nothing_due: bool,
        monitor: Monitor,
    ) -> Self {
        TableSource {
            from_worker,
            stopping,
            table,
            definitions: definitions.into(),
            rows: VecDeque::new(),
            stage: Stage::Begin,
            insert: Vec::new(),
            number: 0,
            failed: None,
            nothing_due: false,
            silent: None,
            until_nothing_due,
            monitor,
        }
    }

    /// Takes what the worker has said. Returns whether there was anything.
    fn receive(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.from_worker.try_recv() {
                Ok(claimed) => self.take(claimed),
                Err(TryRecvError::Empty) => return any,
                Err(TryRecvError::Disconnected) => {
                    self.failed.get_or_insert_with(worker_ended);
                    return true;
                }
            }
            any = true;
        }
    }

    fn take(&mut self, said: FromWorker) {
        match said {
            FromWorker::Rows { rows, send_by } => {
                self.nothing_due = false;
                self.rows.extend(rows.into_iter().map(|row| (row, send_by)));
            }
            FromWorker::Counted(rows) => self.monitor.counted_rows(rows),
            FromWorker::Nothing => self.nothing_due = true,
            FromWorker::Silent(why) => self.silent = why,
            FromWorker::Failed(error) => self.failed = Some(error),
        }
    }
}

/// The place of the first `rows` of a session, which stands for a position in the log.
pub fn place_of_first(rows: u64) -> Partial {
    Partial { final_lsn: commit_of(rows.saturating_sub(1)), changes: 1 }
}

/// How many rows of a session lie before or at this place.
pub fn rows_up_to(place: Partial) -> u64 {
    place.final_lsn.0 / 2
}

/// In place of the LSN of a commit record: that of the row with this number.
fn commit_of(number: u64) -> Lsn {
    Lsn(number.saturating_mul(2).saturating_add(2))
}

/// In place of its end.
fn end_of(number: u64) -> Lsn {
    Lsn(commit_of(number).0.saturating_add(1))
}

fn landmark(number: u64, row: &ClaimedRow) -> Landmark {
    Landmark { final_lsn: commit_of(number), xid: 0, commit_time: row.inserted }
}

fn worker_ended() -> Error {
    Error::transient(Peer::Postgres, "the session that claims rows has ended")
}

impl Source for TableSource {
    type End = ();

    fn next(&mut self) -> Result<Read<'_>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if let Some(message) = self.definitions.front() {
            let message = Message::decode(message).map_err(|error| unreadable(&error))?;
            return Ok(Read::Other { message, already_delivered: false });
        }
        let Some((row, send_by)) = self.rows.front() else {
            let done = self.until_nothing_due && self.nothing_due;
            return Ok(if done { Read::End(None) } else { Read::Nothing });
        };
        match self.stage {
            Stage::Begin => {
                if Instant::now() >= *send_by {
                    return Err(Error::transient(
                        Peer::Kafka,
                        "claimed rows could not be sent within two thirds of their lease; they are claimed again",
                    ));
                }
                Ok(Read::Begin(landmark(self.number, row)))
            }
            Stage::Change => {
                write_insert(&mut self.insert, self.table, &row.values);
                let message = Message::decode(&self.insert).map_err(|error| unreadable(&error))?;
                Ok(match message {
                    Message::Insert(insert) => Read::Change(Change::Row(insert)),
                    message => Read::Other { message, already_delivered: false },
                })
            }
            Stage::Commit => Ok(Read::Commit(end_of(self.number))),
        }
    }

    fn consume(&mut self) {
        if self.definitions.pop_front().is_some() {
            return;
        }
        self.stage = match self.stage {
            Stage::Begin => Stage::Change,
            Stage::Change => Stage::Commit,
            Stage::Commit => {
                self.rows.pop_front();
                self.number += 1;
                Stage::Begin
            }
        };
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        let mut insert = Vec::new();
        for (number, (row, _)) in (self.number..).zip(&self.rows).skip(1) {
            write_insert(&mut insert, self.table, &row.values);
            let Ok(Message::Insert(change)) = Message::decode(&insert) else { return };
            if !see(Read::Begin(landmark(number, row))) || !see(Read::Change(Change::Row(change))) {
                return;
            }
        }
    }

    fn after_dispatch(&mut self, delivered: &DeliveryState) -> Result<SourceState, Error> {
        // the loop does not read while the sink is not ready
        if let Some(error) = self.failed.take().filter(|_| !delivered.ending) {
            return Err(error);
        }
        if delivered.ending {
            self.stopping.store(true, Relaxed);
        }
        let again = !delivered.ending && delivered.idle && self.receive();
        Ok(SourceState {
            intake: if delivered.ending {
                Intake::Paused
            } else if self.rows.is_empty() {
                Intake::Live
            } else {
                Intake::Behind
            },
            // there are no positions in a log
            received: Lsn::INVALID,
            confirmed: Lsn::INVALID,
            caught_up: self.nothing_due && self.rows.is_empty(),
            restarted: false,
            ended: false,
            again,
            gathered: false,
        })
    }

    async fn wait(&mut self) -> Result<(), Error> {
        if self.failed.is_some() {
            return Ok(());
        }
        match self.from_worker.recv().await {
            Some(claimed) => self.take(claimed),
            None => self.failed = Some(worker_ended()),
        }
        Ok(())
    }

    fn health(&self) -> Option<Stalled> {
        self.silent.as_ref().map(|reason| Stalled { peer: Peer::Postgres, reason: reason.clone() })
    }

    fn is_log_verified(&self) -> bool {
        true
    }

    async fn confirm_last(&mut self, _durable: Lsn) -> Result<(), Error> {
        Ok(())
    }

    async fn close(self, _outcome: &Outcome, _orderly: bool) {}
}

/// The message was written by this program.
fn unreadable(error: &pg_logical::pgoutput::DecodeError) -> Error {
    Error::transient(Peer::Postgres, format!("a row cannot be read: {error}"))
}
