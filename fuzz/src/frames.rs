//! The frame reader finds the same messages in a stream however its bytes arrive, and its buffer stays small.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pg_logical::frames::FrameBuffer;
use tokio::io::{AsyncRead, ReadBuf};

/// The number of bytes that one read asks for.
const READ_SIZE: usize = 64 * 1024;

/// Long enough for the buffer to grow several times.
const LONGEST_WIRE: usize = 1 << 18;

/// A socket whose reads return pieces of the sizes given, cyclically.
struct Pieces<'a> {
    left: &'a [u8],
    at_least: usize,
    sizes: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // from 1 byte to more than a read asks for
        let size = this.sizes.next().map_or(READ_SIZE, |size| usize::from(*size).pow(2) * 2 + this.at_least);
        let (piece, left) = this.left.split_at(size.min(this.left.len()).min(into.remaining()));
        into.put_slice(piece);
        this.left = left;
        Poll::Ready(Ok(()))
    }
}

pub fn run(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let (sizes, rest) = rest.split_at(usize::from(first % 16).min(rest.len()));
    let wire = if first < 128 { rest.to_vec() } else { built(rest) };
    let (frames, broken) = expected(&wire);

    let whole = taken(&mut FrameBuffer::new(wire.clone()));
    assert!(whole == (frames.clone(), broken), "read at once");

    let mut stream = Pieces { left: &wire, at_least: 1 + wire.len() / 1_000, sizes: sizes.iter().cycle() };
    let mut context = Context::from_waker(Waker::noop());
    let mut buffer = FrameBuffer::new(Vec::new());
    let mut pieces = (Vec::new(), false);
    let longest = frames.iter().map(|(_, body)| body.len()).max().unwrap_or_default();
    while !pieces.1 {
        let Poll::Ready(Ok(count)) = buffer.poll_fill(&mut context, &mut stream) else { panic!("no bytes") };
        let (more, broken) = taken(&mut buffer);
        pieces.0.extend(more);
        pieces.1 = broken;
        let (held, size) = held(&buffer);
        assert!(
            size <= 4 * READ_SIZE.max(held).max(longest),
            "{size} bytes allocated for {held} buffered; the longest message has {longest}"
        );
        if count == 0 {
            break;
        }
    }
    assert!(pieces == (frames, broken), "read in pieces");
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
