//! Message after message of the stream, each to the part that it is for.

use pg_logical::pgoutput::Message;
use pg_logical::replication::ReplicationMessage;
use pg_logical::stream::Transport;
use pg_logical::{Lsn, Oid, PgTimestamp};

use super::Relay;
use super::ending::Outcome;
use super::lease::Clocks;
use super::sending::{Handled, Written, not_readable, out_of_step, updated};
use crate::checkpoint::OtherLog;
use crate::config::OnUpdate;
use crate::error::{Error, Peer};
use crate::routing::Origin;

/// Said once a session; the counter of ignored changes has the rest.
const UPDATED: &str =
    "a row of the outbox was updated, which changes nothing of its event: only what is inserted is sent";

/// Why the relay does not go on with the message in front of it.
pub(super) enum Pause {
    /// There is none: more bytes are needed.
    NeedsInput,
    /// Something has to happen first; reading on would only fill memory.
    HeldBack,
}

/// How many messages are dealt with between two looks at the clocks.
const UNTIMED: u32 = 64;

impl<S: Transport> Relay<S> {
    /// Deals with the messages in the receive buffer until it is empty or something has to happen first.
    pub(super) fn work(&mut self) -> Result<Pause, Error> {
        let mut untimed = UNTIMED;
        loop {
            untimed -= 1;
            if untimed == 0 {
                untimed = UNTIMED;
                // this process may have stood still meanwhile
                self.lease.check(Clocks::now())?;
            }
            if self.ending.is_some() || self.sending.sink.is_setting_up() || self.checkpointer.is_closing() {
                return Ok(Pause::HeldBack);
            }
            // reports and reads take turns: the buffer holds, and takes meanwhile, a bounded number of messages
            let Some((message, length)) = self.stream.peek()? else { return Ok(Pause::NeedsInput) };
            match message {
                ReplicationMessage::PrimaryKeepAlive { wal_end, sent, reply_requested } => {
                    self.received = self.received.max(wal_end);
                    self.monitor.server_wal_end(wal_end);
                    // a keepalive that requests a reply is not an answer
                    if !reply_requested {
                        self.lease.answered(sent, Clocks::now());
                    }
                    self.stream.consume(length);
                    if !self.sending.progress.inside_transaction()
                        && let Err(other) = self.recognizing.reached(wal_end)
                    {
                        return Ok(self.other_log(other));
                    }
                    self.sending.progress.reached(self.until.map_or(wal_end, |until| wal_end.min(until)));
                    if reply_requested {
                        self.queue_status(false);
                    }
                    if self.until.is_some_and(|until| wal_end >= until)
                        && !self.sending.progress.inside_transaction()
                    {
                        return Ok(self.end_of_part());
                    }
                }
                ReplicationMessage::XLogData { wal_end, data } => {
                    self.received = self.received.max(wal_end);
                    let message = Message::decode(data).map_err(undecodable)?;
                    if let Err(other) = self.recognizing.look(&message, &self.sending.origin) {
                        return Ok(self.other_log(other));
                    }
                    match message {
                        Message::Begin(begin) => {
                            // as the server does where a stream starts, by the place of the commit
                            if let Some(until) = self.until.filter(|until| begin.final_lsn >= *until) {
                                self.sending.progress.reached(until);
                                return Ok(self.end_of_part());
                            }
                            self.sending.origin = Origin {
                                final_lsn: begin.final_lsn,
                                xid: begin.xid,
                                commit_time: begin.commit_time,
                                ordinal: 0,
                            };
                            self.sending.progress.begin(begin.into()).map_err(out_of_step)?;
                        }
                        Message::Insert(insert) => {
                            let handled = self.sending.change(Written::Row(insert));
                            if !self.settled(handled) {
                                return Ok(Pause::HeldBack);
                            }
                        }
                        Message::Logical(message) if !self.sending.outbox.is_event(message.prefix) => {
                            let now = PgTimestamp::now();
                            let heartbeat = self.heartbeat.as_mut();
                            if let Some(seen) =
                                heartbeat.and_then(|known| known.seen(message.prefix, message.content, now))
                            {
                                self.monitor.heartbeat_seen(seen.written, seen.lag);
                                if seen.again {
                                    tracing::info!(peer = "postgres", lag = ?seen.lag, "the heartbeat comes back again");
                                }
                            }
                        }
                        Message::Logical(message) if !message.transactional => {
                            let lsn = message.lsn;
                            self.not_transactional(lsn);
                        }
                        Message::Logical(message) => {
                            let handled = self.sending.change(Written::Message(message));
                            if !self.settled(handled) {
                                return Ok(Pause::HeldBack);
                            }
                        }
                        Message::Commit(commit) => {
                            self.sending.progress.commit(commit.end_lsn).map_err(out_of_step)?;
                            self.pace.commit();
                        }
                        Message::Relation(relation) => {
                            let of_the_past = self.sending.origin.final_lsn < self.head;
                            match self.sending.outbox.relation(&relation, of_the_past) {
                                Ok(()) => {}
                                // of rows that were delivered already; should one follow that was not, it is told then
                                Err(error) if self.recognizing.passes_over(&self.sending.progress) => {
                                    self.sending.outbox.unreadable(relation.id, error);
                                }
                                Err(error) => {
                                    self.end_intake(Outcome::Failed(not_readable(&error)));
                                    return Ok(Pause::HeldBack);
                                }
                            }
                        }
                        // what was passed before was judged before
                        Message::Update(_) | Message::Delete(_) | Message::Truncate(_)
                            if self.recognizing.passes_over(&self.sending.progress) => {}
                        // A publication may publish more than the router needs. Only what is inserted is an event.
                        Message::Update(update) => {
                            let relation = update.relation;
                            if let Some(error) = self.updated(relation) {
                                self.end_intake(Outcome::Failed(error));
                                return Ok(Pause::HeldBack);
                            }
                        }
                        Message::Delete(_) | Message::Truncate(_) => self.monitor.ignored_changes(1),
                        Message::Type(named) => self.sending.outbox.type_name(&named),
                        Message::Origin(_) => {}
                    }
                    self.stream.consume(length);
                }
            }
        }
    }

    /// What comes from here on is for others.
    fn end_of_part(&mut self) -> Pause {
        self.end_intake(Outcome::EndOfPart);
        Pause::HeldBack
    }

    /// Nothing of it is sent, confirmed or remembered.
    fn other_log(&mut self, other: OtherLog) -> Pause {
        self.end_intake(Outcome::OtherLog(other));
        Pause::HeldBack
    }

    /// Whether the next change can be dealt with.
    fn settled(&mut self, handled: Handled) -> bool {
        match handled {
            Handled::Done => {
                self.pace.event();
                return true;
            }
            Handled::HeldBack => {}
            Handled::Failed(error) => self.end_intake(Outcome::Failed(error)),
        }
        false
    }

    /// It is in the log whether its transaction commits or not, and stands in no order among the events.
    fn not_transactional(&mut self, lsn: Lsn) {
        if !std::mem::replace(&mut self.stray_told, true) {
            let prefix = self.config.outbox.message_prefix.as_deref().unwrap_or_default();
            tracing::error!(
                prefix, position = %lsn,
                "a message of the outbox is not transactional and was not sent: write it with \
                 pg_logical_emit_message(true, ...), or with outbox_router.emit_message"
            );
        }
        self.monitor.ignored_changes(1);
    }

    /// A row was updated. If it is one of the outbox, the application may believe that the event changes with it.
    fn updated(&mut self, relation: Oid) -> Option<Error> {
        if let Some(table) = self.sending.outbox.table_of(relation) {
            let table = table.to_string();
            let lsn = self.sending.origin.final_lsn;
            let first = !std::mem::replace(&mut self.update_told, true);
            match self.config.outbox.on_update {
                OnUpdate::Stop => return Some(updated(&table, lsn, self.sending.outbox.shard())),
                OnUpdate::Error if first => {
                    tracing::error!(table, position = %lsn, "{UPDATED}");
                }
                OnUpdate::Warn if first => {
                    tracing::warn!(table, position = %lsn, "{UPDATED}");
                }
                OnUpdate::Error | OnUpdate::Warn => {}
            }
        }
        self.monitor.ignored_changes(1);
        None
    }
}

fn undecodable(error: pg_logical::pgoutput::DecodeError) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream cannot be read: {error}"))
}
