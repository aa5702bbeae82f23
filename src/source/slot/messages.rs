//! Turns the server's messages into items for the loop.

use pg_logical::pgoutput::{LogicalMessage, Message};
use pg_logical::replication::ReplicationMessage;
use pg_logical::stream::Transport;
use pg_logical::{Lsn, PgTimestamp};

use super::read_throttle::ReadThrottle;
use super::{SlotEnd, SlotSource};
use crate::error::{Error, Peer};
use crate::pipeline::Change;
use crate::progress::Landmark;
use crate::relay::Read;
use crate::source::lease::Clocks;

/// How many messages are read between two checks of the lease.
const MESSAGES_PER_CLOCK_CHECK: u32 = 64;

/// The last message, and its place in the log.
#[derive(Debug)]
pub(super) struct LastRead {
    /// Its length in the receive buffer; `None` if it did not come from there or was consumed.
    length: Option<usize>,
    kind: Kind,
    /// The server has requested a status update.
    pub(super) reply: bool,
    /// The transaction that began last.
    transaction: Landmark,
    /// Whether its Commit has not arrived yet.
    inside: bool,
    /// The position that a bulk read has reached, until the loop takes it.
    reached: Option<Lsn>,
    /// How many more messages may be read before the next check of the lease.
    until_clock_check: u32,
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
            reached: None,
            until_clock_check: 0,
        }
    }
}

impl LastRead {
    /// The transaction that began last.
    pub(super) fn transaction(&self) -> Landmark {
        self.transaction
    }

    /// Whether the current transaction is incomplete.
    pub(super) fn is_inside(&self) -> bool {
        self.inside
    }

    /// A bulk read has reached `position`.
    pub(super) fn bulk_read_reached(&mut self, position: Lsn) {
        self.reached = Some(position);
    }

    /// The lease was checked just now.
    pub(super) fn clocks_checked(&mut self) {
        self.until_clock_check = MESSAGES_PER_CLOCK_CHECK;
    }

    /// Marks the message as consumed. Returns its length in the receive buffer.
    pub(super) fn consume(&mut self, throttle: &mut ReadThrottle) -> Option<usize> {
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
        if self.last_read.until_clock_check == 0 {
            // this process may have been suspended
            self.last_read.until_clock_check = MESSAGES_PER_CLOCK_CHECK;
            self.lease.check(Clocks::now())?;
        }
        self.last_read.until_clock_check -= 1;
        self.last_read.kind = Kind::Other;
        if let Some(position) = self.last_read.reached.take() {
            self.last_read.length = None;
            return Ok(Read::Reached(position));
        }
        let Some((message, length)) = self.stream.peek()? else { return Ok(Read::Nothing) };
        self.last_read.length = Some(length);
        let (wal_end, data) = match message {
            ReplicationMessage::PrimaryKeepAlive { wal_end, sent, reply_requested } => {
                self.received = self.received.max(wal_end);
                // a walsender names what it has sent, which may end before the log does
                self.monitor.server_wal_end(wal_end.max(self.server_end));
                self.last_read.reply = reply_requested;
                // a keepalive that requests a reply is not an answer
                if !reply_requested {
                    self.lease.answered(sent, Clocks::now());
                }
                if self.last_read.inside {
                    return Ok(Read::Skipped);
                }
                if let Err(other) = self.resume.reached(wal_end) {
                    self.end = Some(SlotEnd::LogMismatch(other));
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
        if let Err(other) = self.resume.observe(&message, last.transaction) {
            self.end = Some(SlotEnd::LogMismatch(other));
            return Ok(Read::End(None));
        }
        Ok(match message {
            Message::Begin(begin) => {
                // the server uses the commit's LSN too when it decides where a stream starts
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
                    if !std::mem::replace(&mut self.non_transactional_logged, true) {
                        log_non_transactional(prefix, lsn);
                    }
                    self.monitor.counts().ignored_changes.add(1);
                } else if let Some(heartbeat) = &mut self.heartbeat {
                    let LogicalMessage { prefix, content, .. } = message;
                    if let Some(seen) = heartbeat.received(prefix, content, PgTimestamp::now()) {
                        self.monitor.heartbeat_received(seen.written, seen.lag);
                        if seen.after_miss {
                            tracing::info!(peer = "postgres", lag = ?seen.lag, "heartbeats come back again");
                        }
                    }
                }
                Read::Skipped
            }
            Message::Commit(commit) => {
                (last.kind, last.inside) = (Kind::Commit, false);
                Read::Commit(commit.end_lsn)
            }
            message => Read::Other { message, already_delivered: self.resume.is_under_way() },
        })
    }
}

/// Such a message is in the log even if its transaction is rolled back, and has no order among the events.
fn log_non_transactional(prefix: &str, lsn: Lsn) {
    tracing::error!(
        prefix, position = %lsn,
        "a message with the outbox prefix is not transactional and was not sent: write it with \
         pg_logical_emit_message(true, ...), or with outbox_router.emit_message"
    );
}

fn undecodable(error: pg_logical::pgoutput::DecodeError) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream cannot be read: {error}"))
}
