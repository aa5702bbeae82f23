//! The replication stream: CopyData in both directions after START_REPLICATION, or one way in a bite ([`bites`]).
//!
//! Reading and writing share one future, [`ReplicationStream::io`], so that status updates go out while the reader is
//! held back, and nothing is lost when the future is dropped. Formats: Postgres manual, "Streaming Replication Protocol".

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::bites::{self, Piece};
use super::frames::{BadLength, FrameBuffer, GATHERED};
use super::pgoutput::PgTimestamp;
use super::server_error::ServerError;
use super::stream::Transport;
use crate::error::{Error, Peer};
use crate::lsn::Lsn;
use crate::redacted::Redacted;
use phase::Phase;
pub use phase::{Answer, Bitten};

mod phase;

/// How long the server may take to answer START_REPLICATION: building the snapshot of old log can take a while.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long bytes are let gather at most, and for how long at a time nobody looks at the socket. A unix socket holds about
/// fifty small messages, which Postgres writes in a quarter of a millisecond.
const GATHER_FOR: Duration = Duration::from_millis(5);
const LOOK_AWAY: Duration = Duration::from_micros(150);

/// What one read brings of a server that writes faster than it is read; a unix socket holds little more.
const FLOOD: usize = 16 * 1024;

/// How many bytes are worked off between two looks at the socket.
const LOOK_EVERY: usize = 8 * 1024;

/// How long what the server said before it ended a session may take to be read: it is in the socket already.
const LAST_WORD: Duration = Duration::from_millis(200);

/// How long the server may take to answer CopyDone at the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether bytes are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// They stay in the socket.
    Not,
    /// As soon as any have come.
    AtOnce,
}

/// What the server sends in CopyData.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReplicationMessage<'a> {
    /// A piece of the stream.
    XLogData {
        /// The place of the change in the log: a logical walsender says it twice, also where the protocol has the end of the
        /// log (`WalSndPrepareWrite`).
        wal_end: Lsn,
        /// One message of the plugin.
        data: &'a [u8],
    },
    /// A sign of life. What lies before `wal_end` has been sent or concerns us not.
    PrimaryKeepAlive {
        /// The end of what the walsender has worked through.
        wal_end: Lsn,
        /// When it was sent, by the server's clock.
        sent: PgTimestamp,
        /// Whether it wants an answer at once.
        reply_requested: bool,
    },
}

impl fmt::Debug for ReplicationMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::XLogData { wal_end, data } => {
                f.debug_struct("XLogData").field("wal_end", wal_end).field("data", &Redacted(data)).finish()
            }
            Self::PrimaryKeepAlive { wal_end, sent, reply_requested } => f
                .debug_struct("PrimaryKeepAlive")
                .field("wal_end", wal_end)
                .field("sent", sent)
                .field("reply_requested", reply_requested)
                .finish(),
        }
    }
}

/// What a standby status update says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Received up to here.
    pub written: Lsn,
    /// Acknowledged up to here: the server may forget what lies before it.
    pub flushed: Lsn,
}

/// Why START_REPLICATION did not start.
#[derive(Debug)]
pub enum NotStarted {
    /// The server's answer, for callers that branch on its SQLSTATE.
    Server(ServerError),
    /// Anything else.
    Failed(Error),
}

impl NotStarted {
    /// What it means for who wants to read `slot`.
    pub fn into_error(self, slot: &str) -> Error {
        match self {
            NotStarted::Failed(error) => error,
            // somebody was faster between the look and the start
            NotStarted::Server(error) if error.code.code() == "55006" => {
                Error::transient(Peer::Postgres, format!("the slot {slot} was taken by another: {error}"))
            }
            // what concerns the slot itself: invalidated, not a logical one
            NotStarted::Server(error) if matches!(error.code.code(), "55000" | "42704") => Error::not_safe(
                format!("Postgres does not start the slot {slot}: {error}"),
                "Run `outbox-router check`, which says what state it is in",
            ),
            NotStarted::Server(error) => error.into_error("START_REPLICATION", |_| {
                "Run `outbox-router check`, which looks at privileges, slot and publication".to_owned()
            }),
        }
    }
}

/// The running stream over `S`, a socket that has been authenticated.
#[derive(Debug)]
pub struct ReplicationStream<S> {
    stream: S,
    frames: FrameBuffer,
    outgoing: Vec<u8>,
    /// How much of `outgoing` is on its way.
    written: usize,
    flushed: bool,
    /// An error that a read has met behind bytes that it has brought.
    failed: Option<io::Error>,
    /// How many bytes the last read has brought.
    last_read: usize,
    /// How many bytes were worked off since the last look at the socket, and how many more may be taken before the next turn:
    /// there are other things to do.
    worked_off: usize,
    may_take: usize,
    way_out: String,
    sent_away: bool,
    phase: Phase,
    /// What has come of the last command, and what the server has refused in it.
    answer: Option<Answer>,
    refused: Option<Box<ServerError>>,
    /// What was sent behind the command that is under way, and when the last was sent.
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
    /// Where to begin.
    pub start: Lsn,
    /// Logical messages too, those of all prefixes.
    pub messages: bool,
}

impl<S: Transport> ReplicationStream<S> {
    /// The session as it is, waiting for a command. `unread` are bytes that were received from `stream` already, and `way_out`
    /// statements that show what the server does not decode for this stream, for the message of an error.
    pub fn at_rest(stream: S, unread: Vec<u8>, way_out: &str) -> Self {
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
            way_out: way_out.to_owned(),
            sent_away: false,
            phase: Phase::AtRest,
            answer: None,
            refused: None,
            behind: VecDeque::new(),
            commanded: Instant::now(),
        }
    }

    /// Starts the slot's stream in a session at rest, and waits until it has begun.
    pub async fn start(mut self, what: StreamOf<'_>) -> Result<Self, NotStarted> {
        self.begin(what);
        match tokio::time::timeout(START_TIMEOUT, self.answered()).await {
            Ok(Ok(Answer::Refused(error))) => Err(NotStarted::Server(*error)),
            Ok(Ok(_)) => Ok(self),
            Ok(Err(error)) => Err(NotStarted::Failed(error)),
            Err(_) => Err(NotStarted::Failed(lost("START_REPLICATION was not answered in time"))),
        }
    }

    /// Drives the socket: sends what is queued and waits until bytes have come. If none are received it ends only by an
    /// error. May be dropped at any await.
    pub async fn io(&mut self, receiving: Receiving) -> Result<(), Error> {
        poll_fn(|context| self.poll_io(context, receiving == Receiving::AtOnce)).await
    }

    /// For a reader that has far to go: lets bytes gather and takes them; says whether any have come. One that takes each
    /// message as it comes costs the server a wake-up, and itself a turn, for every single one, and hands Kafka's client
    /// records one by one. So it looks away while the socket fills, again and again, until enough has gathered or nothing
    /// more comes.
    ///
    /// Blocks the thread meanwhile: where the runtime waits for the socket, each message wakes it. Does nothing where only the
    /// runtime can read.
    pub fn gather(&mut self) -> Result<bool, Error> {
        let (begun, mut received) = (Instant::now(), 0);
        loop {
            let Some(taken) = self.frames.fill_now(&mut self.stream) else { return Ok(false) };
            let taken = match taken {
                Ok(taken) => taken,
                // what came before it may say why
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            received += taken;
            if self.frames.has_gathered()
                || begun.elapsed() >= GATHER_FOR
                || taken == 0 && begun.elapsed() >= LOOK_AWAY
            {
                break;
            }
            std::thread::sleep(LOOK_AWAY);
        }
        self.received(received);
        self.may_take = GATHERED;
        Ok(received > 0)
    }

    fn received(&mut self, bytes: usize) {
        (self.last_read, self.worked_off, self.may_take) = (bytes, 0, 0);
    }

    /// Whether the last read has brought so much that more is to be expected.
    pub fn is_flooded(&self) -> bool {
        self.last_read >= FLOOD
    }

    fn poll_io(&mut self, context: &mut Context<'_>, read: bool) -> Poll<Result<(), Error>> {
        // a send that has to wait must not keep the answers from being read
        if let Poll::Ready(Err(error)) = self.poll_send(context) {
            // the server's last word may lie in the socket, and says more
            let brought = match self.frames.fill_now(&mut self.stream) {
                Some(read) => matches!(read, Ok(1..)),
                None => matches!(self.frames.poll_fill(context, &mut self.stream), Poll::Ready(Ok(1..))),
            };
            if brought && self.failed.is_none() {
                self.failed = Some(error);
                return Poll::Ready(Ok(()));
            }
            return Poll::Ready(Err(lost(&error.to_string())));
        }
        if !read {
            return Poll::Pending;
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(lost(&error.to_string())));
        }
        let mut received = 0;
        // with TLS a read brings a few messages at a time
        while !self.frames.has_gathered() || received == 0 {
            match self.frames.poll_fill(context, &mut self.stream) {
                Poll::Ready(Ok(0)) if received == 0 => {
                    return Poll::Ready(Err(lost("the server closed the connection")));
                }
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(count)) => received += count,
                Poll::Ready(Err(error)) if received == 0 => {
                    return Poll::Ready(Err(lost(&error.to_string())));
                }
                Poll::Ready(Err(error)) => {
                    self.failed = Some(error);
                    break;
                }
                Poll::Pending if received == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        self.received(received);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        while let Some(rest) = self.outgoing.get(self.written..).filter(|rest| !rest.is_empty()) {
            self.written += ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            self.flushed = false;
        }
        self.outgoing.clear();
        self.written = 0;
        if !self.flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// The next message, with the number of bytes to [`consume`](Self::consume) once it is dealt with; `None` until
    /// more bytes have come.
    pub fn peek(&mut self) -> Result<Option<(ReplicationMessage<'_>, usize)>, Error> {
        // Two looks at a frame: the first passes over what is not data, the second borrows what is. What lies behind an answer
        // waits until that is taken.
        loop {
            if self.answer.is_some() {
                return Ok(None);
            }
            let Some(frame) = self.frames.peek()? else { return Ok(None) };
            let length = frame.wire_len();
            match &self.phase {
                Phase::Streaming if frame.tag == b'd' => break,
                Phase::Biting(bitten, _) if frame.tag == b'd' => {
                    match bites::decode(frame.body, bitten.rows == 0)? {
                        Piece::Row { .. } => break,
                        Piece::End => self.frames.consume(length),
                    }
                }
                _ => self.pass_over()?,
            }
        }
        let Some(frame) = self.frames.peek()? else { return Ok(None) };
        let message = match &self.phase {
            Phase::Biting(bitten, _) => match bites::decode(frame.body, bitten.rows == 0)? {
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
        if let Phase::Biting(bitten, _) = &mut self.phase {
            bitten.rows = bitten.rows.saturating_add(1);
            bitten.bytes += length;
        }
        self.worked_off += length;
        if self.worked_off >= LOOK_EVERY && self.may_take > 0 {
            self.worked_off = 0;
            self.take_meanwhile();
        }
    }

    /// What comes while messages are worked off: a socket that holds little would keep the server waiting.
    fn take_meanwhile(&mut self) {
        if !self.stream.holds_little() {
            self.may_take = 0;
            return;
        }
        match self.frames.fill_now(&mut self.stream) {
            Some(Ok(0)) | None => {}
            Some(Ok(taken)) => self.may_take = self.may_take.saturating_sub(taken),
            Some(Err(error)) => (self.failed, self.may_take) = (Some(error), 0),
        }
    }

    /// Queues a StandbyStatusUpdate; [`io`](Self::io) sends it. Returns the timestamp in it, which the server shows as `reply_time`
    /// once it has taken it in.
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

    /// Reads what the server said last, of a session that has failed: while Kafka held the stream back it was not read. Takes 200 ms
    /// at most.
    pub async fn hear_out(&mut self) {
        let heard = async {
            loop {
                self.pass_over_all()?;
                self.io(Receiving::AtOnce).await?;
            }
        };
        let _: Result<Result<(), Error>, _> = tokio::time::timeout(LAST_WORD, heard).await;
    }

    /// Whether somebody has ended the server's process: an administrator, or a command that moves the slot.
    pub fn was_sent_away(&self) -> bool {
        self.sent_away
    }

    /// Sends what is queued and leaves the copy mode, so that the server has taken in the last status update when this
    /// returns. What still arrives is thrown away. A session that does not stream tells it by `moved`, a statement.
    pub async fn finish(mut self, moved: Option<&str>) -> Result<Self, Error> {
        let left = async {
            if self.is_streaming() {
                self.leave();
            }
            let streamed = self.phase == Phase::Leaving;
            // refused or not: the server has read past the CopyDone
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
        // every message that the router writes is far shorter than that
        let length = u32::try_from(self.outgoing.len() - start).unwrap_or(u32::MAX);
        if let Some(word) = self.outgoing.get_mut(start..start + 4) {
            word.copy_from_slice(&length.to_be_bytes());
        }
    }
}

fn decode(body: &[u8]) -> Result<ReplicationMessage<'_>, Error> {
    let malformed = || lost("a replication message cannot be read");
    let (kind, rest) = body.split_first().ok_or_else(malformed)?;
    let lsn = |bytes: &[u8; 8]| Lsn(u64::from_be_bytes(*bytes));
    match kind {
        b'w' => {
            let (_start, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (wal_end, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (_clock, data) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            Ok(ReplicationMessage::XLogData { wal_end: lsn(wal_end), data })
        }
        b'k' => {
            let (wal_end, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let (clock, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
            let [reply] = rest else { return Err(malformed()) };
            let sent = PgTimestamp(i64::from_be_bytes(*clock));
            Ok(ReplicationMessage::PrimaryKeepAlive {
                wal_end: lsn(wal_end),
                sent,
                reply_requested: *reply == 1,
            })
        }
        other => Err(lost(&format!("there is no replication message of type {:?}", char::from(*other)))),
    }
}

impl From<BadLength> for Error {
    fn from(error: BadLength) -> Self {
        lost(&error.to_string())
    }
}

fn lost(reason: &str) -> Error {
    Error::transient(Peer::Postgres, format!("the replication stream broke: {reason}"))
}

fn unexpected(tag: u8) -> Error {
    lost(&format!("a message of type {:?} does not belong there", char::from(tag)))
}

impl From<bites::Malformed> for Error {
    fn from(error: bites::Malformed) -> Self {
        lost(&error.to_string())
    }
}

fn ended(error: ServerError, way_out: &str) -> Error {
    let remedy = |_: &ServerError| {
        format!(
            "The stream cannot be read past this place, and nothing was skipped. Run `outbox-router check`. What the log \
             holds from here on can be read from a copy of the slot; once it is seen to, `outbox-router slot advance \
             --to LSN` leaves out what was committed before LSN. In one session: {way_out}"
        )
    };
    // whatever the server refuses here, it would refuse at the same place again
    error.into_error("the server ended the replication stream", remedy).unsafe_to_go_on()
}

#[cfg(test)]
mod tests;
