//! The socket's side: what is queued goes out, and as much comes in as a reader can use.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::{Receiving, ReplicationStream, lost};
use crate::error::Error;
use crate::frames::GATHERED;
use crate::stream::Transport;

/// How long bytes are let gather at most, and for how long at a time nobody looks at the socket. A unix socket holds about
/// fifty small messages, which Postgres writes in a quarter of a millisecond.
const GATHER_FOR: Duration = Duration::from_millis(5);
const LOOK_AWAY: Duration = Duration::from_micros(150);

/// What one read brings of a server that writes faster than it is read; a unix socket holds little more.
const FLOOD: usize = 16 * 1024;

impl<S: Transport> ReplicationStream<S> {
    /// Drives the socket: sends what is queued and waits until bytes have come. If none are received it ends only by an
    /// error. May be dropped at any await.
    pub async fn io(&mut self, receiving: Receiving) -> Result<(), Error> {
        poll_fn(|context| self.poll_io(context, receiving == Receiving::AtOnce)).await
    }

    /// For a reader that has far to go: lets bytes gather and takes them; says whether any have come. One that takes each
    /// message as it comes costs the server a wake-up, and itself a turn, for every single one. So it looks away while the socket fills, again and again, until enough has gathered or nothing
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

    pub(super) fn poll_io(&mut self, context: &mut Context<'_>, read: bool) -> Poll<Result<(), Error>> {
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

    /// What comes while messages are worked off: a socket that holds little would keep the server waiting.
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
