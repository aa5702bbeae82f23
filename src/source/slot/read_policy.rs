//! When the stream is read until the next turn.

use pg_logical::stream::Transport;
use tokio::time::Instant;

use super::{ReadWhen, SlotSource};
use crate::config::DeliveryMode;
use crate::error::Error;

impl<S: Transport> SlotSource<S> {
    /// Whether there was more in the server's log at the last look at it than has come.
    pub(super) fn is_behind(&self) -> bool {
        self.received < self.server_end
    }

    /// Decides when the stream is read, and gathers a backlog at once. What delivers exactly once has Kafka's transactions to
    /// gather in, and is not throttled.
    pub(super) fn read_when(&mut self) -> Result<ReadWhen, Error> {
        if self.bulk_reads.waits() {
            return Ok(ReadWhen::AtOnce);
        }
        let throttled = self.config.delivery.mode == DeliveryMode::AtLeastOnce;
        let flooded = self.stream.is_flooded() && !(throttled && self.throttle.is_busy());
        if self.is_behind() || flooded {
            return Ok(if self.stream.gather()? { ReadWhen::Gathered } else { ReadWhen::AtOnce });
        }
        let read_at = if throttled { self.throttle.next_read(Instant::now()) } else { None };
        Ok(read_at.map_or(ReadWhen::AtOnce, ReadWhen::At))
    }
}
