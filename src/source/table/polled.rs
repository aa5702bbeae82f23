//! The rows that a worker claims, while a router polls.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pg_logical::{Lsn, Oid};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::Instant;

use super::rows::Rows;
use crate::error::{Error, Peer};
use crate::monitor::{EventSource, Monitor};
use crate::postgres::polling::messages::FromWorker;
use crate::relay::{DeliveryState, Intake, Outcome, Read, Source, SourceState, Stalled};

/// The source of one session.
pub struct PolledRows {
    from_worker: UnboundedReceiver<FromWorker>,
    /// Tells the worker to claim nothing more.
    stopping: Arc<AtomicBool>,
    /// Each with the time by which it has to be sent.
    rows: Rows<Instant>,
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

impl PolledRows {
    /// Reads what a worker claims. `definitions`: the messages that describe the table.
    pub fn new(
        from_worker: UnboundedReceiver<FromWorker>,
        stopping: Arc<AtomicBool>,
        table: Oid,
        definitions: Vec<Vec<u8>>,
        until_nothing_due: bool,
        monitor: Monitor,
    ) -> Self {
        monitor.reads_from(EventSource::Table);
        PolledRows {
            from_worker,
            stopping,
            rows: Rows::new(table, definitions, 0),
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

fn worker_ended() -> Error {
    Error::transient(Peer::Postgres, "the session that claims rows has ended")
}

impl Source for PolledRows {
    type End = ();

    fn next(&mut self) -> Result<Read<'_>, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.rows.beginning().is_some_and(|send_by| Instant::now() >= *send_by) {
            return Err(Error::transient(
                Peer::Kafka,
                "claimed rows could not be sent within two thirds of their lease; they are claimed again",
            ));
        }
        match self.rows.next()? {
            Read::Nothing if self.until_nothing_due && self.nothing_due => Ok(Read::End(None)),
            read => Ok(read),
        }
    }

    fn consume(&mut self) {
        self.rows.consume();
    }

    fn look_ahead(&self, see: &mut dyn FnMut(Read<'_>) -> bool) {
        self.rows.look_ahead(see);
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
