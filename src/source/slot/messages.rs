//! Message after message of the server, each as the loop is to read it.

use pg_logical::pgoutput::{LogicalMessage, Message};
use pg_logical::replication::ReplicationMessage;
use pg_logical::stream::Transport;
use pg_logical::{Lsn, PgTimestamp};

use super::lease::Clocks;
use super::read_throttle::ReadThrottle;
use super::{SlotEnd, SlotSource};
use crate::error::{Error, Peer};
use crate::pipeline::Change;
use crate::progress::Landmark;
use crate::relay::Read;

/// How many messages are read between two looks at the clocks.
const UNTIMED: u32 = 64;

/// The message that was read last, and where it stands in the log.
#[derive(Debug)]
pub(super) struct LastRead {
    /// Its bytes in the receive buffer; `None`: it was not from there, or is dealt with.
    length: Option<usize>,
    kind: Kind,
    /// The server waits for a status update.
    pub(super) reply: bool,
    /// The transaction that began last.
    transaction: Landmark,
    /// Whether it is still under way.
    inside: bool,
    /// A bulk read has come past this position, which is still to be read.
    passed: Option<Lsn>,
    /// How many more messages may be read before the next look at the clocks.
    untimed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Change,
    Commit,
    Other,
}

impl Default for LastRead {
    fn default() -> Self {
        let transaction = Landmark { final_lsn: Lsn::INVALID, xid: 0, commit_time: PgTimestamp::default() };
        LastRead {
            length: None,
            kind: Kind::Other,
            reply: false,
            transaction,
            inside: false,
            passed: None,
            untimed: 0,
        }
    }
}

impl LastRead {
    /// The transaction that began last.
    pub(super) fn transaction(&self) -> Landmark {
        self.transaction
    }

    /// Whether a transaction has begun and is not complete.
    pub(super) fn is_inside(&self) -> bool {
        self.inside
    }

    /// A bulk read has come past `position`.
    pub(super) fn passed(&mut self, position: Lsn) {
        self.passed = Some(position);
    }

    /// A turn is over, which looks at the clocks.
    pub(super) fn turned(&mut self) {
        self.untimed = UNTIMED;
    }

    /// It is dealt with. Returns how many bytes of the receive buffer that were.
    pub(super) fn dealt_with(&mut self, throttle: &mut ReadThrottle) -> Option<usize> {
        match self.kind {
            Kind::Change => throttle.event(),
            Kind::Commit => throttle.commit(),
            Kind::Other => {}
        }
        self.kind = Kind::Other;
        self.length.take()
    }
}

impl<S: Transport> SlotSource<S> {
    pub(super) fn next_message(&mut self) -> Result<Read<'_>, Error> {
        if self.last_read.untimed == 0 {
            // this process may have stood still meanwhile
            self.last_read.untimed = UNTIMED;
            self.lease.check(Clocks::now())?;
        }
        self.last_read.untimed -= 1;
        self.last_read.kind = Kind::Other;
        if let Some(position) = self.last_read.passed.take() {
            self.last_read.length = None;
            return Ok(Read::Reached(position));
        }
        let Some((message, length)) = self.stream.peek()? else { return Ok(Read::Nothing) };
        self.last_read.length = Some(length);
        let (wal_end, data) = match message {
            ReplicationMessage::PrimaryKeepAlive { wal_end, sent, reply_requested } => {
                self.received = self.received.max(wal_end);
                self.monitor.server_wal_end(wal_end);
                self.last_read.reply = reply_requested;
                // one that requests a reply is not an answer
                if !reply_requested {
                    self.lease.answered(sent, Clocks::now());
                }
                if self.last_read.inside {
                    return Ok(Read::Skipped);
                }
                if let Err(other) = self.resume.reached(wal_end) {
                    self.end = Some(SlotEnd::OtherLog(other));
                    return Ok(Read::End(None));
                }
                if let Some(until) = self.until.filter(|until| wal_end >= *until) {
                    self.end = Some(SlotEnd::EndOfPart);
                    return Ok(Read::End(Some(until)));
                }
                return Ok(Read::Reached(wal_end));
            }
            ReplicationMessage::XLogData { wal_end, data } => (wal_end, data),
        };
        self.received = self.received.max(wal_end);
        let message = Message::decode(data).map_err(undecodable)?;
        let last = &mut self.last_read;
        if let Err(other) = self.resume.look(&message, last.transaction) {
            self.end = Some(SlotEnd::OtherLog(other));
            return Ok(Read::End(None));
        }
        Ok(match message {
            Message::Begin(begin) => {
                // as the server does where a stream starts, by the place of the commit
                if let Some(until) = self.until.filter(|until| begin.final_lsn >= *until) {
                    self.end = Some(SlotEnd::EndOfPart);
                    return Ok(Read::End(Some(until)));
                }
                (last.transaction, last.inside) = (begin.into(), true);
                Read::Begin(last.transaction)
            }
            Message::Insert(insert) => {
                last.kind = Kind::Change;
                Read::Change(Change::Row(insert))
            }
            Message::Logical(message) => {
                if self.config.outbox.message_prefix.as_deref() == Some(message.prefix) {
                    if message.transactional {
                        last.kind = Kind::Change;
                        return Ok(Read::Change(Change::Message(message)));
                    }
                    let (prefix, lsn) = (message.prefix, message.lsn);
                    if !std::mem::replace(&mut self.stray_logged, true) {
                        log_stray(prefix, lsn);
                    }
                    self.monitor.counts().ignored_changes.add(1);
                } else if let Some(heartbeat) = &mut self.heartbeat {
                    let LogicalMessage { prefix, content, .. } = message;
                    if let Some(seen) = heartbeat.seen(prefix, content, PgTimestamp::now()) {
                        self.monitor.heartbeat_seen(seen.written, seen.lag);
                        if seen.again {
                            tracing::info!(peer = "postgres", lag = ?seen.lag, "the heartbeat comes back again");
                        }
                    }
                }
                Read::Skipped
            }
            Message::Commit(commit) => {
                (last.kind, last.inside) = (Kind::Commit, false);
                Read::Commit(commit.end_lsn)
            }
            message => Read::Other { message, passed: self.resume.is_under_way() },
        })
    }
}

/// It is in the log whether its transaction commits or not, and stands in no order among the events.
fn log_stray(prefix: &str, lsn: Lsn) {
    tracing::error!(
        prefix, position = %lsn,
        "a message of the outbox is not transactional and was not sent: write it with \
         pg_logical_emit_message(true, ...), or with outbox_router.emit_message"
    );
}

fn undecodable(error: pg_logical::pgoutput::DecodeError) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream cannot be read: {error}"))
}
