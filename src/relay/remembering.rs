//! What is acknowledged, on its way to the positions topic: nothing is confirmed to Postgres that is not durable there.

use pg_logical::{Lsn, PgTimestamp};
use tokio::time::{Duration, Instant};

use super::closing::Closing;
use super::committing::{Committing, Intake};
use super::parking::Parking;
use super::sending::Sending;
use super::tally::Tally;
use super::transaction_size::TransactionSize;
use crate::error::Error;
use crate::monitor::Monitor;
use crate::positions::{Remembered, Tail};
use crate::progress::{Position, Progress};
use crate::sink::kafka::KafkaSink;
use crate::sink::kafka::positions::{Positions, PositionsTopic};

/// How positions are remembered.
pub(super) struct Remembering {
    how: How,
    /// What the session began with, which each record of it repeats but for the position.
    began: Remembered,
}

enum How {
    /// In the slot alone.
    Not,
    /// When the events before it are acknowledged.
    After(Box<PositionsTopic>),
    /// Together with them.
    With(Box<Committing>),
}

impl Remembering {
    pub(super) fn new(
        positions: Positions,
        began: Remembered,
        size: TransactionSize,
        timeout: Duration,
    ) -> Self {
        let how = match positions {
            Positions::Off => How::Not,
            Positions::After(topic) => How::After(topic),
            Positions::With(_) => How::With(Box::new(Committing::new(began.clone(), size, timeout))),
        };
        Remembering { how, began }
    }

    /// Writes or commits the position if there is a new one and its time has come. Returns when to ask again.
    pub(super) fn offer(&mut self, sending: &mut Sending, intake: Intake) -> Result<Option<Instant>, Error> {
        let progress = &sending.progress;
        let position = progress.position();
        match &mut self.how {
            How::Not => Ok(None),
            How::After(topic) => {
                let parking = sending.parking.as_mut();
                let remembered = || with_parked(now(&self.began, progress), parking, false);
                Ok(topic.offer(position, progress.acknowledged(), intake == Intake::Waits, remembered))
            }
            How::With(committing) => {
                let at = committing.close_if_due(position, intake);
                if committing.is_closing() && sending.is_settled() {
                    let remembered = with_parked(now(&self.began, progress), sending.parking.as_mut(), true);
                    committing.begin(remembered, |remembered| sending.sink.commit(remembered))?;
                }
                Ok(at)
            }
        }
    }

    /// What a crash cannot take back, where `confirmed` is what the slot is confirmed up to.
    pub(super) fn survives(&self, confirmed: Lsn) -> Position {
        match &self.how {
            How::Not => Position { flush: confirmed, partial: None },
            How::After(topic) => topic.durable_position(),
            How::With(committing) => committing.committed().position,
        }
    }

    /// What the next session of this process begins with; and what is shown.
    pub(super) fn certain(&self, progress: &Progress) -> Position {
        match &self.how {
            How::Not | How::After(_) => progress.position(),
            How::With(committing) => committing.committed().position,
        }
    }

    /// The flush LSN that may be confirmed, as far as it depends on what is remembered.
    pub(super) fn durable(&self, progress: &Progress) -> Lsn {
        match &self.how {
            How::Not => progress.position().flush,
            How::After(topic) => topic.durable(),
            How::With(committing) => committing.committed().position.flush,
        }
    }

    /// Whether a record is under way.
    pub(super) fn waits(&self) -> bool {
        match &self.how {
            How::Not => false,
            How::After(topic) => topic.waits(),
            How::With(committing) => committing.waits(),
        }
    }

    /// Whether nothing may be sent before a commit has begun.
    pub(super) fn is_closing(&self) -> bool {
        self.committing().is_some_and(Committing::is_closing)
    }

    /// Whether no delivered event waits for its commit.
    pub(super) fn is_settled(&self) -> bool {
        self.committing().is_none_or(Committing::is_settled)
    }

    /// How many bytes of records may be sent now, by what the transaction takes.
    pub(super) fn room(&self) -> usize {
        self.committing().map_or(usize::MAX, Committing::room)
    }

    /// So many records were sent, of so many bytes.
    pub(super) fn sent(&mut self, records: usize, bytes: usize) {
        if let How::With(committing) = &mut self.how
            && records > 0
        {
            committing.sent(records, bytes);
        }
    }

    /// Why commits take long, if it is because the brokers are slow.
    pub(super) fn slow(&self) -> Option<String> {
        self.committing().and_then(Committing::slow)
    }

    /// At the end of a session: how large transactions are to be from here on; and what to say if it may have `timed_out`
    /// because one was too large.
    pub(super) fn transaction_size(&self, timed_out: bool) -> (TransactionSize, Option<String>) {
        match self.committing() {
            Some(committing) if timed_out => committing.next_size(),
            Some(committing) => (committing.size(), None),
            None => Default::default(),
        }
    }

    /// How many records were acknowledged and may yet be taken back, and when the oldest of their events was committed.
    pub(super) fn uncommitted(&self) -> (usize, Option<PgTimestamp>) {
        self.committing().map_or((0, None), |committing| (committing.records(), committing.oldest()))
    }

    /// Where records are counted that were acknowledged, if they are not certain by that.
    pub(super) fn uncounted(&mut self) -> Option<&mut Tally> {
        match &mut self.how {
            How::With(committing) => Some(committing.delivered()),
            How::Not | How::After(_) => None,
        }
    }

    /// For how long a commit has been under way.
    pub(super) fn waits_for(&self) -> Duration {
        self.committing().map_or(Duration::ZERO, Committing::waits_for)
    }

    /// Whether a commit takes long, or what has to be acknowledged before it. `records`: some are with the brokers.
    pub(super) fn is_late(&self, records: bool) -> bool {
        self.committing().is_some_and(|committing| committing.is_late(records))
    }

    /// Whether it is the brokers' end of a transaction that takes long.
    pub(super) fn ends_late(&self) -> bool {
        self.committing().is_some_and(Committing::ends_late)
    }

    /// For how long a position that was sent has not been acknowledged.
    pub(super) fn position_waits_for(&self) -> Duration {
        match &self.how {
            How::Not => Duration::ZERO,
            How::After(topic) => topic.waits_for(),
            How::With(committing) => committing.position_waits_for(),
        }
    }

    /// The positions topic does not acknowledge the position, for this reason. With the events in one transaction that holds
    /// them back too, and else only the slot.
    pub(super) fn not_acknowledged(&mut self, reason: String, sink: &KafkaSink) {
        match &mut self.how {
            How::Not => {}
            How::After(topic) => topic.not_acknowledged(reason),
            How::With(_) => sink.held_back(reason),
        }
    }

    /// Why the slot stands still while events flow, if that is so.
    pub(super) fn obstacle(&self) -> Option<String> {
        match &self.how {
            How::After(topic) => topic.obstacle(),
            How::Not | How::With(_) => None,
        }
    }

    fn committing(&self) -> Option<&Committing> {
        match &self.how {
            How::With(committing) => Some(committing),
            How::Not | How::After(_) => None,
        }
    }

    /// Waits until something is known of what is under way, and takes it in: what was delivered by it, if anything is
    /// certain only now. For ever if positions are not remembered. May be dropped at any await.
    ///
    /// # Errors
    /// The transaction is not committed, or a client cannot be made.
    pub(super) async fn reported(&mut self) -> Result<Tally, Error> {
        match &mut self.how {
            How::Not => std::future::pending().await,
            How::After(topic) => {
                topic.reported().await;
                topic.settle().map(|()| Tally::default())
            }
            How::With(committing) => committing.done().await,
        }
    }

    /// Finds out why no report comes for long.
    pub(super) fn look_for_lost_sight(&self) {
        if let How::After(topic) = &self.how {
            topic.look_for_lost_sight();
        }
    }

    /// Shows why positions cannot be written, if that is so.
    pub(super) fn show(&self, monitor: &Monitor) {
        if let How::After(topic) = &self.how {
            monitor.positions_failed(topic.failed());
        }
    }

    /// The log is the one that was read. From here on other messages may be changes than before.
    pub(super) fn recognized(&mut self, message_prefix: Option<&str>) {
        if self.began.reading.message_prefix.as_deref() != message_prefix {
            self.began.reading.message_prefix = message_prefix.map(str::to_owned);
            self.began.tail = Tail::Quiet { from: self.began.position.flush };
        }
    }

    /// After the sink was closed and its last reports were taken in: where to go on, and whether that is further than
    /// before.
    pub(super) async fn close(
        self,
        progress: &Progress,
        parking: Option<&mut Parking>,
        closing: &mut Closing<'_>,
    ) -> (Remembered, bool) {
        match self.how {
            How::Not => {}
            How::After(topic) => closing.wait(topic.close()).await,
            How::With(committing) => return committing.close().await,
        }
        (with_parked(now(&self.began, progress), parking, false), progress.has_advanced())
    }
}

/// What has to be known of parked events. Without them the rows stay as they are.
fn with_parked(mut remembered: Remembered, parking: Option<&mut Parking>, transactional: bool) -> Remembered {
    if let Some(parking) = parking {
        let position = remembered.position.flush;
        remembered.parked = parking.rests_on(position);
        remembered.retried = if transactional { parking.in_transaction(position) } else { Vec::new() };
    }
    remembered
}

/// What there is to remember now.
fn now(began: &Remembered, progress: &Progress) -> Remembered {
    let position = progress.position();
    let replay = began.replay.clone().filter(|replay| !replay.is_over(position));
    let tail = progress.landmark().map_or(began.tail, Tail::Landmark);
    Remembered { position, tail, replay, ..began.clone() }
}
