//! The router's handle to the table of parked events while it runs.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::messages::{Command, Report};
use crate::dead_letters::{DeadLetter, Key};
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
    /// The handle of a session whose task `run` returns.
    pub(super) fn of<F>(run: impl FnOnce(UnboundedReceiver<Command>, UnboundedSender<Report>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let ((commands, received_commands), (reports, received)) = (unbounded_channel(), unbounded_channel());
        let task = AbortOnDropHandle::new(tokio::spawn(run(received_commands, reports)));
        DeadLetterStore { commands, reports: received, _task: Some(task) }
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
