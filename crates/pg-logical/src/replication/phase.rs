//! The state of the session, and what the server's messages mean in it: waiting for a command, streaming, or reading in bulk.

use std::time::Duration;

use crate::quoting::{identifier, replication_literal};
use tokio::time::Instant;

use super::{ADMIN_SHUTDOWN, Receiving, ReplicationStream, StreamOf, ended, lost, unexpected};
use crate::error::Error;
use crate::frames::Frame;
use crate::server_error::ServerError;
use crate::stream::Transport;

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for a command.
    AtRest,
    /// `START_REPLICATION` was sent.
    Starting,
    /// CopyData is sent in both directions.
    Streaming,
    /// CopyDone was sent; what still arrives is discarded.
    Leaving,
    /// A statement was sent; this is the last row received.
    Asking(Vec<Option<String>>),
    /// The COPY of a bulk read was sent; this much of it was processed, and this row followed it.
    BulkReading(BulkRead, Vec<Option<String>>),
    /// A statement was sent whose answer is not needed.
    Reminding,
}

/// What a bulk read has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BulkRead {
    /// Messages of pgoutput.
    pub rows: u32,
    /// Their size on the wire.
    pub bytes: usize,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The stream has begun.
    Streaming,
    /// The stream has ended, and nothing of it will still arrive.
    Left,
    /// The last row of a statement, as text; empty if there was none.
    Row(Vec<Option<String>>),
    /// All of a bulk read was processed. With the row of the statement that follows it.
    BulkRead(BulkRead, Vec<Option<String>>),
    /// The server has refused. After an error that is not fatal, the session can be used again.
    Refused(Box<ServerError>),
}

impl<S: Transport> ReplicationStream<S> {
    /// Sends START_REPLICATION. Like the other commands, it must not be sent while streaming.
    pub fn begin(&mut self, what: StreamOf<'_>) {
        let StreamOf { slot, publication, start, messages } = what;
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL {start} (proto_version '1', publication_names {}{})",
            identifier(slot),
            replication_literal(&identifier(publication)),
            if messages { ", messages 'true'" } else { "" },
        );
        self.command(&command, Phase::Starting);
    }

    /// Sends statements; the last row of the last one is the answer.
    pub fn ask(&mut self, sql: &str) {
        self.command(sql, Phase::Asking(Vec::new()));
    }

    /// Sends the statements of a bulk read, whose messages look like those of a stream. Another bulk read may still be in
    /// progress: then the server starts this one as soon as it has sent that.
    pub fn bulk_read(&mut self, sql: &str) {
        self.command(sql, Phase::BulkReading(BulkRead::default(), Vec::new()));
    }

    /// Sends a statement whose answer is not needed, unless one was sent within `every`: a server that is done long before
    /// its answers are read would otherwise consider the session idle.
    pub fn remind(&mut self, every: Duration) {
        let possible = matches!(self.phase, Phase::AtRest | Phase::BulkReading(..)) && self.answer.is_none();
        if possible && self.commanded.elapsed() >= every {
            self.command("SELECT 1", Phase::Reminding);
        }
    }

    /// Discards what has arrived, when nobody will process it.
    pub fn pass_over_all(&mut self) -> Result<(), Error> {
        loop {
            while let Some((_, length)) = self.peek()? {
                self.consume(length);
            }
            match self.answer() {
                // nothing follows a fatal one
                Some(Answer::Refused(refused)) if refused.severity != "ERROR" => {
                    return Err(lost(&refused.to_string()));
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Ends the streaming. What the server still sends is discarded.
    pub(super) fn leave(&mut self) {
        self.queue(b'c', |_| {});
        self.phase = Phase::Leaving;
    }

    fn command(&mut self, command: &str, phase: Phase) {
        self.queue(b'Q', |body| {
            body.extend_from_slice(command.as_bytes());
            body.push(0);
        });
        self.commanded = Instant::now();
        if self.is_at_rest() {
            self.phase = phase;
            (self.answer, self.refused) = (None, None);
        } else {
            self.behind.push_back(phase);
        }
    }

    /// Whether CopyData is sent in both directions, so that status updates are possible.
    pub fn is_streaming(&self) -> bool {
        self.phase == Phase::Streaming
    }

    /// Whether every command was answered.
    pub fn is_at_rest(&self) -> bool {
        self.phase == Phase::AtRest
    }

    /// How many rows of the current bulk read were processed.
    pub fn rows_read(&self) -> u32 {
        if let Phase::BulkReading(read, _) = &self.phase { read.rows } else { 0 }
    }

    /// The result of the last command, once. Nothing that follows it is returned before.
    pub fn answer(&mut self) -> Option<Answer> {
        self.answer.take()
    }

    /// Processes a message without data for the reader.
    pub(super) fn pass_over(&mut self) -> Result<(), Error> {
        let Some(frame) = self.frames.peek()? else { return Ok(()) };
        let length = frame.wire_len();
        let over = match frame.tag {
            b'N' | b'S' => None,
            b'E' => {
                let refused =
                    ServerError::parse(frame.body).map_err(|_| lost("an error that cannot be read"))?;
                self.sent_away = refused.code.code() == ADMIN_SHUTDOWN;
                if matches!(self.phase, Phase::Streaming | Phase::Leaving) {
                    return Err(ended(refused, &self.recovery_sql));
                }
                // after a fatal one nothing follows
                let at_once = refused.severity != "ERROR" || self.phase == Phase::Starting;
                self.refused = Some(Box::new(refused));
                // the refusal replaces it
                at_once.then_some(Answer::Left)
            }
            b'W' if self.phase == Phase::Starting => Some(Answer::Streaming),
            // CommandComplete without CopyDone: this is how a walsender ends when the server is stopped
            b'c' | b'C' if self.phase == Phase::Streaming => {
                return Err(lost("the server ended the stream, as it does when it is stopped"));
            }
            b'Z' => match std::mem::replace(&mut self.phase, Phase::AtRest) {
                Phase::Leaving => Some(Answer::Left),
                Phase::Asking(row) => Some(Answer::Row(row)),
                Phase::BulkReading(read, row) => Some(Answer::BulkRead(read, row)),
                Phase::Reminding if self.refused.is_some() => Some(Answer::Left),
                Phase::Reminding => {
                    self.phase = self.next_phase();
                    None
                }
                // the end of a command that was already answered
                Phase::AtRest => None,
                Phase::Starting | Phase::Streaming => return Err(unexpected(b'Z')),
            },
            b'D' => match &mut self.phase {
                Phase::Asking(last) | Phase::BulkReading(_, last) => {
                    *last = row(frame).ok_or_else(|| lost("a row cannot be read"))?;
                    None
                }
                Phase::Reminding => None,
                _ => return Err(unexpected(b'D')),
            },
            b'T' | b'H' | b'I' | b'c' | b'C' | b'd'
                if matches!(
                    self.phase,
                    Phase::Asking(_) | Phase::BulkReading(..) | Phase::Leaving | Phase::Reminding
                ) =>
            {
                None
            }
            other => return Err(unexpected(other)),
        };
        self.frames.consume(length);
        if let Some(answer) = over {
            self.phase = match answer {
                Answer::Streaming => Phase::Streaming,
                _ => self.next_phase(),
            };
            self.answer = Some(self.refused.take().map_or(answer, Answer::Refused));
        }
        Ok(())
    }

    fn next_phase(&mut self) -> Phase {
        self.behind.pop_front().unwrap_or(Phase::AtRest)
    }

    /// Waits for the result of the last command and discards its data.
    pub(super) async fn answered(&mut self) -> Result<Answer, Error> {
        loop {
            while let Some((_, length)) = self.peek()? {
                self.consume(length);
            }
            if let Some(answer) = self.answer() {
                return Ok(answer);
            }
            self.io(Receiving::AtOnce).await?;
        }
    }
}

/// The columns of a DataRow.
fn row(frame: Frame<'_>) -> Option<Vec<Option<String>>> {
    let (count, mut rest) = frame.body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        columns.push(match i32::from_be_bytes(*length) {
            -1 => None,
            length => {
                let (value, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                rest = after;
                Some(String::from_utf8(value.to_vec()).ok()?)
            }
        });
    }
    Some(columns)
}
