//! Messages of the frontend/backend protocol over a stream, except on the hot path of the replication stream.

use std::io;

use bytes::{Buf, BytesMut};
use postgres_protocol::message::backend::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::stream::Stream;

/// The longest message accepted from a server before authentication; libpq's limit is 30,000 bytes.
const LIMIT_BEFORE_AUTHENTICATION: usize = 64 << 10;

/// The longest message accepted afterwards, the server's own limit.
const LIMIT: usize = 1 << 30;

/// A stream, and the bytes read from it that are not processed yet.
pub(super) struct Wire {
    stream: Stream,
    unread: BytesMut,
    limit: usize,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Wire { stream, unread: BytesMut::new(), limit: LIMIT_BEFORE_AUTHENTICATION }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Accepts long messages from now on, because authentication has succeeded.
    pub(super) fn authenticated(&mut self) {
        self.limit = LIMIT;
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next message. The error is `UnexpectedEof` if the peer closes the connection, and `InvalidData` if it speaks
    /// another protocol or sends too much.
    pub(super) async fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(message);
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn take_message(&mut self) -> io::Result<Option<Message>> {
        let mut head = self.unread.get(..5).unwrap_or_default();
        if head.has_remaining() {
            let tag = head.get_u8();
            let length = head.get_u32() as usize;
            // checked here, because Message::parse allocates the announced length.
            if !(4..=self.limit).contains(&length) {
                let what = format!("not a Postgres message: tag {:?}, length {length}", char::from(tag));
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Message::parse(&mut self.unread).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    pub(super) fn into_parts(self) -> (Stream, BytesMut) {
        (self.stream, self.unread)
    }
}
