//! Shows the loop what has arrived behind the current change, without consuming it.

use pg_logical::Lsn;
use pg_logical::pgoutput::Message;
use pg_logical::replication::ReplicationMessage;

use crate::pipeline::Change;
use crate::relay::Read;

/// Passes transactions and changes to `see` until it returns false. Messages with `prefix` are changes. Stops where this
/// router's part of the log ends, and before a message after which changes may be read in another way.
pub(super) fn show<'a>(
    messages: impl Iterator<Item = ReplicationMessage<'a>>,
    prefix: Option<&str>,
    until: Option<Lsn>,
    see: &mut dyn FnMut(Read<'_>) -> bool,
) {
    for message in messages {
        let ReplicationMessage::XLogData { data, .. } = message else { continue };
        let item = match Message::decode(data) {
            Ok(Message::Begin(begin)) if until.is_none_or(|until| begin.final_lsn < until) => {
                Read::Begin(begin.into())
            }
            Ok(Message::Insert(insert)) => Read::Change(Change::Row(insert)),
            Ok(Message::Logical(message)) if message.transactional && prefix == Some(message.prefix) => {
                Read::Change(Change::Message(message))
            }
            Ok(Message::Commit(_) | Message::Origin(_) | Message::Logical(_)) => continue,
            _ => return,
        };
        if !see(item) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use pg_logical::PgTimestamp;

    use super::*;

    fn begin(final_lsn: u64) -> Vec<u8> {
        [b"B", &final_lsn.to_be_bytes()[..], &[0; 8], &7_u32.to_be_bytes()].concat()
    }

    fn logical(transactional: u8, prefix: &str, content: &str) -> Vec<u8> {
        let length = (content.len() as u32).to_be_bytes();
        let head = [b'M', transactional];
        [&head[..], &[0; 8], prefix.as_bytes(), &[0], &length, content.as_bytes()].concat()
    }

    /// A row of a table with one column.
    fn insert(relation: u32, value: &str) -> Vec<u8> {
        let length = (value.len() as u32).to_be_bytes();
        [b"I", &relation.to_be_bytes()[..], b"N", &[0, 1, b't'], &length, value.as_bytes()].concat()
    }

    const COMMIT: [u8; 26] = {
        let mut commit = [0; 26];
        commit[0] = b'C';
        commit
    };

    /// A table without columns.
    fn relation() -> Vec<u8> {
        [&b"R\0\0\0\x01public\0outbox\0d"[..], &[0, 0]].concat()
    }

    /// What is shown of these messages, at most `most` items.
    fn shown(messages: &[Vec<u8>], until: Option<Lsn>, most: usize) -> Vec<String> {
        let mut shown = Vec::new();
        let keepalive = ReplicationMessage::PrimaryKeepAlive {
            wal_end: Lsn(1),
            sent: PgTimestamp(0),
            reply_requested: true,
        };
        let data = |data| ReplicationMessage::XLogData { wal_end: Lsn(1), data };
        let messages = messages.iter().flat_map(|message| [keepalive, data(message.as_slice())]);
        show(messages, Some("outbox"), until, &mut |item| {
            shown.push(match item {
                Read::Begin(transaction) => format!("begin {}", transaction.final_lsn),
                Read::Change(Change::Row(row)) => format!("row of {}", row.relation.0),
                Read::Change(Change::Message(message)) => {
                    String::from_utf8_lossy(message.content).into_owned()
                }
                _ => "other".to_owned(),
            });
            shown.len() < most
        });
        shown
    }

    #[test]
    fn changes_and_their_transactions_are_shown_across_keepalives() {
        let messages = [
            insert(5, "a"),
            COMMIT.to_vec(),
            begin(0x20),
            logical(1, "outbox", "event"),
            logical(0, "outbox", "not transactional"),
            logical(1, "heartbeat", "of the router"),
            insert(6, "b"),
        ];
        let all = ["row of 5", "begin 0/20", "event", "row of 6"];
        assert_eq!(shown(&messages, None, 100), all);
        assert_eq!(shown(&messages, None, 2), all[..2]);
        assert_eq!(shown(&messages, Some(Lsn(0x20)), 100), all[..1], "another shard's part");
    }

    #[test]
    fn a_table_whose_definition_may_change_ends_what_is_shown() {
        for end in [relation(), b"Y\0\0\0\x01pg_catalog\0int4\0".to_vec(), b"?".to_vec()] {
            let messages = [insert(5, "a"), end, insert(5, "b")];
            assert_eq!(shown(&messages, None, 100), ["row of 5"]);
        }
    }
}
