//! Decides when the stream is read next.

use pg_logical::stream::Transport;
use tokio::time::Instant;

use super::{ReadWhen, SlotSource};
use crate::config::DeliveryMode;
use crate::error::Error;

impl<S: Transport> SlotSource<S> {
    /// Whether the server's log has more than was received, by the last catalogue check.
    pub(super) fn is_behind(&self) -> bool {
        self.received < self.server_end
    }

    /// Decides when to read. A backlog is read at once. Exactly-once mode is not throttled, since its Kafka transactions collect
    /// records anyway.
    pub(super) fn read_when(&mut self) -> Result<ReadWhen, Error> {
        if self.bulk_reads.waits() {
            return Ok(ReadWhen::OnArrival);
        }
        let throttled = self.config.delivery.mode == DeliveryMode::AtLeastOnce;
        let flooded = self.stream.last_read_was_large() && !(throttled && self.throttle.is_busy());
        if self.is_behind() || flooded {
            return Ok(if self.stream.gather()? { ReadWhen::Now } else { ReadWhen::OnArrival });
        }
        let read_at = if throttled { self.throttle.next_read(Instant::now()) } else { None };
        Ok(read_at.map_or(ReadWhen::OnArrival, ReadWhen::At))
    }
}
