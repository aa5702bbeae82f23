//! Reads from and writes to the socket.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::{Receiving, ReplicationStream, lost};
use crate::error::Error;
use crate::frames::GATHER_SIZE;
use crate::server_error::{CLOSED, io_reason};
use crate::stream::{Transport, TransportKind};

/// The longest time to let bytes gather.
const GATHER_TIME: Duration = Duration::from_millis(5);

/// The pause between two reads while bytes gather. A unix socket holds about fifty small messages, which Postgres writes in a
/// quarter of a millisecond.
const READ_PAUSE: Duration = Duration::from_micros(150);

/// A read of this size means that the server writes faster than the reader reads; a unix socket holds little more.
const LARGE_READ: usize = 16 * 1024;

impl<S: Transport> ReplicationStream<S> {
    /// Sends queued messages and waits for bytes. If receiving is paused, it returns only with an error. Cancel-safe.
    pub async fn io(&mut self, receiving: Receiving) -> Result<(), Error> {
        poll_fn(|context| self.poll_io(context, receiving == Receiving::AtOnce)).await
    }

    /// Lets bytes gather for a lagging reader, and reads them; returns whether any have arrived. Reading each message as it
    /// arrives would cost a wake-up per message, on the server too. So this reads and pauses repeatedly, until enough has
    /// gathered or nothing more arrives.
    ///
    /// It blocks the thread, because each message would wake a runtime that waits for the socket.
    pub fn gather(&mut self) -> Result<bool, Error> {
        let (begun, mut received) = (Instant::now(), 0);
        loop {
            let taken = match self.frames.fill_now(&mut self.stream) {
                Ok(taken) => taken,
                // the bytes that arrived before the error may explain it
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            received += taken;
            if self.frames.has_gathered()
                || begun.elapsed() >= GATHER_TIME
                || taken == 0 && begun.elapsed() >= READ_PAUSE
            {
                break;
            }
            std::thread::sleep(READ_PAUSE);
        }
        self.received(received);
        self.read_budget = GATHER_SIZE;
        Ok(received > 0)
    }

    fn received(&mut self, bytes: usize) {
        (self.last_read, self.consumed_since_read, self.read_budget) = (bytes, 0, 0);
    }

    /// What kind of connection this is.
    pub fn transport(&self) -> TransportKind {
        self.stream.kind()
    }

    /// Whether the last read was so large that more can be expected.
    pub fn last_read_was_large(&self) -> bool {
        self.last_read >= LARGE_READ
    }

    pub(super) fn poll_io(&mut self, context: &mut Context<'_>, read: bool) -> Poll<Result<(), Error>> {
        // reading continues while a send is blocked
        if let Poll::Ready(Err(error)) = self.poll_send(context) {
            // the server's last message may still be in the socket and explain the error
            let received = matches!(self.frames.fill_now(&mut self.stream), Ok(1..));
            if received && self.failed.is_none() {
                self.failed = Some(error);
                return Poll::Ready(Ok(()));
            }
            return Poll::Ready(Err(lost(&io_reason(&error))));
        }
        if !read {
            return Poll::Pending;
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(lost(&io_reason(&error))));
        }
        let mut received = 0;
        while !self.frames.has_gathered() || received == 0 {
            match self.frames.poll_fill(context, &mut self.stream) {
                Poll::Ready(Ok(0)) if received == 0 => {
                    return Poll::Ready(Err(lost(CLOSED)));
                }
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(count)) => received += count,
                Poll::Ready(Err(error)) if received == 0 => {
                    return Poll::Ready(Err(lost(&io_reason(&error))));
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

    /// Reads what arrives while messages are processed, if the socket's buffer is so small that the server would block.
    pub(super) fn read_between_messages(&mut self) {
        if self.stream.kind() != TransportKind::Unix {
            self.read_budget = 0;
            return;
        }
        match self.frames.fill_now(&mut self.stream) {
            Ok(taken) => self.read_budget = self.read_budget.saturating_sub(taken),
            Err(error) => (self.failed, self.read_budget) = (Some(error), 0),
        }
    }
}
