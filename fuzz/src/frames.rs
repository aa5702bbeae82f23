//! The frame reader finds the same messages in a stream however its bytes arrive, and its buffer stays small.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pg_logical::frames::FrameBuffer;
use pg_logical::stream::{Transport, TransportKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes that one read asks for.
const READ_SIZE: usize = 64 * 1024;

/// The number of bytes that reads without the runtime gather.
const GATHERED: usize = 512 * 1024;

/// Long enough for the buffer to grow several times.
const LONGEST_WIRE: usize = 1 << 18;

/// The largest TLS record.
const RECORD: usize = 16 * 1024;

/// A socket whose reads return pieces of the sizes given, cyclically.
struct Pieces {
    wire: Vec<u8>,
    start: usize,
    at_least: usize,
    sizes: Vec<u8>,
    turn: usize,
}

impl Pieces {
    /// The next piece, which has at most `room` bytes. Half of the sizes are those of TLS records, from 1 byte to 16 kB; the
    /// others go beyond what a read asks for.
    fn next(&mut self, room: usize) -> &[u8] {
        let size = self.sizes.get(self.turn % self.sizes.len().max(1)).map_or(READ_SIZE, |size| match size {
            size if size % 2 == 1 => (usize::from(size / 2) * RECORD / 127).max(1),
            size => usize::from(*size).pow(2) * 2,
        });
        self.turn += 1;
        let left = &self.wire[self.start..];
        let piece = &left[..(size + self.at_least).min(left.len()).min(room)];
        self.start += piece.len();
        piece
    }
}

impl AsyncRead for Pieces {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = into.remaining();
        into.put_slice(self.get_mut().next(room));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Transport for Pieces {
    fn kind(&self) -> TransportKind {
        TransportKind::Tls
    }

    fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.next(buffer.len());
        buffer[..piece.len()].copy_from_slice(piece);
        Ok(piece.len())
    }
}

pub fn run(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let (sizes, rest) = rest.split_at(usize::from(first % 16).min(rest.len()));
    let wire = if first < 128 { rest.to_vec() } else { built(rest) };
    let (frames, broken) = expected(&wire);

    let whole = taken(&mut FrameBuffer::new(wire.clone()));
    assert!(whole == (frames.clone(), broken), "read at once");

    let mut context = Context::from_waker(Waker::noop());
    let longest = frames.iter().map(|(_, body)| body.len()).max().unwrap_or_default();
    for with_runtime in [true, false] {
        let at_least = 1 + wire.len() / 1_000;
        let mut stream = Pieces { wire: wire.clone(), start: 0, at_least, sizes: sizes.to_vec(), turn: 0 };
        let mut buffer = FrameBuffer::new(Vec::new());
        let mut pieces = (Vec::new(), false);
        while !pieces.1 {
            let count = if with_runtime {
                match buffer.poll_fill(&mut context, &mut stream) {
                    Poll::Ready(read) => read.unwrap(),
                    Poll::Pending => panic!("no bytes"),
                }
            } else {
                buffer.fill_now(&mut stream).unwrap()
            };
            let (more, broken) = taken(&mut buffer);
            pieces.0.extend(more);
            pieces.1 = broken;
            let (held, size) = held(&buffer);
            let most = if with_runtime { READ_SIZE } else { GATHERED };
            assert!(
                size <= 4 * most.max(held).max(longest),
                "{size} bytes allocated for {held} buffered; the longest message has {longest}"
            );
            if count == 0 {
                break;
            }
        }
        assert!(pieces == (frames.clone(), broken), "read in pieces, with the runtime: {with_runtime}");
    }
}

/// Builds messages of up to 64 KiB, so that an input of a few bytes can have many large ones.
fn built(plan: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    for message in plan.as_chunks::<4>().0 {
        let [tag, high, low, fill] = *message;
        let length = u16::from_be_bytes([high, low]);
        wire.push(tag);
        wire.extend((u32::from(length) + 4).to_be_bytes());
        wire.resize(wire.len() + usize::from(length), fill);
        if wire.len() > LONGEST_WIRE {
            break;
        }
    }
    wire
}

type Frames = Vec<(u8, Vec<u8>)>;

/// Parses the messages of a stream as the Postgres manual describes them ("Message Formats"). Returns them, and whether an
/// invalid length follows.
fn expected(mut wire: &[u8]) -> (Frames, bool) {
    let mut frames = Vec::new();
    while let Some((&[tag, a, b, c, d], rest)) = wire.split_first_chunk() {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if !(4..=0x4000_0003).contains(&length) {
            return (frames, true);
        }
        let Some((body, rest)) = rest.split_at_checked(length - 4) else { break };
        frames.push((tag, body.to_vec()));
        wire = rest;
    }
    (frames, false)
}

/// Takes the complete messages out of the buffer. Returns them, and whether an invalid length follows.
fn taken(buffer: &mut FrameBuffer) -> (Frames, bool) {
    let mut frames = Vec::new();
    loop {
        match buffer.peek() {
            Ok(Some(frame)) => {
                let length = frame.wire_len();
                frames.push((frame.tag, frame.body.to_vec()));
                buffer.consume(length);
            }
            Ok(None) => return (frames, false),
            Err(_) => return (frames, true),
        }
    }
}

/// The number of buffered bytes and the buffer's capacity, from its `Debug` output.
fn held(buffer: &FrameBuffer) -> (usize, usize) {
    let text = format!("{buffer:?}");
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
