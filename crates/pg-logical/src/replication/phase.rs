//! The state of the session, and how the server's messages change it.

use std::time::Duration;

use crate::quoting::{identifier, replication_literal};
use tokio::time::Instant;

use super::{ADMIN_SHUTDOWN, Receiving, ReplicationStream, StreamOf, ended, lost, unexpected};
use crate::error::Error;
use crate::frames::Frame;
use crate::server_error::{STOPPED, ServerError};
use crate::stream::Transport;

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// The session waits for a command.
    Idle,
    /// `START_REPLICATION` was sent.
    Starting,
    /// CopyData is sent in both directions.
    Streaming,
    /// CopyDone was sent; data that still arrives is discarded.
    Ending,
    /// A statement was sent; this is the last row received.
    Querying(Vec<Option<String>>),
    /// The COPY of a bulk read was sent. With what was processed so far, and the row of the statement that follows it.
    BulkReading(BulkRead, Vec<Option<String>>),
    /// A statement was sent only to keep the session active; its answer is discarded.
    Pinging,
}

/// How much a bulk read has returned.
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
    /// The stream has ended, and no more of its messages will arrive.
    Ended,
    /// The last row of a statement, as text; empty if there was none.
    Row(Vec<Option<String>>),
    /// All rows of a bulk read were processed. With the row of the statement that follows it.
    BulkRead(BulkRead, Vec<Option<String>>),
    /// The server returned an error. Unless it is FATAL, the session can be used again.
    Refused(Box<ServerError>),
}

impl<S: Transport> ReplicationStream<S> {
    /// Sends START_REPLICATION. Like the other commands, it must not be called while streaming.
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
    pub fn query(&mut self, sql: &str) {
        self.command(sql, Phase::Querying(Vec::new()));
    }

    /// Sends the statements of a bulk read, whose rows are returned as messages of the stream. If another bulk read is in
    /// progress, the server starts this one after it.
    pub fn bulk_read(&mut self, sql: &str) {
        self.command(sql, Phase::BulkReading(BulkRead::default(), Vec::new()));
    }

    /// Sends a statement to keep the session active, unless a command was sent within `every`. A server that has sent a whole
    /// bulk read considers the session idle while the reader is still processing it.
    pub fn ping(&mut self, every: Duration) {
        let possible = matches!(self.phase, Phase::Idle | Phase::BulkReading(..)) && self.answer.is_none();
        if possible && self.last_command_at.elapsed() >= every {
            self.command("SELECT 1", Phase::Pinging);
        }
    }

    /// Discards all messages that have arrived.
    pub fn discard_received(&mut self) -> Result<(), Error> {
        loop {
            while let Some((_, length)) = self.peek()? {
                self.consume(length);
            }
            match self.answer() {
                // nothing follows a FATAL error
                Some(Answer::Refused(refused)) if refused.severity != "ERROR" => {
                    return Err(lost(&refused.to_string()));
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Ends the stream. Data that the server still sends is discarded.
    pub(super) fn send_copy_done(&mut self) {
        self.queue(b'c', |_| {});
        self.phase = Phase::Ending;
    }

    fn command(&mut self, command: &str, phase: Phase) {
        self.queue(b'Q', |body| {
            body.extend_from_slice(command.as_bytes());
            body.push(0);
        });
        self.last_command_at = Instant::now();
        if self.is_idle() {
            self.phase = phase;
            (self.answer, self.refused) = (None, None);
        } else {
            self.queued_phases.push_back(phase);
        }
    }

    /// Whether CopyData is sent in both directions, so that status updates are possible.
    pub fn is_streaming(&self) -> bool {
        self.phase == Phase::Streaming
    }

    /// Whether every command has been answered.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// How many rows of the current bulk read have been consumed.
    pub fn rows_read(&self) -> u32 {
        if let Phase::BulkReading(read, _) = &self.phase { read.rows } else { 0 }
    }

    /// Takes the result of the last command. No later message is returned before it is taken.
    pub fn answer(&mut self) -> Option<Answer> {
        self.answer.take()
    }

    /// Processes a message that has no data for the reader.
    pub(super) fn handle_control_message(&mut self) -> Result<(), Error> {
        let Some(frame) = self.frames.peek()? else { return Ok(()) };
        let length = frame.wire_len();
        let answer = match frame.tag {
            b'N' | b'S' => None,
            b'E' => {
                let refused =
                    ServerError::parse(frame.body).map_err(|_| lost("an error that cannot be read"))?;
                self.terminated = refused.code.code() == ADMIN_SHUTDOWN;
                if matches!(self.phase, Phase::Streaming | Phase::Ending) {
                    return Err(ended(refused));
                }
                // nothing follows a FATAL error
                let at_once = refused.severity != "ERROR" || self.phase == Phase::Starting;
                self.refused = Some(Box::new(refused));
                // only a placeholder: `refused` replaces it below
                at_once.then_some(Answer::Ended)
            }
            b'W' if self.phase == Phase::Starting => Some(Answer::Streaming),
            // a walsender ends with CommandComplete and without CopyDone when the server is stopped
            b'c' | b'C' if self.phase == Phase::Streaming => {
                return Err(lost(STOPPED));
            }
            b'Z' => match std::mem::replace(&mut self.phase, Phase::Idle) {
                Phase::Ending => Some(Answer::Ended),
                Phase::Querying(row) => Some(Answer::Row(row)),
                Phase::BulkReading(read, row) => Some(Answer::BulkRead(read, row)),
                Phase::Pinging if self.refused.is_some() => Some(Answer::Ended),
                Phase::Pinging => {
                    self.phase = self.next_phase();
                    None
                }
                // the end of a command that was already answered
                Phase::Idle => None,
                Phase::Starting | Phase::Streaming => return Err(unexpected(b'Z')),
            },
            b'D' => match &mut self.phase {
                Phase::Querying(last) | Phase::BulkReading(_, last) => {
                    *last = row(frame).ok_or_else(|| lost("a row cannot be read"))?;
                    None
                }
                Phase::Pinging => None,
                _ => return Err(unexpected(b'D')),
            },
            b'T' | b'H' | b'I' | b'c' | b'C' | b'd'
                if matches!(
                    self.phase,
                    Phase::Querying(_) | Phase::BulkReading(..) | Phase::Ending | Phase::Pinging
                ) =>
            {
                None
            }
            other => return Err(unexpected(other)),
        };
        self.frames.consume(length);
        if let Some(answer) = answer {
            self.phase = match answer {
                Answer::Streaming => Phase::Streaming,
                _ => self.next_phase(),
            };
            self.answer = Some(self.refused.take().map_or(answer, Answer::Refused));
        }
        Ok(())
    }

    fn next_phase(&mut self) -> Phase {
        self.queued_phases.pop_front().unwrap_or(Phase::Idle)
    }

    /// Waits for the result of the last command and discards its data.
    pub(super) async fn wait_for_answer(&mut self) -> Result<Answer, Error> {
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
