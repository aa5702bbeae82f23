//! What is acknowledged, on its way to the positions topic: nothing is confirmed to Postgres that is not durable there.

use tokio::time::Instant;

use crate::error::Error;
use crate::lsn::Lsn;
use crate::positions::{Remembered, Tail};
use crate::progress::Progress;
use crate::sink::kafka::positions::PositionsTopic;

/// The positions topic, or that there is none.
pub(super) struct Remembering {
    topic: Option<PositionsTopic>,
    /// What the session began with, which each record of it repeats but for the position.
    began: Remembered,
}

impl Remembering {
    pub(super) fn new(topic: Option<PositionsTopic>, began: Remembered) -> Self {
        Remembering { topic, began }
    }

    /// Writes the position if there is a new one and its time has come. Returns when to ask again.
    pub(super) fn offer(&mut self, progress: &Progress, at_once: bool) -> Option<Instant> {
        let position = progress.position();
        let remembered = || now(&self.began, progress);
        self.topic.as_mut()?.offer(position, progress.acknowledged(), at_once, remembered)
    }

    /// The flush LSN that may be confirmed, as far as it depends on what is remembered.
    pub(super) fn durable(&self, progress: &Progress) -> Lsn {
        self.topic.as_ref().map_or(progress.position().flush, PositionsTopic::durable)
    }

    /// Whether a record is under way.
    pub(super) fn waits(&self) -> bool {
        self.topic.as_ref().is_some_and(PositionsTopic::waits)
    }

    /// Waits until something is known of the record under way; for ever if there is no topic.
    pub(super) async fn reported(&self) {
        match &self.topic {
            Some(topic) => topic.reported().await,
            None => std::future::pending().await,
        }
    }

    /// Takes in what is known of it.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        self.topic.as_mut().map_or(Ok(()), PositionsTopic::settle)
    }

    /// Finds out why no report comes for long.
    pub(super) fn look_for_lost_sight(&self) {
        if let Some(topic) = &self.topic {
            topic.look_for_lost_sight();
        }
    }

    /// Why positions cannot be written, if that is so.
    pub(super) fn failed(&self) -> Option<&str> {
        self.topic.as_ref()?.failed()
    }

    /// The log is the one that was read. From here on other messages may be changes than before.
    pub(super) fn recognized(&mut self, message_prefix: Option<&str>) {
        if self.began.reading.message_prefix.as_deref() != message_prefix {
            self.began.reading.message_prefix = message_prefix.map(str::to_owned);
            self.began.tail = Tail::Quiet { from: self.began.position.flush };
        }
    }

    /// Returns what the session has begun with.
    pub(super) async fn close(self) -> Remembered {
        if let Some(topic) = self.topic {
            topic.close().await;
        }
        self.began
    }
}

/// What there is to remember now.
pub(super) fn now(began: &Remembered, progress: &Progress) -> Remembered {
    let position = progress.position();
    let replay = began.replay.clone().filter(|replay| !replay.is_over(position));
    let tail = progress.landmark().map_or(began.tail, Tail::Landmark);
    Remembered { position, tail, replay, ..began.clone() }
}
