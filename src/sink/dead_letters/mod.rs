//! A sink around a sink: events that cannot be sent are parked in a table, with what comes after them of their aggregates, and are
//! sent again or thrown away as a person decides.

mod parking;
mod retries;

use std::collections::{BTreeMap, VecDeque};

use pg_logical::Lsn;
use tokio::time::Instant;

use crate::checkpoint::Checkpoint;
use crate::dead_letters::{DeadLetter, Key, text};
use crate::error::{Error, Peer};
use crate::monitor::Monitor;
use crate::outbox::{Field, Outbox};
use crate::pipeline::{self, PipelineOutput};
use crate::postgres::dead_letters::store::{DeadLetterStore, Loaded, Report};
use crate::progress::{Partial, Position, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, Intake, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
    Stalled, Window, until,
};
use crate::routing::{Origin, Router};
use crate::unsendable::{Reason, Unsendable};
use parking::Parking;
use retries::Retries;

/// A parked event goes nowhere that the sink inside knows.
const NO_TARGET: usize = usize::MAX;

/// What helps where no more aggregates may be parked.
const MORE_ROOM: &str = "raise `[dead_letters] max_aggregates`, or decide what is parked (outbox-router dead-letters list) and start the \
                         router again, which does first what is decided";

/// What a session parks events with.
pub struct DeadLetterParts {
    /// Writes and reads the table.
    pub store: DeadLetterStore,
    /// What was in it at the start.
    pub loaded: Loaded,
    /// How many aggregates may be parked.
    pub most: usize,
    /// Events that the brokers refused, to be parked.
    pub refused: BTreeMap<Partial, Unsendable>,
    /// Parked events are sent one at a time, because a batch of them was refused.
    pub retries_alone: bool,
    /// The end of the log that the parked events of the last checkpoint rest on.
    pub rests_on: Option<Lsn>,
    /// Read parked events, and make records of them.
    pub pipeline: (Outbox, Router),
    /// What was sent counts when its transaction is committed.
    pub transactional: bool,
    /// Checkpoints are stored, and name what parked events need: they count as soon as their rows are committed.
    pub with_checkpoints: bool,
    /// Shows what goes on.
    pub monitor: Monitor,
}

/// One session with parked events.
pub struct DeadLetters<K> {
    inner: K,
    parking: Parking,
    outbox: Outbox,
    router: Router,
    transactional: bool,
    with_checkpoints: bool,
    /// What the store has done, until the next turn.
    reports: VecDeque<Report>,
    /// When to look whether anything was decided.
    fetch_at: Option<Instant>,
    /// Where the source was in the last turn, and what a crash could not take back.
    received: Lsn,
    survives: Position,
    /// The source has to get there before what is parked counts.
    awaits: Option<Lsn>,
    monitor: Monitor,
}

/// What a session leaves behind.
#[derive(Debug)]
pub struct DeadLettersLeft<L> {
    /// What the sink inside leaves.
    pub inner: L,
    /// A parked event that was refused, or the first of several, and whether it was under way alone.
    pub retry: Option<(Key, bool)>,
}

impl<K: Sink> DeadLetters<K> {
    /// Around `inner`.
    pub fn new(inner: K, parts: DeadLetterParts) -> Self {
        let DeadLetterParts { store, loaded, most, refused, retries_alone, rests_on, monitor, .. } = parts;
        let parking = Parking::new(store, loaded, most, refused, retries_alone, rests_on);
        // the table may have changed since the last session, or another process has written it
        parking.show(&monitor);
        let (outbox, router) = parts.pipeline;
        DeadLetters {
            inner,
            parking,
            outbox,
            router,
            transactional: parts.transactional,
            with_checkpoints: parts.with_checkpoints,
            reports: VecDeque::new(),
            fetch_at: None,
            received: Lsn::INVALID,
            survives: Position::default(),
            awaits: None,
            monitor,
        }
    }

    /// Parks an event, or says why that cannot be.
    fn park(
        &mut self,
        event: &pipeline::Event<'_>,
        sequence: Sequence,
        why: &Unsendable,
    ) -> Result<Sent, NotSent> {
        let letter = dead_letter(event, why);
        let (memory, commit_time) = (letter.size(), letter.commit_time);
        match self.parking.park(sequence, letter, &self.monitor) {
            Ok(()) => Ok(Sent::Held(InFlight { bytes: 0, memory, commit_time, target: NO_TARGET })),
            Err(_) if self.parking.may_make_room() => Err(NotSent::Later),
            Err(too_many) => Err(NotSent::Impossible(Unsendable::new(
                why.reason,
                format!("{}; and {too_many}", why.what),
                format!("{}, or {MORE_ROOM}", why.remedy),
            ))),
        }
    }

    /// Sends parked events again as far as they may be.
    fn retry(&mut self, window: &Window) {
        let DeadLetters { inner, parking, outbox, router, monitor, .. } = self;
        loop {
            parking.discard(monitor);
            let retries = parking.retries();
            if window.is_full() || !inner.is_ready() || retries.has_one_alone() {
                return;
            }
            let (sequence, settled) = (retries.number(), retries.is_settled() && window.is_empty());
            let Some((letter, alone)) = retries.to_send() else { return };
            if alone && !settled {
                parking.retries_mut().wants_alone();
                return;
            }
            let key = letter.key;
            let Key { final_lsn, change } = key;
            let origin =
                Origin { final_lsn, xid: letter.xid, commit_time: letter.commit_time, ordinal: change };
            let mut row = outbox.stored_row(&letter.source);
            let row = match outbox.read_stored(&mut row, &letter.whole) {
                Ok(row) => row,
                Err(error) => {
                    let remedy = "Correct `[outbox] columns` or `[route]`";
                    parking.failed(key, &Unsendable::new(Reason::Unroutable, error.to_string(), remedy));
                    continue;
                }
            };
            router.marking(letter.replay.as_deref());
            let routed = router.route(&row, &origin).map_err(Unsendable::from);
            let event = pipeline::Event::parked(row, origin, &letter.whole);
            match inner.send(&PipelineOutput { event, routed }, sequence) {
                Ok(Sent::Record(record) | Sent::Held(record)) => {
                    parking.retries_mut().sent(key, record, alone);
                }
                Ok(Sent::Nothing) => {
                    monitor.events_dropped(1);
                    parking.dropped(key);
                }
                Err(NotSent::Later) => return,
                Err(NotSent::Impossible(why)) => parking.failed(key, &why),
            }
        }
    }

    /// Takes in what the store has done.
    fn take_in(&mut self, report: Report, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) {
        match report {
            Report::Parked { rows, committed } => {
                let at_once = self.with_checkpoints;
                for sequence in self.parking.is_parked(rows, committed, at_once, &self.monitor) {
                    event(if at_once {
                        SinkEvent::Delivered(sequence)
                    } else {
                        SinkEvent::Released(sequence)
                    });
                }
                self.awaits = self.awaits.max(Some(committed));
            }
            Report::Deleted { keys, committed } => self.parking.is_deleted(keys, committed, &self.monitor),
            Report::Fetched(rows) => self.parking.is_fetched(rows, self.survives),
            Report::Refused(reason) => self.parking.refused_by_postgres(reason, &self.monitor),
            // the session was told at once
            Report::Over(_) => {}
        }
    }
}

impl<K: Sink> Sink for DeadLetters<K> {
    type End = DeadLettersLeft<K::End>;

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn send(&mut self, made: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        if self.parking.retries().is_alone() {
            return Err(NotSent::Later);
        }
        let event = &made.event;
        let aggregate = event.row.field(Field::AggregateId);
        let Partial { final_lsn, changes } = event.place();
        let key = Key { final_lsn, change: changes };
        if aggregate.is_none() && self.parking.is_there(key) {
            return Ok(Sent::Nothing);
        }
        if let Some(why) = self.parking.refused(event.place()) {
            return self.park(event, sequence, &why);
        }
        if self.parking.holds(aggregate, key) {
            let why = Unsendable::new(
                Reason::Behind,
                "an earlier event of its aggregate is parked",
                "It follows when that one is sent or thrown away",
            );
            return self.park(event, sequence, &why);
        }
        match self.inner.send(made, sequence) {
            Err(NotSent::Impossible(why)) => self.park(event, sequence, &why),
            sent => sent,
        }
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        while let Some(report) = self.reports.pop_front() {
            self.take_in(report, event);
        }
        for sequence in self.parking.safe(self.received) {
            event(SinkEvent::Settled(sequence));
        }
        let DeadLetters { inner, parking, transactional, monitor, .. } = self;
        inner.reports(&mut |reported| match reported {
            SinkEvent::Delivered(sequence) if Retries::is_ours(sequence) => {
                parking.delivered(sequence, *transactional, monitor)
            }
            SinkEvent::Checkpointed => {
                parking.is_committed();
                event(reported)
            }
            _ => event(reported),
        })
    }

    fn after_dispatch(
        &mut self,
        state: &LoopState<'_>,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> Result<bool, Error> {
        let reading = state.source;
        let survives = self.inner.durability(state.progress).survives;
        self.received = reading.received;
        self.survives = survives.unwrap_or(Position { flush: reading.confirmed, partial: None });
        self.fetch_at = None;
        if !state.ending && reading.intake != Intake::Verifying && self.inner.is_ready() {
            self.retry(state.window);
            self.fetch_at = self.parking.fetch();
        }
        let DeadLetters { inner, parking, transactional, .. } = self;
        let elsewhere = state.elsewhere + parking.on_their_way();
        let inside = LoopState { elsewhere, ..*state };
        let more = inner.after_dispatch(&inside, &mut |checkpoint| {
            note(checkpoint);
            parking.add_to(checkpoint, *transactional);
        })?;
        Ok(more || parking.has_safe(reading.received))
    }

    fn durability(&self, progress: &Progress) -> Durability {
        let inside = self.inner.durability(progress);
        Durability {
            settled: inside.settled && self.parking.retries().is_settled(),
            awaits: self.awaits.max(inside.awaits),
            ..inside
        }
    }

    async fn wait(&mut self) -> Result<(), Error> {
        tokio::select! {
            biased;
            changed = self.inner.wait() => changed?,
            report = self.parking.report() => match report {
                Report::Over(error) => return Err(error),
                report => self.reports.push_back(report),
            },
            () = until(self.fetch_at) => {}
        }
        Ok(())
    }

    fn health(&self) -> Health {
        match (self.inner.health(), self.parking.unwritable()) {
            (Health::Down(stalled), _) => Health::Down(stalled),
            (_, Some(reason)) => Health::Stalled(Stalled { peer: Peer::Postgres, reason: reason.to_owned() }),
            (health, None) => health,
        }
    }

    async fn close(
        self,
        outcome: Outcome,
        progress: &mut Progress,
        log_verified: bool,
        note: &mut dyn FnMut(&mut Checkpoint),
    ) -> (Outcome, Self::End) {
        let DeadLetters { inner, mut parking, .. } = self;
        let retry = parking.retries().under_way();
        let mut add = |checkpoint: &mut Checkpoint| {
            note(checkpoint);
            parking.add_to(checkpoint, false);
        };
        let (outcome, inner) = inner.close(outcome, progress, log_verified, &mut add).await;
        let refused = matches!(&outcome, Outcome::Refused(refusal) if Retries::is_ours(refusal.last));
        (outcome, DeadLettersLeft { inner, retry: retry.filter(|_| refused) })
    }
}

fn dead_letter(event: &pipeline::Event<'_>, why: &Unsendable) -> DeadLetter {
    let row = &event.row;
    let of = |field| row.field(field).map(|value| text(value).into_owned());
    let table = row.table();
    let separator = if table.schema == "message" { ':' } else { '.' };
    let Origin { final_lsn, xid, commit_time, ordinal } = event.origin;
    DeadLetter {
        key: Key { final_lsn, change: ordinal },
        xid,
        commit_time,
        source: format!("{}{separator}{}", table.schema, table.name),
        event_id: of(Field::Id),
        aggregate_type: of(Field::AggregateType),
        aggregate_id: of(Field::AggregateId),
        event_type: of(Field::EventType),
        reason: why.reason,
        detail: why.detail(),
        whole: event.original(),
        replay: event.replay.map(str::to_owned),
    }
}
