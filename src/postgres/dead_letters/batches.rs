//! Combines the sink's commands into statements: a transaction for each row would make the disk decide how fast parked events
//! leave the table.

use tokio::sync::mpsc::UnboundedReceiver;

use super::messages::Command;
use crate::dead_letters::{DeadLetter, Key};
use crate::progress::Sequence;
use crate::unsendable::Reason;

/// The limit for one statement, in rows and roughly in bytes.
const LIMIT: (usize, usize) = (100, 1 << 20);

/// What one statement does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Batch {
    Park(Vec<(Sequence, DeadLetter)>),
    Delete(Vec<Key>),
    Failed(Key, Reason, String),
    Fetch(Option<u64>),
}

/// The commands, in their order.
pub(super) struct Batches {
    commands: UnboundedReceiver<Command>,
    /// The first command that did not belong to the last batch.
    next: Option<Command>,
}

impl Batches {
    pub(super) fn new(commands: UnboundedReceiver<Command>) -> Self {
        Batches { commands, next: None }
    }

    /// The next command, with those of the same kind that directly follow it and are there already. `None`: no more will come.
    pub(super) async fn next(&mut self) -> Option<Batch> {
        let first = match self.next.take() {
            Some(command) => command,
            None => self.commands.recv().await?,
        };
        let (rows, bytes) = LIMIT;
        Some(match first {
            Command::Park(sequence, letter) => {
                let mut size = letter.size();
                let mut parked = vec![(sequence, letter)];
                self.add(|command| match command {
                    Command::Park(sequence, letter) if parked.len() < rows && size < bytes => {
                        size += letter.size();
                        parked.push((sequence, letter));
                        None
                    }
                    other => Some(other),
                });
                Batch::Park(parked)
            }
            Command::Delete(mut keys) => {
                self.add(|command| match command {
                    Command::Delete(more) if keys.len() < rows => {
                        keys.extend(more);
                        None
                    }
                    other => Some(other),
                });
                Batch::Delete(keys)
            }
            Command::Failed(key, reason, detail) => Batch::Failed(key, reason, detail),
            Command::Fetch(rows) => Batch::Fetch(rows),
        })
    }

    /// Passes on the commands that are there, until `add` returns one.
    fn add(&mut self, mut add: impl FnMut(Command) -> Option<Command>) {
        while self.next.is_none()
            && let Ok(command) = self.commands.try_recv()
        {
            self.next = add(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use pg_logical::{Lsn, PgTimestamp};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::dead_letters::OriginalEvent;

    fn key(change: u64) -> Key {
        Key { final_lsn: Lsn(1), change }
    }

    fn park(change: u64, bytes: usize) -> Command {
        let letter = DeadLetter {
            key: key(change),
            xid: 1,
            commit_time: PgTimestamp(0),
            source: String::new(),
            event_id: None,
            aggregate_type: None,
            aggregate_id: None,
            event_type: None,
            reason: Reason::Behind,
            detail: "x".repeat(bytes),
            original: OriginalEvent::Columns(Vec::new()),
            replay: None,
        };
        Command::Park(Sequence(change), letter)
    }

    fn delete(change: u64) -> Command {
        Command::Delete(vec![key(change)])
    }

    /// What the commands become, as `(kind, first row, rows)`.
    async fn batches(commands: impl IntoIterator<Item = Command>) -> Vec<(&'static str, u64, usize)> {
        let (sender, receiver) = unbounded_channel();
        commands.into_iter().for_each(|command| sender.send(command).unwrap());
        drop(sender);
        let mut batches = Batches::new(receiver);
        let mut seen = Vec::new();
        while let Some(batch) = batches.next().await {
            seen.push(match batch {
                Batch::Park(rows) => ("park", rows[0].0.0, rows.len()),
                Batch::Delete(keys) => ("delete", keys[0].change, keys.len()),
                Batch::Failed(key, ..) => ("failed", key.change, 1),
                Batch::Fetch(_) => ("fetch", 0, 0),
            });
        }
        seen
    }

    #[tokio::test]
    async fn rows_that_were_sent_are_deleted_together() {
        let commands = (1..=250).map(delete).chain([Command::Fetch(None)]);
        assert_eq!(
            batches(commands).await,
            [("delete", 1, 100), ("delete", 101, 100), ("delete", 201, 50), ("fetch", 0, 0)]
        );
    }

    #[tokio::test]
    async fn the_order_of_commands_stays() {
        let failed = Command::Failed(key(5), Reason::Refused, String::new());
        let commands =
            [park(1, 0), park(2, 0), delete(3), delete(4), failed, delete(6), park(7, 0), delete(8)];
        assert_eq!(
            batches(commands).await,
            [
                ("park", 1, 2),
                ("delete", 3, 2),
                ("failed", 5, 1),
                ("delete", 6, 1),
                ("park", 7, 1),
                ("delete", 8, 1)
            ]
        );
    }

    #[tokio::test]
    async fn large_events_are_parked_a_few_at_a_time() {
        let commands = (1..=5).map(|change| park(change, 400 << 10));
        assert_eq!(batches(commands).await, [("park", 1, 3), ("park", 4, 2)]);
    }
}
