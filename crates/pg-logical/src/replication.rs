//! The replication stream: CopyData in both directions after START_REPLICATION, or in one direction in a [bulk
//! read](bulk_read).
//!
//! Reading and writing share one future, [`ReplicationStream::io`], so that status updates are sent while the reader is held
//! back, and nothing is lost when the future is dropped. Formats: Postgres manual, "Streaming Replication Protocol".

mod message;
mod phase;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::time::Instant;

use crate::bulk_read::{self, Piece};
use crate::error::{Error, Remedy};
use crate::frames::{BadLength, FrameBuffer};
use crate::lsn::Lsn;
use crate::server_error::ServerError;
use crate::stream::Transport;
use crate::timestamp::PgTimestamp;
use message::decode;
pub use message::{ReplicationMessage, StandbyStatus};
use phase::Phase;
pub use phase::{Answer, BulkRead};

/// How long the server may take to answer START_REPLICATION: building the snapshot from old log can take a while.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How many bytes are processed before the socket is read again.
const LOOK_EVERY: usize = 8 * 1024;

/// How long reading the last message of an ended session may take; it is already in the socket.
const LAST_WORD: Duration = Duration::from_millis(200);

/// How long the server may take to answer the final CopyDone.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether to receive bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// Leave them in the socket.
    Not,
    /// Return as soon as any have arrived.
    AtOnce,
}

/// Why START_REPLICATION did not start.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// The server's answer, for callers that branch on its SQLSTATE.
    #[error("START_REPLICATION: {0}")]
    Server(ServerError),
    /// Anything else.
    #[error(transparent)]
    Failed(Error),
}

/// The running stream over `S`, an authenticated socket.
#[derive(Debug)]
pub struct ReplicationStream<S> {
    stream: S,
    frames: FrameBuffer,
    outgoing: Vec<u8>,
    /// How many bytes of `outgoing` have been sent.
    written: usize,
    flushed: bool,
    /// An error of a read that comes after bytes that it has received.
    failed: Option<io::Error>,
    /// How many bytes the last read received.
    last_read: usize,
    /// How many bytes were processed since the socket was last read, and how many more may be taken before the next turn, so
    /// that other work gets done.
    worked_off: usize,
    may_take: usize,
    recovery_sql: String,
    sent_away: bool,
    phase: Phase,
    /// The result of the last command, and an error within it.
    answer: Option<Answer>,
    refused: Option<Box<ServerError>>,
    /// The commands sent after the current one, and when the last was sent.
    behind: VecDeque<Phase>,
    commanded: Instant,
}

/// `admin_shutdown`: pg_terminate_backend.
const ADMIN_SHUTDOWN: &str = "57P01";

/// What is streamed.
#[derive(Debug, Clone, Copy)]
pub struct StreamOf<'a> {
    /// The slot.
    pub slot: &'a str,
    /// The publication.
    pub publication: &'a str,
    /// The position to start from.
    pub start: Lsn,
    /// Whether to include logical messages, with any prefix.
    pub messages: bool,
}

impl<S: Transport> ReplicationStream<S> {
    /// Takes over a session that waits for a command. `unread` are bytes already received from `stream`; `recovery_sql` are
    /// statements that read what this stream may be unable to, and are returned with such an error.
    pub fn at_rest(stream: S, unread: Vec<u8>, recovery_sql: &str) -> Self {
        ReplicationStream {
            stream,
            frames: FrameBuffer::new(unread),
            outgoing: Vec::new(),
            written: 0,
            flushed: true,
            failed: None,
            last_read: 0,
            worked_off: 0,
            may_take: 0,
            recovery_sql: recovery_sql.to_owned(),
            sent_away: false,
            phase: Phase::AtRest,
            answer: None,
            refused: None,
            behind: VecDeque::new(),
            commanded: Instant::now(),
        }
    }

    /// Starts streaming the slot in a session at rest, and waits until it has begun.
    pub async fn start(mut self, what: StreamOf<'_>) -> Result<Self, NotStarted> {
        self.begin(what);
        match tokio::time::timeout(START_TIMEOUT, self.answered()).await {
            Ok(Ok(Answer::Refused(error))) => Err(NotStarted::Server(*error)),
            Ok(Ok(_)) => Ok(self),
            Ok(Err(error)) => Err(NotStarted::Failed(error)),
            Err(_) => Err(NotStarted::Failed(lost("START_REPLICATION was not answered in time"))),
        }
    }

    /// The next message, with the number of bytes to [`consume`](Self::consume) once it is processed; `None` if more bytes
    /// are needed.
    pub fn peek(&mut self) -> Result<Option<(ReplicationMessage<'_>, usize)>, Error> {
        // Looks at each frame twice: first to skip what is not data, then to borrow what is. What follows an answer waits
        // until the answer is taken.
        loop {
            if self.answer.is_some() {
                return Ok(None);
            }
            let Some(frame) = self.frames.peek()? else { return Ok(None) };
            let length = frame.wire_len();
            match &self.phase {
                Phase::Streaming if frame.tag == b'd' => break,
                Phase::BulkReading(read, _) if frame.tag == b'd' => {
                    match bulk_read::decode(frame.body, read.rows == 0)? {
                        Piece::Row { .. } => break,
                        Piece::End => self.frames.consume(length),
                    }
                }
                _ => self.pass_over()?,
            }
        }
        let Some(frame) = self.frames.peek()? else { return Ok(None) };
        let message = match &self.phase {
            Phase::BulkReading(read, _) => match bulk_read::decode(frame.body, read.rows == 0)? {
                Piece::Row { lsn, data } => ReplicationMessage::XLogData { wal_end: lsn, data },
                Piece::End => return Ok(None),
            },
            _ => decode(frame.body)?,
        };
        Ok(Some((message, frame.wire_len())))
    }

    /// Drops the message that was looked at.
    pub fn consume(&mut self, length: usize) {
        self.frames.consume(length);
        if let Phase::BulkReading(read, _) = &mut self.phase {
            read.rows = read.rows.saturating_add(1);
            read.bytes += length;
        }
        self.worked_off += length;
        if self.worked_off >= LOOK_EVERY && self.may_take > 0 {
            self.worked_off = 0;
            self.take_meanwhile();
        }
    }

    /// Queues a StandbyStatusUpdate; [`io`](Self::io) sends it. Returns its timestamp, which the server shows as `reply_time`
    /// once it has processed the update.
    pub fn queue_status(&mut self, status: StandbyStatus, reply_requested: bool) -> PgTimestamp {
        let clock = PgTimestamp::now();
        self.queue(b'd', |body| {
            body.push(b'r');
            for lsn in [status.written, status.flushed, status.flushed] {
                body.extend_from_slice(&lsn.0.to_be_bytes());
            }
            body.extend_from_slice(&clock.0.to_be_bytes());
            body.push(u8::from(reply_requested));
        });
        clock
    }

    /// Reads the last message of the server after a session has failed, because nothing was read while the reader was held
    /// back. Takes at most 200 ms.
    pub async fn hear_out(&mut self) {
        let heard = async {
            loop {
                self.pass_over_all()?;
                self.io(Receiving::AtOnce).await?;
            }
        };
        let _: Result<Result<(), Error>, _> = tokio::time::timeout(LAST_WORD, heard).await;
    }

    /// Whether somebody has terminated the server process: an administrator, or a command that moves the slot.
    pub fn was_sent_away(&self) -> bool {
        self.sent_away
    }

    /// Sends what is queued and ends the copy mode, so that the server has processed the last status update when this
    /// returns. What still arrives is discarded. A session that does not stream runs the statement `moved` instead, which
    /// reports the same.
    pub async fn finish(mut self, moved: Option<&str>) -> Result<Self, Error> {
        let left = async {
            if self.is_streaming() {
                self.leave();
            }
            let streamed = self.phase == Phase::Leaving;
            // refused or not: the server has read everything up to the CopyDone
            self.pass_over_all()?;
            while !self.is_at_rest() {
                self.io(Receiving::AtOnce).await?;
                self.pass_over_all()?;
            }
            if let Some(moved) = moved.filter(|_| !streamed) {
                self.ask(moved);
                self.answered().await?;
            }
            Ok(())
        };
        match tokio::time::timeout(FINISH_TIMEOUT, left).await {
            Ok(left) => left.map(|()| self),
            Err(_) => Err(lost("the end of the stream was not answered in time")),
        }
    }

    fn queue(&mut self, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.outgoing.push(tag);
        let start = self.outgoing.len();
        self.outgoing.extend_from_slice(&[0; 4]);
        body(&mut self.outgoing);
        // every message written here is far shorter than that
        let length = u32::try_from(self.outgoing.len() - start).unwrap_or(u32::MAX);
        if let Some(word) = self.outgoing.get_mut(start..start + 4) {
            word.copy_from_slice(&length.to_be_bytes());
        }
    }
}

impl From<BadLength> for Error {
    fn from(error: BadLength) -> Self {
        lost(&error.to_string())
    }
}

fn lost(reason: &str) -> Error {
    Error::transient(format!("the replication stream broke: {reason}"))
}

fn unexpected(tag: u8) -> Error {
    lost(&format!("a message of type {:?} does not belong there", char::from(tag)))
}

impl From<bulk_read::Malformed> for Error {
    fn from(error: bulk_read::Malformed) -> Self {
        lost(&error.to_string())
    }
}

fn ended(error: ServerError, recovery_sql: &str) -> Error {
    // the server would refuse the same again at this place
    let remedy = Remedy::StreamEnded { recovery_sql: recovery_sql.to_owned() };
    Error::of_server("the server ended the replication stream", error, remedy)
}
