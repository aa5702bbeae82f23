//! A sink around a sink. It parks events that cannot be sent, and later events of their aggregates, in a table. A person
//! then decides whether they are sent again or discarded.

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
use crate::postgres::dead_letters::messages::{Loaded, Report};
use crate::postgres::dead_letters::store::DeadLetterStore;
use crate::progress::{Partial, Position, Progress, Sequence};
use crate::relay::{
    Durability, Health, InFlight, Intake, LoopState, NotSent, Outcome, Refusal, Sent, Sink, SinkEvent,
    Stalled, Window, until,
};
use crate::routing::{Origin, Router};
use crate::unsendable::{Reason, Unsendable};
use parking::Parking;
use retries::Retries;

/// The target of an event that is parked: no topic of the inner sink.
const NO_TARGET: usize = usize::MAX;

/// The remedy when the limit on parked aggregates is reached.
const LIMIT_REMEDY: &str = "raise `[dead_letters] max_aggregates`, or retry or discard parked events (outbox-router dead-letters list) \
                         and restart the router, which handles them first";

/// What a session needs to park events.
pub struct DeadLetterParts {
    /// The session that writes and reads the table.
    pub store: DeadLetterStore,
    /// The table's content at the start of the session.
    pub loaded: Loaded,
    /// The maximum number of parked aggregates.
    pub max_aggregates: usize,
    /// Events that the brokers refused in an earlier session. They are parked when they arrive again.
    pub refused: BTreeMap<Partial, Unsendable>,
    /// Sends retried events one at a time, because a batch of them was refused.
    pub retry_alone: bool,
    /// The end of the log that the last checkpoint requires for its parked events.
    pub required_log_end: Option<Lsn>,
    /// Decode stored events and turn them into records.
    pub pipeline: (Outbox, Router),
    /// The router for those that were read from the table, not from the log.
    pub of_rows: Option<Router>,
    /// Records are delivered only when their Kafka transaction is committed.
    pub transactional: bool,
    /// Checkpoints are stored and name the log end that parked rows require. An event then counts as acknowledged as soon
    /// as its row is committed.
    pub with_checkpoints: bool,
    /// Receives metrics and status.
    pub monitor: Monitor,
}

/// The dead-letter sink of one session.
pub struct DeadLetters<K> {
    inner: K,
    parking: Parking,
    outbox: Outbox,
    router: Router,
    of_rows: Option<Router>,
    transactional: bool,
    with_checkpoints: bool,
    /// Results of the store that the next iteration handles.
    reports: VecDeque<Report>,
    /// When to look for new decisions.
    fetch_at: Option<Instant>,
    /// The position that the source had received in the last iteration.
    received: Lsn,
    /// The position in the last iteration that survives any crash.
    survives: Position,
    /// The source has to reach this LSN before the last parked rows count.
    awaits: Option<Lsn>,
    monitor: Monitor,
}

/// What the next session needs to know.
#[derive(Debug)]
pub struct DeadLettersEnd<L> {
    /// The inner sink's result.
    pub inner: L,
    /// The retried event that was refused, or the first of several, and whether it was sent alone.
    pub retry: Option<(Key, bool)>,
}

impl<K: Sink> DeadLetters<K> {
    /// Wraps `inner`.
    pub fn new(inner: K, parts: DeadLetterParts) -> Self {
        let DeadLetterParts {
            store,
            loaded,
            max_aggregates,
            refused,
            retry_alone,
            required_log_end,
            monitor,
            ..
        } = parts;
        let parking = Parking::new(store, loaded, max_aggregates, refused, retry_alone, required_log_end);
        // another process may have changed the table since the last session
        parking.show(&monitor);
        let (outbox, router) = parts.pipeline;
        DeadLetters {
            inner,
            parking,
            outbox,
            router,
            of_rows: parts.of_rows,
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

    /// Parks an event.
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
            Err(_) if self.parking.check_for_capacity() => Err(NotSent::Later),
            Err(too_many) => Err(NotSent::Impossible(Unsendable::new(
                why.reason,
                format!("{}; and {too_many}", why.what),
                format!("{}, or {LIMIT_REMEDY}", why.remedy),
            ))),
        }
    }

    /// Sends the fetched events whose retry was decided, unless the window is full.
    fn retry(&mut self, window: &Window) {
        let DeadLetters { inner, parking, outbox, router, of_rows, monitor, .. } = self;
        loop {
            parking.discard(monitor);
            let retries = parking.retries();
            if window.is_full() || !inner.is_ready() || retries.sent_alone() {
                return;
            }
            let (sequence, settled) = (retries.next_sequence(), retries.is_idle() && window.is_empty());
            let Some((letter, alone)) = retries.to_send() else { return };
            if alone && !settled {
                parking.retries_mut().wait_to_send_alone();
                return;
            }
            let key = letter.key;
            let Key { final_lsn, change } = key;
            let origin =
                Origin { final_lsn, xid: letter.xid, commit_time: letter.commit_time, ordinal: change };
            let mut row = outbox.stored_row(&letter.source);
            let row = match outbox.read_stored(&mut row, &letter.original) {
                Ok(row) => row,
                Err(error) => {
                    let remedy = "Correct `[outbox] columns` or `[route]`";
                    parking.failed(key, &Unsendable::new(Reason::Unroutable, error.to_string(), remedy));
                    continue;
                }
            };
            let router = of_rows.as_mut().filter(|_| letter.xid == 0).unwrap_or(router);
            router.set_replay_mark(letter.replay.as_deref());
            let routed = router.route(&row, &origin).map_err(Unsendable::from);
            let event = pipeline::Event::parked(row, origin, &letter.original);
            match inner.send(&PipelineOutput { event, routed }, sequence) {
                Ok(Sent::Record(record) | Sent::Held(record)) => {
                    parking.retries_mut().sent(key, record, alone);
                }
                Ok(Sent::Nothing) => {
                    monitor.counts().events_dropped.add(1);
                    parking.dropped(key);
                }
                Err(NotSent::Later) => return,
                Err(NotSent::Impossible(why)) => parking.failed(key, &why),
            }
        }
    }

    /// Handles a result of the store.
    fn handle_report(&mut self, report: Report, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) {
        match report {
            Report::Parked { rows, committed } => {
                let at_once = self.with_checkpoints;
                for sequence in self.parking.inserted(rows, committed, at_once, &self.monitor) {
                    event(if at_once {
                        SinkEvent::Delivered(sequence)
                    } else {
                        SinkEvent::Released(sequence)
                    });
                }
                self.awaits = self.awaits.max(Some(committed));
            }
            Report::Deleted { keys, committed } => self.parking.deleted(keys, committed, &self.monitor),
            Report::Fetched(rows) => self.parking.fetched(rows, self.survives, self.with_checkpoints),
            Report::Refused(reason) => self.parking.set_unwritable(reason, &self.monitor),
            // `wait` returns it
            Report::Ended(_) => {}
        }
    }
}

impl<K: Sink> Sink for DeadLetters<K> {
    type End = DeadLettersEnd<K::End>;

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn send(&mut self, output: &PipelineOutput<'_>, sequence: Sequence) -> Result<Sent, NotSent> {
        if self.parking.retries().blocks_others() {
            return Err(NotSent::Later);
        }
        let event = &output.event;
        let aggregate = event.row.field(Field::AggregateId);
        let Partial { final_lsn, changes } = event.place();
        let key = Key { final_lsn, change: changes };
        if aggregate.is_none() && self.parking.take_parked(key) {
            return Ok(Sent::Nothing);
        }
        if let Some(why) = self.parking.refused(event.place()) {
            return self.park(event, sequence, &why);
        }
        if self.parking.holds(aggregate, key) {
            let why = Unsendable::new(
                Reason::Behind,
                "an earlier event of its aggregate is parked",
                "It is sent after that event is sent or discarded",
            );
            return self.park(event, sequence, &why);
        }
        match self.inner.send(output, sequence) {
            Err(NotSent::Impossible(why)) => self.park(event, sequence, &why),
            sent => sent,
        }
    }

    fn looks_ahead(&self) -> bool {
        self.inner.looks_ahead()
    }

    fn look_ahead(&mut self, output: &PipelineOutput<'_>) -> bool {
        // nothing is prepared for an event that will be parked
        let Partial { final_lsn, changes } = output.event.place();
        let aggregate = output.event.row.field(Field::AggregateId);
        self.parking.parks(aggregate, Key { final_lsn, change: changes }) || self.inner.look_ahead(output)
    }

    fn reports(&mut self, event: &mut impl FnMut(SinkEvent) -> Option<InFlight>) -> Option<Refusal> {
        while let Some(report) = self.reports.pop_front() {
            self.handle_report(report, event);
        }
        for sequence in self.parking.take_durable(self.received) {
            event(SinkEvent::Settled(sequence));
        }
        let DeadLetters { inner, parking, transactional, monitor, .. } = self;
        inner.reports(&mut |reported| match reported {
            SinkEvent::Delivered(sequence) if Retries::is_retry(sequence) => {
                parking.delivered(sequence, *transactional, monitor)
            }
            SinkEvent::Committed => {
                parking.transaction_committed();
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
        let elsewhere = state.elsewhere + parking.inserting();
        let inside = LoopState { elsewhere, ..*state };
        let more = inner.after_dispatch(&inside, &mut |checkpoint| {
            note(checkpoint);
            parking.commit_retries_with(checkpoint, *transactional);
        })?;
        Ok(more || parking.has_durable(reading.received))
    }

    fn is_done(&self) -> bool {
        self.inner.is_done() && self.parking.is_done()
    }

    fn durability(&self, progress: &Progress) -> Durability {
        let inside = self.inner.durability(progress);
        Durability {
            settled: inside.settled && self.parking.is_settled(),
            awaits: self.awaits.max(inside.awaits),
            ..inside
        }
    }

    async fn wait(&mut self) -> Result<(), Error> {
        tokio::select! {
            biased;
            changed = self.inner.wait() => changed?,
            report = self.parking.report() => match report {
                Report::Ended(error) => return Err(error),
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
        let retry = parking.retries().first_in_flight();
        let mut add = |checkpoint: &mut Checkpoint| {
            note(checkpoint);
            // in exactly-once mode the last committed checkpoint stays, and this is not called
            parking.commit_retries_with(checkpoint, false);
        };
        let (outcome, inner) = inner.close(outcome, progress, log_verified, &mut add).await;
        let refused = matches!(&outcome, Outcome::Refused(refusal) if Retries::is_retry(refusal.last));
        (outcome, DeadLettersEnd { inner, retry: retry.filter(|_| refused) })
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
        original: event.original(),
        replay: event.replay.map(str::to_owned),
    }
}
