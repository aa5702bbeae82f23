//! The replication stream: CopyData in both directions after START_REPLICATION.
//!
//! Reading and writing share one future, [`ReplicationStream::io`], so that status updates go out while the reader is
//! held back, and nothing is lost when the future is dropped. Formats: Postgres manual, "Streaming Replication Protocol".

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::frames::{BadLength, Frame, FrameBuffer};
use super::pgoutput::PgTimestamp;
use super::quoting::{identifier, replication_literal};
use super::server_error::ServerError;
use crate::error::{Error, Peer};
use crate::lsn::Lsn;
use crate::redacted::Redacted;

/// How long the server may take to answer START_REPLICATION: building the snapshot of old log can take a while.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long bytes are let gather at most, and for how long at a time nobody looks at the socket. A unix socket holds about
/// fifty small messages, which Postgres writes in a quarter of a millisecond.
const GATHER_FOR: Duration = Duration::from_millis(5);
const LOOK_AWAY: Duration = Duration::from_micros(150);

/// How long the server may take to answer CopyDone at the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether bytes are received, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receiving {
    /// They stay in the socket.
    Not,
    /// As soon as any have come.
    AtOnce,
    /// When more have come: for a reader that has far to go.
    Gathered,
}

/// What the server sends in CopyData.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReplicationMessage<'a> {
    /// A piece of the stream.
    XLogData {
        /// The end of the log on the server as of sending.
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

/// The running stream over `S`, a socket that has been authenticated.
#[derive(Debug)]
pub struct ReplicationStream<S> {
    stream: S,
    frames: FrameBuffer,
    outgoing: Vec<u8>,
    /// How much of `outgoing` is on its way.
    written: usize,
    flushed: bool,
    last_received: Instant,
    way_out: String,
    sent_away: bool,
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
    /// Statements that show what the server does not decode for this stream, for the message of an error.
    pub way_out: &'a str,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ReplicationStream<S> {
    /// Starts the slot's stream. `unread` are bytes that were received from `stream` already.
    pub async fn start(stream: S, unread: Vec<u8>, what: StreamOf<'_>) -> Result<Self, NotStarted> {
        let mut this = ReplicationStream {
            stream,
            frames: FrameBuffer::new(unread),
            outgoing: Vec::new(),
            written: 0,
            flushed: true,
            last_received: Instant::now(),
            way_out: what.way_out.to_owned(),
            sent_away: false,
        };
        let StreamOf { slot, publication, start, messages, .. } = what;
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL {start} (proto_version '1', publication_names {}{})",
            identifier(slot),
            replication_literal(&identifier(publication)),
            if messages { ", messages 'true'" } else { "" },
        );
        this.queue(b'Q', |body| {
            body.extend_from_slice(command.as_bytes());
            body.push(0);
        });
        match tokio::time::timeout(START_TIMEOUT, this.started()).await {
            Ok(Ok(())) => Ok(this),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(NotStarted::Failed(lost("START_REPLICATION was not answered in time"))),
        }
    }

    async fn started(&mut self) -> Result<(), NotStarted> {
        loop {
            while let Some(frame) = self.frames.peek().map_err(|error| NotStarted::Failed(error.into()))? {
                let (tag, length) = (frame.tag, frame.wire_len());
                let refused = (tag == b'E').then(|| ServerError::parse(frame.body));
                self.frames.consume(length);
                match (tag, refused) {
                    // CopyBothResponse
                    (b'W', _) => return Ok(()),
                    (_, Some(Ok(error))) => return Err(NotStarted::Server(error)),
                    (b'N' | b'S', _) => {}
                    _ => return Err(NotStarted::Failed(unexpected(tag))),
                }
            }
            self.io(Receiving::AtOnce).await.map_err(NotStarted::Failed)?;
        }
    }

    /// Drives the socket: sends what is queued and waits until bytes have come. If none are received it ends only by an
    /// error. May be dropped at any await.
    pub async fn io(&mut self, receiving: Receiving) -> Result<(), Error> {
        match receiving {
            Receiving::Not => poll_fn(|context| self.poll_io(context, false)).await,
            Receiving::AtOnce => poll_fn(|context| self.poll_io(context, true)).await,
            Receiving::Gathered => self.gather().await,
        }
    }

    /// A reader that takes each message as it comes costs the server a wake-up, and itself a turn, for every single one,
    /// and hands Kafka's client records one by one. So it looks away for a moment while the socket fills, again and again,
    /// until enough has gathered or nothing more comes.
    async fn gather(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        let mut received = false;
        while begun.elapsed() < GATHER_FOR && !self.frames.has_gathered() {
            // Of the thread, and not of the task: where the runtime waits for the socket, each message wakes it.
            std::thread::sleep(LOOK_AWAY);
            // it sees now that there is something to read
            tokio::task::yield_now().await;
            let read = poll_fn(|context| Poll::Ready(self.poll_io(context, true))).await;
            let Poll::Ready(read) = read else { break };
            read?;
            received = true;
        }
        if received { Ok(()) } else { poll_fn(|context| self.poll_io(context, true)).await }
    }

    fn poll_io(&mut self, context: &mut Context<'_>, read: bool) -> Poll<Result<(), Error>> {
        // a send that has to wait must not keep the answers from being read
        if let Poll::Ready(Err(error)) = self.poll_send(context) {
            return Poll::Ready(Err(lost(&error.to_string())));
        }
        if !read {
            return Poll::Pending;
        }
        match ready!(self.frames.poll_fill(context, &mut self.stream)) {
            Ok(0) => Poll::Ready(Err(lost("the server closed the connection"))),
            Ok(_) => {
                self.last_received = Instant::now();
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(lost(&error.to_string()))),
        }
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
        // Two looks at a frame: the first passes over what is not data, the second borrows what is.
        while let Some(frame) = self.frames.peek()? {
            let length = frame.wire_len();
            match frame.tag {
                b'd' => break,
                b'N' | b'S' => self.frames.consume(length),
                b'E' => {
                    self.sent_away =
                        ServerError::parse(frame.body).is_ok_and(|error| error.code.code() == ADMIN_SHUTDOWN);
                    return Err(ended(frame, &self.way_out));
                }
                // CommandComplete without CopyDone: a walsender says goodbye so when the server is stopped
                b'c' | b'C' => {
                    return Err(lost("the server ended the stream, as it does when it is stopped"));
                }
                other => return Err(unexpected(other)),
            }
        }
        match self.frames.peek()? {
            Some(frame) => Ok(Some((decode(frame.body)?, frame.wire_len()))),
            None => Ok(None),
        }
    }

    /// Drops the message that was looked at.
    pub fn consume(&mut self, length: usize) {
        self.frames.consume(length);
    }

    /// Queues a StandbyStatusUpdate; [`io`](Self::io) sends it.
    pub fn queue_status(&mut self, status: StandbyStatus, reply_requested: bool) {
        let clock = PgTimestamp::now();
        self.queue(b'd', |body| {
            body.push(b'r');
            for lsn in [status.written, status.flushed, status.flushed] {
                body.extend_from_slice(&lsn.0.to_be_bytes());
            }
            body.extend_from_slice(&clock.0.to_be_bytes());
            body.push(u8::from(reply_requested));
        });
    }

    /// Whether somebody has ended the server's process: an administrator, or a command that moves the slot.
    pub fn was_sent_away(&self) -> bool {
        self.sent_away
    }

    /// How long the server has been silent. Counts only while the stream is read.
    pub fn silent_for(&self) -> Duration {
        self.last_received.elapsed()
    }

    /// The stream was not read on purpose: silence counts from now.
    pub fn not_listening(&mut self) {
        self.last_received = Instant::now();
    }

    /// Sends what is queued and leaves the copy mode, so that the server has taken in the last status update when this
    /// returns. What still arrives is thrown away.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.queue(b'c', |_| {});
        let left = async {
            loop {
                while let Some(frame) = self.frames.peek()? {
                    let (tag, length) = (frame.tag, frame.wire_len());
                    self.frames.consume(length);
                    // CommandComplete, ReadyForQuery, or an error: the server has read past the CopyDone
                    if matches!(tag, b'C' | b'Z' | b'E') {
                        return Ok(());
                    }
                }
                self.io(Receiving::AtOnce).await?;
            }
        };
        tokio::time::timeout(FINISH_TIMEOUT, left)
            .await
            .unwrap_or_else(|_| Err(lost("the end of the stream was not answered in time")))
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

fn ended(frame: Frame<'_>, way_out: &str) -> Error {
    let Ok(error) = ServerError::parse(frame.body) else { return lost("an error that cannot be read") };
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
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend((body.len() as u32 + 4).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    /// How much the other side may leave unread.
    const PIPE: usize = 4096;

    async fn started() -> (ReplicationStream<DuplexStream>, DuplexStream) {
        let (ours, mut theirs) = duplex(PIPE);
        theirs.write_all(&frame(b'W', &[0, 0, 0])).await.unwrap();
        let what = StreamOf {
            slot: "s\"lot",
            publication: "pub'lication",
            start: Lsn(0x10),
            messages: true,
            way_out: "",
        };
        let start = ReplicationStream::start(ours, Vec::new(), what);
        let stream = start.await.unwrap();
        let expected = "START_REPLICATION SLOT \"s\"\"lot\" LOGICAL 0/10 (proto_version '1', publication_names \
                        '\"pub''lication\"', messages 'true')\0";
        let mut command = vec![0; expected.len() + 5];
        theirs.read_exact(&mut command).await.unwrap();
        assert_eq!(std::str::from_utf8(&command[5..]).unwrap(), expected);
        (stream, theirs)
    }

    fn keepalive(wal_end: u64, reply: u8) -> Vec<u8> {
        let mut body = vec![b'k'];
        body.extend(wal_end.to_be_bytes());
        body.extend(5i64.to_be_bytes());
        body.push(reply);
        frame(b'd', &body)
    }

    #[tokio::test]
    async fn messages_are_borrowed_until_consumed() {
        let (mut stream, mut theirs) = started().await;
        let mut data = vec![b'w'];
        data.extend([0; 8]);
        data.extend(7u64.to_be_bytes());
        data.extend([0; 8]);
        data.extend(b"payload");
        theirs.write_all(&frame(b'N', b"\0")).await.unwrap();
        theirs.write_all(&frame(b'd', &data)).await.unwrap();
        theirs.write_all(&keepalive(9, 1)).await.unwrap();
        stream.io(Receiving::AtOnce).await.unwrap();
        for _ in 0..2 {
            let (message, _) = stream.peek().unwrap().unwrap();
            assert_eq!(message, ReplicationMessage::XLogData { wal_end: Lsn(7), data: b"payload" });
        }
        let (_, length) = stream.peek().unwrap().unwrap();
        stream.consume(length);
        let (message, length) = stream.peek().unwrap().unwrap();
        assert_eq!(
            message,
            ReplicationMessage::PrimaryKeepAlive {
                wal_end: Lsn(9),
                sent: PgTimestamp(5),
                reply_requested: true
            }
        );
        stream.consume(length);
        assert_eq!(stream.peek().unwrap(), None);
    }

    #[tokio::test]
    async fn feedback_never_starves_while_reading_is_held_back() {
        let (mut stream, mut theirs) = started().await;
        stream.queue_status(StandbyStatus { written: Lsn(3), flushed: Lsn(2) }, true);
        let mut update = [0; 39];
        tokio::select! {
            error = stream.io(Receiving::Not) => panic!("ended: {error:?}"),
            read = theirs.read_exact(&mut update) => { read.unwrap(); }
        }
        assert_eq!(update[..6], [b'd', 0, 0, 0, 38, b'r']);
        assert_eq!(
            update[6..30],
            [[0, 0, 0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 0, 0, 2]].concat()
        );
        assert_eq!(update[38], 1, "asks for a reply");
    }

    #[tokio::test]
    async fn while_bytes_gather_what_is_queued_goes_out() {
        let (mut stream, mut theirs) = started().await;
        stream.queue_status(StandbyStatus { written: Lsn(3), flushed: Lsn(2) }, false);
        // nothing to read: it waits, and sends meanwhile
        let server = async {
            let mut update = [0; 39];
            theirs.read_exact(&mut update).await.unwrap();
            for wal_end in [1, 2] {
                theirs.write_all(&keepalive(wal_end, 0)).await.unwrap();
            }
        };
        let (gathered, ()) = tokio::join!(stream.io(Receiving::Gathered), server);
        gathered.unwrap();
        let mut seen = Vec::new();
        while let Some((ReplicationMessage::PrimaryKeepAlive { wal_end, .. }, length)) =
            stream.peek().unwrap()
        {
            seen.push(wal_end);
            stream.consume(length);
        }
        assert_eq!(seen, [Lsn(1), Lsn(2)]);
    }

    #[tokio::test]
    async fn where_nothing_comes_to_gather_the_first_byte_is_waited_for() {
        let (mut stream, mut theirs) = started().await;
        let write = async {
            // longer than anything is gathered for
            tokio::time::sleep(2 * GATHER_FOR).await;
            theirs.write_all(&keepalive(1, 0)).await.unwrap();
        };
        let (gathered, ()) = tokio::join!(stream.io(Receiving::Gathered), write);
        gathered.unwrap();
        assert!(stream.peek().unwrap().is_some());
        drop(theirs);
        assert!(stream.io(Receiving::Gathered).await.is_err(), "the end is seen");
    }

    #[tokio::test]
    async fn a_status_update_that_cannot_be_sent_does_not_keep_data_from_being_read() {
        let (mut stream, mut theirs) = started().await;
        for _ in 0..2 * PIPE / 39 {
            stream.queue_status(StandbyStatus { written: Lsn(1), flushed: Lsn(1) }, false);
        }
        theirs.write_all(&keepalive(5, 0)).await.unwrap();
        stream.io(Receiving::AtOnce).await.unwrap();
        assert!(stream.peek().unwrap().is_some());
    }

    #[tokio::test]
    async fn the_end_of_the_stream_is_transient() {
        for bytes in [frame(b'c', b""), frame(b'd', b""), frame(b'd', b"x"), vec![b'd', 0, 0, 0, 0], vec![]] {
            let (mut stream, mut theirs) = started().await;
            theirs.write_all(&bytes).await.unwrap();
            drop(theirs);
            let failed = match stream.io(Receiving::AtOnce).await {
                Ok(()) => stream.peek().map(|_| ()),
                Err(error) => Err(error),
            };
            assert!(matches!(failed, Err(Error::Transient(_))), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn the_servers_refusal_to_start_keeps_its_code() {
        let (ours, mut theirs) = duplex(PIPE);
        let body = b"SERROR\0VERROR\0C55006\0Mreplication slot \"x\" is active for PID 7\0\0";
        theirs.write_all(&frame(b'E', body)).await.unwrap();
        let what = StreamOf { slot: "x", publication: "p", start: Lsn(0), messages: false, way_out: "" };
        match ReplicationStream::start(ours, Vec::new(), what).await {
            Err(NotStarted::Server(error)) => assert_eq!(error.code.code(), "55006"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn finishing_waits_until_the_server_has_read_everything() {
        let (mut stream, mut theirs) = started().await;
        stream.queue_status(StandbyStatus { written: Lsn(3), flushed: Lsn(3) }, false);
        let server = async {
            let mut bytes = [0; 39 + 5];
            theirs.read_exact(&mut bytes).await.unwrap();
            assert_eq!(bytes[39..], [b'c', 0, 0, 0, 4]);
            theirs.write_all(&keepalive(5, 0)).await.unwrap();
            theirs.write_all(&frame(b'C', b"COPY 0\0")).await.unwrap();
        };
        let (finished, ()) = tokio::join!(stream.finish(), server);
        finished.unwrap();
    }
}
