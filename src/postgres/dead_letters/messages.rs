//! What a router says to the session behind its [`DeadLetterStore`](super::store::DeadLetterStore), and what that answers.

use pg_logical::Lsn;

use super::sql::Waiting;
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

/// The result of a command.
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
