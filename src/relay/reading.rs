//! How the stream is read until the next turn.

use pg_logical::stream::Transport;
use tokio::time::Instant;

use super::Relay;
use crate::config::DeliveryMode;
use crate::error::Error;
use crate::sink::kafka::Intake;

/// What becomes of the bytes that come.
pub(super) enum Reading {
    /// They are left where they are: something else has to happen first.
    Not,
    /// They are taken as they come.
    AtOnce,
    /// They are left until then.
    At(Instant),
    /// What has come was taken.
    Gathered,
}

impl<S: Transport> Relay<S> {
    /// Whether there was more in the server's log at the last look at it than has come.
    pub(super) fn is_behind(&self) -> bool {
        self.received < self.server_end
    }

    /// Decides how the stream is read, and gathers a backlog at once. What delivers exactly once has Kafka's transactions to
    /// gather in, and is not paced.
    pub(super) fn reading(&mut self) -> Result<Reading, Error> {
        if self.catching_up.waits() {
            return Ok(Reading::AtOnce);
        }
        let paced = self.config.delivery.mode == DeliveryMode::AtLeastOnce;
        let flooded = self.stream.is_flooded() && !(paced && self.pace.is_busy());
        if self.is_behind() || flooded {
            return Ok(if self.stream.gather()? { Reading::Gathered } else { Reading::AtOnce });
        }
        let read_at = if paced { self.pace.next_read(Instant::now()) } else { None };
        Ok(read_at.map_or(Reading::AtOnce, Reading::At))
    }

    /// What the stream does, for who decides when a transaction ends.
    pub(super) fn intake(&self, read: bool) -> Intake {
        if self.ending.is_some()
            || self.sending.sink.is_setting_up()
            || self.sending.waits_for_commit
            || self.catching_up.waits()
        {
            Intake::Waits
        } else if read && !self.is_behind() {
            Intake::Live
        } else {
            Intake::Behind
        }
    }
}
