//! The replication stream: CopyData in both directions after START_REPLICATION, or in one direction in a [bulk
//! read](bulk_read).
//!
//! Reading and writing share one future, [`ReplicationStream::io`], so that status updates are sent while reading is paused,
//! and nothing is lost when the future is dropped. Formats: Postgres manual, "Streaming Replication Protocol".

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
use crate::frames::{BadLength, Frame, FrameBuffer};
use crate::lsn::Lsn;
use crate::server_error::ServerError;
use crate::stream::Transport;
use crate::timestamp::PgTimestamp;
use message::decode;
pub use message::{ReplicationMessage, StandbyStatus};
use phase::Phase;
pub use phase::{Answer, BulkRead};

/// How long the server may take to answer START_REPLICATION, because it may have to build its snapshot from old log.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How many bytes are processed before the socket is read again.
const READ_EVERY: usize = 8 * 1024;

/// How long reading the server's last message may take once the session has failed; it is already in the socket.
const FINAL_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// How long the server may take to answer the final CopyDone.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether to receive bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// No: leave them in the socket.
    Paused,
    /// Yes: return as soon as any have arrived.
    AtOnce,
}

/// Why START_REPLICATION failed.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// The server's answer, for callers that branch on its SQLSTATE.
    #[error("START_REPLICATION: {0}")]
    Server(ServerError),
    /// Anything else.
    #[error(transparent)]
    Failed(Error),
}

/// A replication session over `S`, an authenticated socket.
#[derive(Debug)]
pub struct ReplicationStream<S> {
    stream: S,
    frames: FrameBuffer,
    outgoing: Vec<u8>,
    /// How many bytes of `outgoing` have been sent.
    written: usize,
    flushed: bool,
    /// A socket error, which is reported once the bytes received before it have been processed.
    failed: Option<io::Error>,
    /// How many bytes the last read received.
    last_read: usize,
    /// How many bytes were consumed since the socket was last read.
    consumed_since_read: usize,
    /// How many more bytes may be read between messages before the caller gets to other work.
    read_budget: usize,
    terminated: bool,
    phase: Phase,
    /// The result of the last command, and an error within it.
    answer: Option<Answer>,
    refused: Option<Box<ServerError>>,
    /// The commands that were sent while the current one is still running.
    queued_phases: VecDeque<Phase>,
    last_command_at: Instant,
}

/// `admin_shutdown`, also the SQLSTATE after `pg_terminate_backend`.
const ADMIN_SHUTDOWN: &str = "57P01";

/// The arguments of START_REPLICATION.
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
    /// Takes over a session that waits for a command. `unread` are bytes already received from `stream`.
    pub fn new(stream: S, unread: Vec<u8>) -> Self {
        ReplicationStream {
            stream,
            frames: FrameBuffer::new(unread),
            outgoing: Vec::new(),
            written: 0,
            flushed: true,
            failed: None,
            last_read: 0,
            consumed_since_read: 0,
            read_budget: 0,
            terminated: false,
            phase: Phase::Idle,
            answer: None,
            refused: None,
            queued_phases: VecDeque::new(),
            last_command_at: Instant::now(),
        }
    }

    /// Starts streaming in an idle session, and waits for the server's answer.
    pub async fn start(mut self, what: StreamOf<'_>) -> Result<Self, NotStarted> {
        self.begin(what);
        match tokio::time::timeout(START_TIMEOUT, self.wait_for_answer()).await {
            Ok(Ok(Answer::Refused(error))) => Err(NotStarted::Server(*error)),
            Ok(Ok(_)) => Ok(self),
            Ok(Err(error)) => Err(NotStarted::Failed(error)),
            Err(_) => Err(NotStarted::Failed(lost("START_REPLICATION was not answered in time"))),
        }
    }

    /// The next message, with the number of bytes to [`consume`](Self::consume) once it is processed; `None` if more bytes
    /// are needed.
    pub fn peek(&mut self) -> Result<Option<(ReplicationMessage<'_>, usize)>, Error> {
        // Each frame is peeked at twice: first to handle messages without data, then to borrow the data. Messages after an
        // answer wait until the answer is taken.
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
                _ => self.handle_control_message()?,
            }
        }
        let Some(frame) = self.frames.peek()? else { return Ok(None) };
        let first_row = self.rows_read() == 0;
        Ok(self.data(frame, first_row)?.map(|message| (message, frame.wire_len())))
    }

    /// The messages behind the one that [`peek`](Self::peek) returned, as far as they have arrived. They end before anything
    /// that is not data. Nothing is consumed, and `peek` will return each of them.
    pub fn look_ahead(&self) -> impl Iterator<Item = ReplicationMessage<'_>> {
        let reading = matches!(self.phase, Phase::Streaming | Phase::BulkReading(..));
        let frames = self.frames.peek_all().skip(1).take_while(move |frame| reading && frame.tag == b'd');
        frames.map_while(|frame| self.data(frame, false).ok().flatten())
    }

    /// The data of a CopyData; `None` at the end of a bulk read, whose `first_row` also has the header.
    fn data<'a>(&self, frame: Frame<'a>, first_row: bool) -> Result<Option<ReplicationMessage<'a>>, Error> {
        match &self.phase {
            Phase::BulkReading(..) => Ok(match bulk_read::decode(frame.body, first_row)? {
                Piece::Row { lsn, data } => Some(ReplicationMessage::XLogData { wal_end: lsn, data }),
                Piece::End => None,
            }),
            _ => decode(frame.body).map(Some),
        }
    }

    /// Drops the message that [`peek`](Self::peek) returned.
    pub fn consume(&mut self, length: usize) {
        self.frames.consume(length);
        if let Phase::BulkReading(read, _) = &mut self.phase {
            read.rows = read.rows.saturating_add(1);
            read.bytes += length;
        }
        self.consumed_since_read += length;
        if self.consumed_since_read >= READ_EVERY && self.read_budget > 0 {
            self.consumed_since_read = 0;
            self.read_between_messages();
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

    /// Reads the server's last message after the session has failed, in case reading was paused. Takes at most 200 ms.
    pub async fn read_final_message(&mut self) {
        let reading = async {
            loop {
                self.discard_received()?;
                self.io(Receiving::AtOnce).await?;
            }
        };
        let _: Result<Result<(), Error>, _> = tokio::time::timeout(FINAL_MESSAGE_TIMEOUT, reading).await;
    }

    /// Whether the server process was terminated, by an administrator or by a command that moves the slot.
    pub fn was_terminated(&self) -> bool {
        self.terminated
    }

    /// Sends queued messages and ends the copy mode, so that the server has processed the last status update when this
    /// returns. Messages that still arrive are discarded. A session that does not stream runs the statement `advance`
    /// instead, which moves the slot to the same position.
    pub async fn finish(mut self, advance: Option<&str>) -> Result<Self, Error> {
        let finished = async {
            if self.is_streaming() {
                self.send_copy_done();
            }
            let streamed = self.phase == Phase::Ending;
            // even if it answers with an error, the server has read everything up to the CopyDone
            self.discard_received()?;
            while !self.is_idle() {
                self.io(Receiving::AtOnce).await?;
                self.discard_received()?;
            }
            if let Some(advance) = advance.filter(|_| !streamed) {
                self.query(advance);
                self.wait_for_answer().await?;
            }
            Ok(())
        };
        match tokio::time::timeout(FINISH_TIMEOUT, finished).await {
            Ok(finished) => finished.map(|()| self),
            Err(_) => Err(lost("the end of the stream was not answered in time")),
        }
    }

    fn queue(&mut self, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.outgoing.push(tag);
        let start = self.outgoing.len();
        self.outgoing.extend_from_slice(&[0; 4]);
        body(&mut self.outgoing);
        // all messages are far shorter than u32::MAX
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
    lost(&format!("the server sent an unexpected message of type {:?}", char::from(tag)))
}

impl From<bulk_read::Malformed> for Error {
    fn from(error: bulk_read::Malformed) -> Self {
        lost(&error.to_string())
    }
}

fn ended(error: ServerError) -> Error {
    // a definite error would recur at the same position
    Error::of_server("the server ended the replication stream", error, Remedy::StreamEnded)
}
