//! The receive buffer: reads bytes from the socket and returns borrowed protocol messages.
//!
//! A message stays in the buffer until it is consumed, so a reader that cannot process it yet can peek at it again later.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::Redacted;
use tokio::io::{AsyncRead, ReadBuf};

use super::stream::Transport;

/// The size of one read, large enough for a lagging reader to get many messages per system call.
const READ_SIZE: usize = 64 * 1024;

/// How many bytes a lagging reader waits for: about a thousand messages of a few hundred bytes, which share the cost of one
/// iteration of its loop.
pub(super) const GATHER_SIZE: usize = 512 * 1024;

/// Postgres itself never sends more (`MaxAllocSize`).
const MAX_MESSAGE: usize = 0x3FFF_FFFF;

/// The size of the tag and the length word.
const HEADER: usize = 5;

/// One backend message: its tag byte and its body, without the length word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The message type, for example `d` for CopyData.
    pub tag: u8,
    /// The rest of the message.
    pub body: &'a [u8],
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("tag", &char::from(self.tag))
            .field("body", &Redacted(self.body))
            .finish()
    }
}

impl Frame<'_> {
    /// The size of the message on the wire.
    pub fn wire_len(&self) -> usize {
        HEADER + self.body.len()
    }
}

/// A message has an impossible length, so the peer no longer speaks the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message of type {tag:?} announced an impossible length of {length} bytes")]
pub struct BadLength {
    tag: char,
    length: i32,
}

/// Bytes that were received and have not been consumed.
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl fmt::Debug for FrameBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameBuffer({} of {} bytes)", self.end - self.start, self.bytes.len())
    }
}

impl FrameBuffer {
    /// A buffer that begins with `received`, the bytes left over by an earlier reader of the socket.
    pub fn new(mut received: Vec<u8>) -> Self {
        let end = received.len();
        received.resize(end.max(READ_SIZE), 0);
        FrameBuffer { bytes: received, start: 0, end }
    }

    /// The next complete message, without consuming it; `None` if more bytes are needed.
    pub fn peek(&self) -> Result<Option<Frame<'_>>, BadLength> {
        Ok(split_first(self.received())?.map(|(frame, _)| frame))
    }

    /// All complete messages in order, without consuming them. They end before a message with an impossible length.
    pub fn peek_all(&self) -> impl Iterator<Item = Frame<'_>> {
        let mut rest = self.received();
        std::iter::from_fn(move || {
            let (frame, after) = split_first(rest).ok()??;
            rest = after;
            Some(frame)
        })
    }

    fn received(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Whether enough bytes have arrived for a lagging reader to start processing.
    pub fn has_gathered(&self) -> bool {
        self.end - self.start >= GATHER_SIZE
    }

    /// Drops the first `count` bytes, which are those of the message that [`peek`](Self::peek) returned.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        // gives back the memory of a large message
        if self.bytes.len() > 2 * GATHER_SIZE && self.end - self.start < GATHER_SIZE {
            self.move_to_front();
            self.bytes.truncate(self.end.max(READ_SIZE));
            self.bytes.shrink_to_fit();
        }
    }

    /// Reads once from `stream`. `Ready(Ok(0))` is the end of the stream.
    pub fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let free = self.bytes.get_mut(self.end..).unwrap_or_default();
        let mut target = ReadBuf::new(free);
        ready!(Pin::new(stream).poll_read(context, &mut target))?;
        let count = target.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }

    /// Reads the bytes that are already in the socket, up to a limit.
    pub fn fill_now<S: Transport>(&mut self, stream: &mut S) -> io::Result<usize> {
        let mut taken = 0;
        while !self.has_gathered() {
            self.make_room();
            let free = self.bytes.get_mut(self.end..).unwrap_or_default();
            let room = free.len();
            let count = stream.read_now(free)?;
            self.end += count;
            taken += count;
            if count < room {
                break;
            }
        }
        Ok(taken)
    }

    /// Moves the incomplete message to the front. The buffer grows only as fast as bytes arrive, because the announced length
    /// may be wrong, and no larger than the message needs.
    fn make_room(&mut self) {
        if self.bytes.len() - self.end >= READ_SIZE / 2 {
            return;
        }
        self.move_to_front();
        if self.bytes.len() - self.end < READ_SIZE / 2 {
            let enough = self.announced().max(self.end).max(2 * GATHER_SIZE) + READ_SIZE;
            let size = enough.min(self.bytes.len() * 2);
            self.bytes.reserve_exact(size - self.bytes.len());
            self.bytes.resize(size, 0);
        }
    }

    fn move_to_front(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// The size of the first message on the wire, or 0 before its header has arrived.
    fn announced(&self) -> usize {
        match self.received().first_chunk::<HEADER>() {
            Some(&[tag, a, b, c, d]) => body_length(tag, [a, b, c, d]).map_or(0, |body| HEADER + body),
            None => 0,
        }
    }
}

/// The first message and the bytes after it; `None` if it is incomplete.
fn split_first(received: &[u8]) -> Result<Option<(Frame<'_>, &[u8])>, BadLength> {
    let Some((&[tag, a, b, c, d], rest)) = received.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let body_len = body_length(tag, [a, b, c, d])?;
    Ok(rest.split_at_checked(body_len).map(|(body, after)| (Frame { tag, body }, after)))
}

fn body_length(tag: u8, word: [u8; 4]) -> Result<usize, BadLength> {
    let length = i32::from_be_bytes(word);
    let bad = BadLength { tag: char::from(tag), length };
    let total = usize::try_from(length).map_err(|_| bad.clone())?;
    // the length includes itself
    match total.checked_sub(4) {
        Some(body) if body <= MAX_MESSAGE => Ok(body),
        _ => Err(bad),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::future::poll_fn;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend((body.len() as i32 + 4).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    async fn read_all(wire: &[u8], chunk: usize) -> Vec<(u8, Vec<u8>)> {
        let mut seen = Vec::new();
        let mut buffer = FrameBuffer::new(Vec::new());
        for mut piece in wire.chunks(chunk) {
            while !piece.is_empty() {
                poll_fn(|cx| buffer.poll_fill(cx, &mut piece)).await.unwrap();
            }
            while let Some(frame) = buffer.peek().unwrap() {
                seen.push((frame.tag, frame.body.to_vec()));
                let used = frame.wire_len();
                buffer.consume(used);
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn messages_are_complete_however_the_bytes_arrive(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40),
            chunk in 1usize..500,
        ) {
            let wire: Vec<u8> = bodies.iter().flat_map(|body| message(b'd', body)).collect();
            let seen = tokio::runtime::Builder::new_current_thread().build().unwrap()
                .block_on(read_all(&wire, chunk));
            prop_assert_eq!(seen, bodies.into_iter().map(|body| (b'd', body)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_complete_messages_are_seen_and_none_is_consumed() {
        let wire = [message(b'a', b"1"), message(b'b', b""), message(b'c', b"22")].concat();
        for end in 0..=wire.len() {
            let mut buffer = FrameBuffer::new(wire[..end].to_vec());
            for _ in 0..2 {
                let tags: Vec<u8> = buffer.peek_all().map(|frame| frame.tag).collect();
                let complete = [6, 11, 18].iter().filter(|length| **length <= end).count();
                assert_eq!(tags, b"abc"[..complete], "{end} bytes");
            }
            if end >= 6 {
                buffer.consume(6);
                assert!(buffer.peek_all().all(|frame| frame.tag != b'a'), "a consumed one is gone");
            }
        }
    }

    #[test]
    fn an_impossible_length_ends_what_is_seen() {
        let wire = [message(b'a', b"1"), vec![b'b', 0, 0, 0, 3], message(b'c', b"")].concat();
        let tags: Vec<u8> = FrameBuffer::new(wire).peek_all().map(|frame| frame.tag).collect();
        assert_eq!(tags, b"a");
    }

    #[tokio::test]
    async fn memory_of_a_large_message_is_freed_when_it_is_consumed() {
        let body = vec![7; 40 * READ_SIZE];
        let wire = message(b'd', &body);
        let mut source = wire.as_slice();
        let mut buffer = FrameBuffer::new(Vec::new());
        while buffer.peek().unwrap().is_none() {
            assert_ne!(poll_fn(|cx| buffer.poll_fill(cx, &mut source)).await.unwrap(), 0);
        }
        assert_eq!(buffer.peek().unwrap().unwrap().body, body);
        let capacity = buffer.bytes.capacity();
        assert!(capacity <= wire.len() + READ_SIZE, "{capacity} bytes for a message of {}", wire.len());
        buffer.consume(wire.len());
        assert_eq!(buffer.bytes.capacity(), READ_SIZE);
    }

    #[tokio::test]
    async fn memory_of_a_large_message_is_freed_while_the_next_one_arrives() {
        let (large, next) = (message(b'd', &vec![7; 40 * READ_SIZE]), message(b'e', &[1, 2, 3]));
        let wire = [large.as_slice(), &next[..HEADER + 1]].concat();
        let mut source = wire.as_slice();
        let mut buffer = FrameBuffer::new(Vec::new());
        while !source.is_empty() {
            assert_ne!(poll_fn(|cx| buffer.poll_fill(cx, &mut source)).await.unwrap(), 0);
        }
        buffer.consume(large.len());
        assert_eq!(buffer.bytes.capacity(), READ_SIZE);
        assert_eq!(buffer.peek().unwrap(), None);
        let mut rest = &next[HEADER + 1..];
        assert_eq!(poll_fn(|cx| buffer.poll_fill(cx, &mut rest)).await.unwrap(), 2);
        assert_eq!(buffer.peek().unwrap(), Some(Frame { tag: b'e', body: &[1, 2, 3] }));
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        for length in [-1i32, 0, 3, i32::MAX] {
            let mut bytes = vec![b'd'];
            bytes.extend(length.to_be_bytes());
            assert!(FrameBuffer::new(bytes).peek().is_err(), "{length}");
        }
    }

    #[test]
    fn bytes_left_over_by_an_earlier_reader_come_first() {
        let buffer = FrameBuffer::new(message(b'W', &[0, 0, 0]));
        assert_eq!(buffer.peek().unwrap(), Some(Frame { tag: b'W', body: &[0, 0, 0] }));
    }
}
