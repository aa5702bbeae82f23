//! The bare reader: requests the stream from Postgres as the router does, and discards every byte.
//!
//! Optionally it pauses before each read of the socket as a lagging router does, which gives another bound. It goes from frame to frame,
//! as any reader must, and looks at one byte of each to count the rows.

mod socket;

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

pub(crate) use socket::Server;

const READ_SIZE: usize = 256 * 1024;
/// The length of tag and length field.
const HEADER: usize = 5;
/// The header of XLogData: the tag, and three numbers.
const BEFORE_DATA: usize = 25;
const SILENCE: Duration = Duration::from_secs(60);

/// The result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Read {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) first_after: Duration,
    /// From the first row to the last.
    pub(crate) took: Duration,
}

/// Reads `rows` rows from a slot. Blocks the thread.
pub(crate) fn read(
    server: &Server,
    slot: &str,
    publication: &str,
    rows: u64,
    gathers: bool,
) -> anyhow::Result<Read> {
    let mut socket = server.connect(gathers)?;
    let mut startup = Vec::new();
    startup.extend_from_slice(&196_608_u32.to_be_bytes());
    for text in ["user", "postgres", "database", "postgres", "replication", "database"] {
        startup.extend_from_slice(text.as_bytes());
        startup.push(0);
    }
    startup.push(0);
    socket.write_all(&(u32::try_from(startup.len())? + 4).to_be_bytes())?;
    socket.write_all(&startup)?;
    let mut frames = Frames::default();
    let started = Instant::now();
    // until ReadyForQuery; only trust authentication is supported
    frames.until(&mut socket, b'Z')?;
    let command = format!(
        "START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 (proto_version '1', publication_names '\"{publication}\"', messages 'true')\0"
    );
    socket.write_all(b"Q")?;
    socket.write_all(&(u32::try_from(command.len())? + 4).to_be_bytes())?;
    socket.write_all(command.as_bytes())?;
    frames.until(&mut socket, b'W')?;

    let (mut seen, mut bytes, mut first) = (0, 0, started);
    let mut last = started;
    while seen < rows {
        let mut arrived = false;
        while let Some((tag, body)) = frames.next()? {
            match (tag, body.first(), body.get(BEFORE_DATA)) {
                (b'd', Some(b'w'), Some(b'I')) => {
                    if seen == 0 {
                        first = Instant::now();
                    }
                    seen += 1;
                    arrived = true;
                }
                (b'd', Some(b'k'), _) if body.last() == Some(&1) => answer(&mut socket)?,
                (b'E', ..) => bail!("Postgres ended the stream: {}", String::from_utf8_lossy(body)),
                _ => {}
            }
        }
        if arrived {
            last = Instant::now();
        }
        // keepalives continue even if no rows follow
        ensure!(last.elapsed() < SILENCE, "{seen} of {rows} rows, and no more arrive");
        if seen < rows {
            bytes += frames.fill(&mut socket)?;
        }
    }
    Ok(Read { rows: seen, bytes, first_after: first.duration_since(started), took: first.elapsed() })
}

/// A status update that confirms nothing.
fn answer(socket: &mut impl Write) -> anyhow::Result<()> {
    let mut update = vec![b'd', 0, 0, 0, 38, b'r'];
    update.resize(HEADER + 34, 0);
    Ok(socket.write_all(&update)?)
}

/// The receive buffer.
struct Frames {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Frames { bytes: vec![0; READ_SIZE], start: 0, end: 0 }
    }
}

impl Frames {
    /// The next complete message: its tag and body.
    fn next(&mut self) -> anyhow::Result<Option<(u8, &[u8])>> {
        let received = self.bytes.get(self.start..self.end).unwrap_or_default();
        let Some((&[tag, a, b, c, d], rest)) = received.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d]))?;
        let body = length.checked_sub(4).context("the length of a message is below 4")?;
        if rest.len() < body {
            return Ok(None);
        }
        self.start += HEADER + body;
        Ok(rest.get(..body).map(|body| (tag, body)))
    }

    fn fill(&mut self, socket: &mut impl std::io::Read) -> anyhow::Result<u64> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.bytes.len() {
            self.bytes.resize(2 * self.end, 0);
        }
        let free = self.bytes.get_mut(self.end..).unwrap_or_default();
        let count = loop {
            match socket.read(free) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.context("read the stream")?,
            }
        };
        ensure!(count > 0, "Postgres closed the connection");
        self.end += count;
        Ok(count as u64)
    }

    fn until(&mut self, socket: &mut impl std::io::Read, wanted: u8) -> anyhow::Result<()> {
        loop {
            while let Some((tag, body)) = self.next()? {
                ensure!(tag != b'E', "Postgres returned an error: {}", String::from_utf8_lossy(body));
                if tag == wanted {
                    return Ok(());
                }
            }
            self.fill(socket)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_reassembled_from_any_chunks() -> anyhow::Result<()> {
        let wire = [&[b'a', 0, 0, 0, 4][..], &[b'b', 0, 0, 0, 7, 1, 2, 3], &[b'c', 0, 0, 0, 5, 9]].concat();
        let mut frames = Frames { bytes: vec![0; 4], start: 0, end: 0 };
        let (mut seen, mut wire) = (Vec::new(), wire.as_slice());
        while seen.len() < 3 {
            frames.fill(&mut wire)?;
            while let Some((tag, body)) = frames.next()? {
                seen.push((tag, body.to_vec()));
            }
        }
        assert_eq!(seen, [(b'a', vec![]), (b'b', vec![1, 2, 3]), (b'c', vec![9])]);
        assert!(frames.fill(&mut wire).is_err(), "the end");
        Ok(())
    }
}
