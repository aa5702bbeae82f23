//! The router's handle to the table of parked events while it runs.

use pg_logical::Lsn;
use pg_logical::conninfo::Host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::messages::{Command, Loaded, Report, Unfinished};
use super::worker::Worker;
use crate::config::Postgres;
use crate::dead_letters::{DeadLetter, Key};
use crate::error::Error;
use crate::progress::Sequence;
use crate::unsendable::Reason;

/// The router's handle; the session ends when it is dropped.
#[derive(Debug)]
pub struct DeadLetterStore {
    commands: UnboundedSender<Command>,
    reports: UnboundedReceiver<Report>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl DeadLetterStore {
    /// Connects for the router of this name to the server that the stream comes from, where its process is `walsender`.
    /// Finishes what was left undone and reads the state. While it waits for a lock on the table, `locked` is told who holds
    /// it.
    ///
    /// # Errors
    /// The server refuses, or the table does not exist.
    pub async fn open(
        router: &str,
        postgres: &Postgres,
        host: Host,
        walsender: i32,
        unfinished: &Unfinished,
        from: Lsn,
        locked: impl Fn(String),
    ) -> Result<(Self, Loaded), Error> {
        let (worker, loaded) =
            Worker::start(router, postgres, host, walsender, unfinished, from, locked).await?;
        let (reports, received) = unbounded_channel();
        let (commands, received_commands) = unbounded_channel();
        let task = AbortOnDropHandle::new(tokio::spawn(worker.run(received_commands, reports)));
        Ok((DeadLetterStore { commands, reports: received, _task: Some(task) }, loaded))
    }

    /// A handle whose commands a test carries out.
    #[cfg(test)]
    pub(crate) fn scripted() -> (Self, UnboundedReceiver<Command>, UnboundedSender<Report>) {
        let ((commands, received_commands), (reports, received)) = (unbounded_channel(), unbounded_channel());
        (DeadLetterStore { commands, reports: received, _task: None }, received_commands, reports)
    }

    /// Inserts an event into the table.
    pub fn park(&self, sequence: Sequence, letter: DeadLetter) {
        self.command(Command::Park(sequence, letter));
    }

    /// Deletes rows.
    pub fn delete(&self, keys: Vec<Key>) {
        self.command(Command::Delete(keys));
    }

    /// Records that a row's event could not be sent.
    pub fn failed(&self, key: Key, reason: Reason, detail: String) {
        self.command(Command::Failed(key, reason, detail));
    }

    /// Fetches what is next. `rows`: how many rows should exist, if known.
    pub fn fetch(&self, rows: Option<u64>) {
        self.command(Command::Fetch(rows));
    }

    fn command(&self, command: Command) {
        // if the session has ended, it has reported that
        let _ = self.commands.send(command);
    }

    /// The next result. Cancel-safe.
    pub async fn report(&mut self) -> Report {
        match self.reports.recv().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }
}
