//! The router's handle to the table of parked events while it runs, and what it says to the session behind it.

use pg_logical::Lsn;
use pg_logical::conninfo::Host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::sql::Waiting;
use super::worker::Worker;
use crate::config::Postgres;
use crate::dead_letters::{DeadLetter, Key, ResolvedRows};
use crate::error::Error;
use crate::progress::Sequence;
use crate::unsendable::Reason;

/// What to do.
pub(crate) enum Command {
    Park(Sequence, DeadLetter),
    Delete(Vec<Key>),
    Failed(Key, Reason, String),
    /// With the number of rows that should exist, if it is known.
    Fetch(Option<u64>),
}

/// The result of an order.
#[derive(Debug)]
pub enum Report {
    /// These events are in the table.
    Parked {
        /// The change, its aggregate, and whether the row is new.
        rows: Vec<(Sequence, Option<String>, bool)>,
        /// The end of the log after their commit.
        committed: Lsn,
    },
    /// These rows are no longer in the table.
    Deleted {
        /// The rows to be deleted.
        keys: Vec<Key>,
        /// The end of the log after the deletion.
        committed: Lsn,
    },
    /// The next events to send or discard.
    Fetched(Vec<Waiting>),
    /// The rows cannot be written, for this reason; `None`: they can be written again.
    Refused(Option<String>),
    /// The session has ended.
    Ended(Error),
}

/// The router's handle; the session ends when it is dropped.
#[derive(Debug)]
pub struct DeadLetterStore {
    commands: UnboundedSender<Command>,
    reports: UnboundedReceiver<Report>,
    _task: Option<AbortOnDropHandle<()>>,
}

/// The state at the start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The number of rows of each aggregate, and the key of the first.
    pub aggregates: Vec<(Option<String>, u64, Key)>,
    /// Rows without an aggregate whose events may arrive again.
    pub without_aggregate: Vec<Key>,
    /// The rows of sent events that an earlier session left; they are deleted now.
    pub resolved: ResolvedRows,
}

/// What an earlier session left undone.
#[derive(Debug, Default)]
pub struct Unfinished {
    /// Rows whose events were sent in a committed Kafka transaction.
    pub sent: Vec<Key>,
    /// A row whose event was refused again, and why.
    pub failed: Option<(Key, Reason, String)>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::{Column, OriginalEvent};
    use pg_logical::PgTimestamp;

    #[test]
    fn payloads_are_not_in_debug() {
        let secret = || Some("s3cret".to_owned());
        let column =
            Column { name: "payload".into(), type_id: 25, modifier: -1, type_name: None, value: secret() };
        let originals = [OriginalEvent::Columns(vec![column]), OriginalEvent::Message("s3cret".into())];
        let waiting = originals.map(|original| {
            let letter = DeadLetter {
                key: Key { final_lsn: Lsn(9), change: 1 },
                xid: 7,
                commit_time: PgTimestamp(0),
                source: "public.outbox".into(),
                event_id: secret(),
                aggregate_type: secret(),
                aggregate_id: secret(),
                event_type: secret(),
                reason: Reason::Contract,
                detail: "s3cret".into(),
                original,
                replay: None,
            };
            Waiting { letter, decision: None, attempts: 0 }
        });
        let shown = format!("{:?}", Report::Fetched(waiting.to_vec()));
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(shown.matches("<6 bytes>").count() == 2 && shown.contains("public.outbox"), "{shown}");
    }
}
