//! Reads from and writes to the socket.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::{Receiving, ReplicationStream, lost};
use crate::error::Error;
use crate::frames::GATHERED;
use crate::stream::Transport;

/// How long to let bytes gather, and how long to leave the socket unread at a time. A unix socket holds about fifty small
/// messages, which Postgres writes in a quarter of a millisecond.
const GATHER_FOR: Duration = Duration::from_millis(5);
const LOOK_AWAY: Duration = Duration::from_micros(150);

/// The size of a read while the server writes faster than the reader reads; a unix socket holds little more.
const FLOOD: usize = 16 * 1024;

impl<S: Transport> ReplicationStream<S> {
    /// Sends what is queued and waits for bytes. If none are to be received, it only ends with an error. Cancel-safe.
    pub async fn io(&mut self, receiving: Receiving) -> Result<(), Error> {
        poll_fn(|context| self.poll_io(context, receiving == Receiving::AtOnce)).await
    }

    /// Lets bytes gather for a lagging reader, and takes them. Returns whether any have arrived. A reader that takes each
    /// message as it arrives costs the server a wake-up and itself a turn for every one. So this leaves the socket unread
    /// while it fills, repeatedly, until enough has gathered or nothing more arrives.
    ///
    /// It blocks the thread, because a runtime that waits for the socket would be woken by each message. It does nothing if
    /// only the runtime can read.
    pub fn gather(&mut self) -> Result<bool, Error> {
        let (begun, mut received) = (Instant::now(), 0);
        loop {
            let Some(taken) = self.frames.fill_now(&mut self.stream) else { return Ok(false) };
            let taken = match taken {
                Ok(taken) => taken,
                // what arrived before the error may explain it
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

    /// Whether the last read was so large that more can be expected.
    pub fn is_flooded(&self) -> bool {
        self.last_read >= FLOOD
    }

    pub(super) fn poll_io(&mut self, context: &mut Context<'_>, read: bool) -> Poll<Result<(), Error>> {
        // a blocked send must not keep the answers from being read
        if let Poll::Ready(Err(error)) = self.poll_send(context) {
            // the server's last message may be in the socket and says more
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
        // with TLS, one read returns only a few messages
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

    /// Takes what arrives while messages are processed: with a small socket, the server would have to wait.
    pub(super) fn take_meanwhile(&mut self) {
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
}
