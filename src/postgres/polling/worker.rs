//! The session that claims rows and marks them while a router polls.
//!
//! A claim is valid until its lease expires by the server's clock. Here it ends earlier: if a row is not acknowledged after two thirds
//! of the lease, the session ends, and the next one claims what is left. Another router that takes over an expired claim ends it;
//! updates by this router then change nothing.

mod answers;
mod claims;
mod exit;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pg_logical::lock_wait::is_lock_timeout;
use pg_logical::session::{Row, Session};
use pg_logical::{PgTimestamp, QueryError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::messages::{
    CountedRows, FromWorker, RefusalStored, RouterChannels, RowResult, WorkerChannels, channels,
};
use super::sql::{BUSY, MAX_REFUSALS, OwnClaim, PolledTable, RowLocks, UNPLACED};
use super::table::WAKE_CHANNEL;
use crate::error::{Error, Peer};
use crate::postgres::rows::TableRow;
use crate::progress::Sequence;
use answers::{answer, answer_limit};
use claims::{Claim, Claims, Refused};
use exit::{Exit, changed, not_marked, unmarked, verify_ownership};

/// The shortest and the longest pause between two claims while nothing is due.
const IDLE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// How long to wait for another router that is just claiming rows.
const BUSY_PAUSE: Duration = Duration::from_millis(3);

/// How long published rows are collected before they are marked together, unless there are [`MARKED_AT_ONCE`].
const COLLECT: Duration = Duration::from_millis(5);

const MARKED_AT_ONCE: usize = 1_000;

/// How many rows are claimed at a time.
const CLAIM: usize = 2_000;

/// How often to look for rows whose predecessors somebody else has removed, and for rows that somebody has set back to new.
const ORPHANS_EVERY: Duration = Duration::from_secs(60);
const SET_BACK_EVERY: Duration = Duration::from_secs(600);

/// How often the rows of the table are counted.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// How long a row that another transaction has locked is left alone.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// How long the end of a session may take to store what is known.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// What a worker needs.
pub struct WorkerParts {
    /// The session, in which no transaction is open.
    pub session: Session,
    /// The table.
    pub table: PolledTable,
    /// The columns to read.
    pub columns: Vec<String>,
    /// Identifies the claims of this session.
    pub token: String,
    /// That of the last session of this process, if there was one.
    pub last_token: Option<String>,
    /// Whether to listen for inserts.
    pub listens: bool,
    /// `[source] lease`
    pub lease: Duration,
    /// How many rows may be claimed and not yet marked.
    pub max_rows: usize,
    /// How many bytes of values they may have.
    pub max_bytes: usize,
}

/// Starts a worker.
///
/// # Errors
/// The claims of an earlier session of this process cannot be ended.
pub async fn start(mut parts: WorkerParts) -> Result<(RouterChannels, JoinHandle<()>), Error> {
    if let Some(last) = parts.last_token.take() {
        parts.session.query(&parts.table.release(&last, &[])).await?;
    }
    if parts.listens {
        parts.session.query(&format!("LISTEN {WAKE_CHANNEL}")).await?;
    }
    let (channels, of_router) = channels();
    let now = Instant::now();
    let worker = Worker {
        parts,
        channels,
        claims: Claims::default(),
        claim_at: now,
        claimed: None,
        row_bytes: 0,
        pause: IDLE.0,
        store_at: None,
        polled: PgTimestamp::now(),
        count_at: now,
        orphans_at: now,
        set_back_at: now,
        reported_idle: false,
        sink_closed: false,
    };
    Ok((of_router, tokio::spawn(worker.run())))
}

struct Worker {
    parts: WorkerParts,
    channels: WorkerChannels,
    claims: Claims,
    claim_at: Instant,
    /// When rows were last asked for.
    claimed: Option<Instant>,
    /// The average size of the rows of the last claim.
    row_bytes: usize,
    /// The pause after the next claim that finds nothing.
    pause: Duration,
    /// When to store what is known of rows; `None`: there is nothing.
    store_at: Option<Instant>,
    /// When rows were last claimed, or none were found.
    polled: PgTimestamp,
    count_at: Instant,
    orphans_at: Instant,
    set_back_at: Instant,
    reported_idle: bool,
    /// Nothing more is sent.
    sink_closed: bool,
}

impl Worker {
    async fn run(mut self) {
        let exit = loop {
            if let Err(exit) = self.turn().await {
                break exit;
            }
        };
        if let Exit::Failed(error) = exit {
            let usable = match &error {
                Error::Transient(failure) => failure.peer == Peer::Kafka,
                Error::Definite(_) => true,
            };
            let _ = self.channels.to_source.send(FromWorker::Failed(error));
            if !usable {
                return;
            }
            // the session with Postgres can still store what is found out until the sink is closed
            while let Some(result) = self.channels.results.recv().await {
                self.claims.apply(result);
            }
        }
        self.sink_closed = true;
        match timeout(END_TIMEOUT, self.finish()).await {
            Ok(Ok(())) => self.parts.session.close().await,
            Ok(Err(Exit::Failed(error))) => {
                tracing::warn!("published rows are sent again, because they cannot be marked: {error}");
            }
            Ok(Err(Exit::Closed)) => {}
            Err(_) => {
                tracing::warn!("published rows are sent again, because Postgres did not mark them in time");
            }
        }
    }

    /// Does what is due, and waits for what comes next.
    async fn turn(&mut self) -> Result<(), Exit> {
        while let Ok(result) = self.channels.results.try_recv() {
            self.apply(result);
        }
        let now = Instant::now();
        let store_at = self.store_at.filter(|at| {
            let known = self.claims.known();
            *at <= now
                || *at <= now + COLLECT && (known >= MARKED_AT_ONCE || known == self.claims.in_flight())
        });
        if store_at.is_some() {
            self.store().await?;
        }
        self.check_deadline().await?;
        self.release_forgotten(now).await?;
        if self.count_at <= now {
            self.count_at = now + COUNT_EVERY;
            self.count().await?;
        }
        let room = self.room();
        if room && self.claim_at <= Instant::now() {
            return self.claim().await;
        }
        let wake = [room.then_some(self.claim_at), self.store_at, self.claims.first_deadline()];
        let wake = wake.into_iter().flatten().chain([self.count_at]).min();
        tokio::select! {
            biased;
            result = self.channels.results.recv() => match result {
                Some(result) => self.apply(result),
                None => return Err(Exit::Closed),
            },
            inserted = self.parts.session.notification(), if self.parts.listens => {
                inserted?;
                self.pause = IDLE.0;
                // one claim takes what several transactions have inserted
                let soonest = self.claimed.map_or(now, |claimed| claimed + IDLE.0);
                self.claim_at = self.claim_at.min(soonest);
            }
            () = sleep_until(wake.unwrap_or(now)) => {}
        }
        Ok(())
    }

    fn apply(&mut self, result: RowResult) {
        if self.claims.apply(result) {
            self.store_at.get_or_insert(Instant::now() + COLLECT);
        }
    }

    /// Runs a message of one or more transactions.
    async fn query(&mut self, sql: &str) -> Result<Vec<Row>, QueryError> {
        let until = self.claims.unacknowledged_until().filter(|_| !self.sink_closed);
        let limit = answer_limit(until, Instant::now(), self.parts.lease);
        self.parts.session.set_answer_timeout(Some(limit));
        let answer = answer(&mut self.parts.session, sql, &self.channels.to_source).await;
        if let Err(QueryError::Server { .. }) = &answer {
            // fails if the server has ended the session, which the answer tells
            let _ = self.parts.session.query("ROLLBACK").await;
        }
        answer
    }

    /// The same; `None` if a lock was in the way.
    async fn query_unless_locked(&mut self, sql: &str) -> Result<Option<Vec<Row>>, QueryError> {
        match self.query(sql).await {
            Err(error) if is_lock_timeout(&error) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Whether enough rows can be claimed to be worth it.
    fn room(&self) -> bool {
        !self.channels.stopping.load(Relaxed)
            && self.claims.in_flight() * 2 <= self.parts.max_rows
            && self.claims.bytes() * 2 <= self.parts.max_bytes
    }

    async fn claim(&mut self) -> Result<(), Exit> {
        let begun = Instant::now();
        self.claimed = Some(begun);
        // two claims are in flight, and the rows of one are in memory twice for a moment
        let bytes = self.parts.max_bytes / 4;
        let limit = claim_limit(bytes, self.row_bytes).min(self.parts.max_rows);
        let sql = self.parts.table.claim(&self.parts.token, limit, bytes, &self.parts.columns);
        let Some(rows) = self.query_unless_locked(&sql).await? else {
            self.claim_at = Instant::now() + LOCKED_PAUSE;
            return Ok(());
        };
        let mut rows = rows.into_iter();
        let first = rows.next();
        self.polled = PgTimestamp::now();
        let id = first.as_ref().and_then(|row| row.get(0)).unwrap_or_default();
        if id == UNPLACED {
            return Err(Exit::Failed(changed("rows that wait to be sent have no position")));
        }
        let Ok(id) = id.parse::<i64>() else {
            return self.nothing_claimed(id == BUSY);
        };
        let deadline = begun + self.parts.lease * 2 / 3;
        let mut claim = Claim::new(id, deadline);
        let now = PgTimestamp::now();
        let mut claimed = Vec::new();
        for row in rows {
            let number = |index: usize| row.get(index).and_then(|text| text.parse::<i64>().ok());
            let Some(position) = number(0) else { continue };
            let values: Vec<_> = (3..row.len()).map(|index| row.get(index).map(str::to_owned)).collect();
            let inserted = number(2).map_or(now, PgTimestamp::from_unix_micros);
            let claimed_row = TableRow { inserted, values };
            claim.add(position, row.get(1) == Some("t"), claimed_row.bytes());
            claimed.push(claimed_row);
        }
        self.row_bytes = claim.bytes() / claimed.len().max(1);
        self.pause = IDLE.0;
        self.claim_at = if claimed.len() >= limit { begun } else { begun + IDLE.0 };
        self.claims.add(claim);
        if claimed.is_empty() {
            // its rows were deleted just now
            return self.store().await;
        }
        self.reported_idle = false;
        self.say(FromWorker::Rows { rows: claimed, send_by: deadline })
    }

    async fn count(&mut self) -> Result<(), Exit> {
        let rows = self.query(&self.parts.table.count()).await?;
        match rows.first() {
            Some(row) => self.say(FromWorker::Counted(CountedRows::read(row, self.polled))),
            None => Ok(()),
        }
    }

    fn nothing_claimed(&mut self, busy: bool) -> Result<(), Exit> {
        self.claim_at = Instant::now() + if busy { BUSY_PAUSE } else { self.pause };
        if busy {
            return Ok(());
        }
        self.pause = (self.pause * 2).min(IDLE.1);
        if self.claims.is_empty() && !std::mem::replace(&mut self.reported_idle, true) {
            return self.say(FromWorker::Nothing);
        }
        Ok(())
    }

    fn say(&self, what: FromWorker) -> Result<(), Exit> {
        // the source is closed after the sink, so this is the end of a session that has failed
        self.channels.to_source.send(what).map_err(|_| Exit::Closed)
    }

    /// Stores what is known of rows.
    async fn store(&mut self) -> Result<(), Exit> {
        self.store_at = None;
        for id in self.claims.ids() {
            for refused in self.claims.take_refused(id) {
                self.store_refusal(id, refused).await?;
            }
            self.mark(id).await?;
        }
        if self.claims.known() > 0 {
            // somebody has locked them
            self.store_at = Some(Instant::now() + LOCKED_PAUSE);
        }
        Ok(())
    }

    async fn store_refusal(&mut self, id: i64, refused: Refused) -> Result<(), Exit> {
        let Refused { number, position, reason } = &refused;
        let sql = self.parts.table.refuse(&self.own(id), *position, reason);
        let Some(rows) = self.query_unless_locked(&sql).await? else {
            self.claims.put_back(id, refused);
            return Ok(());
        };
        let answer = rows.first();
        verify_ownership(answer)?;
        let refusals = answer.and_then(|row| row.get(1)).and_then(|count| count.parse::<u32>().ok());
        match refusals {
            Some(refusals) if refusals >= MAX_REFUSALS => tracing::error!(
                position,
                refusals,
                reason,
                remedy = "outbox-router dead-letters list",
                "an event was refused too often; its row has failed, and later ones of its aggregate wait"
            ),
            Some(refusals) => {
                tracing::warn!(position, refusals, reason, "an event was refused, and is tried again later");
            }
            // somebody has deleted it, or changed its status
            None => {}
        }
        let next = Sequence(self.claims.next_number());
        let _ = self.channels.stored.send(RefusalStored { refused: *number, next });
        Ok(())
    }

    fn own(&self, id: i64) -> OwnClaim<'_> {
        OwnClaim { id, token: &self.parts.token }
    }

    /// Marks the published rows of a claim, and ends it if no others are left.
    async fn mark(&mut self, id: i64) -> Result<(), Exit> {
        // a row that was changed meanwhile is marked by the second attempt
        let mut locks = RowLocks::None;
        for _ in 1..=3 {
            let Some(to_mark) = self.claims.to_mark(id) else { return Ok(()) };
            let kind = (to_mark.last, to_mark.retried);
            let sql = self.parts.table.publish(&self.own(id), &to_mark.positions, kind, locks);
            let Some(rows) = self.query_unless_locked(&sql).await.map_err(not_marked)? else {
                if locks == RowLocks::Skip {
                    return Ok(());
                }
                locks = RowLocks::Skip;
                continue;
            };
            let answer = rows.iter().rfind(|row| row.len() == 4);
            verify_ownership(answer)?;
            let marked = answer.and_then(|row| row.get(1)).unwrap_or_default();
            let marked = marked.trim_matches(['{', '}']).split(',').filter_map(|text| text.parse().ok());
            // others that were published do not exist any more
            let gone = locks == RowLocks::Wait;
            let rest = rows.last().filter(|row| gone && row.len() == 1).and_then(|row| row.get(0));
            if rest.is_some_and(|rest| rest != "0") {
                return Err(unmarked("a trigger keeps its rows from being marked as published"));
            }
            self.claims.marked(id, marked.collect(), gone);
            if answer.and_then(|row| row.get(2)) == Some("1") {
                self.claims.remove(id);
                return Ok(());
            }
            if locks == RowLocks::Skip {
                return Ok(());
            }
            locks = RowLocks::Wait;
        }
        Ok(())
    }

    /// Ends the session if rows were not acknowledged in time. Rows that are published, and locked by somebody, are released: they are
    /// sent again.
    async fn check_deadline(&mut self) -> Result<(), Exit> {
        let now = Instant::now();
        for id in self.claims.past(now) {
            let unknown = self.claims.unknown(id);
            if unknown > 0 {
                let lease = self.parts.lease.as_secs_f32();
                return Err(Exit::Failed(Error::transient(
                    Peer::Kafka,
                    format!(
                        "{unknown} rows were not acknowledged within two thirds of the lease of {lease} s; they are tried again"
                    ),
                )));
            }
            if self.claims.has_refused(id) {
                // otherwise the later rows of its aggregate would be kept back for ever
                return Err(Exit::Failed(changed(
                    "a row that was refused cannot be marked, because another transaction has locked it; it is tried again",
                )));
            }
            tracing::warn!("published rows are sent again, because another transaction has locked them");
            self.claims.remove(id);
            let sql = self.parts.table.publish(&self.own(id), &[], (true, false), RowLocks::None);
            self.query_unless_locked(&sql).await?;
        }
        Ok(())
    }

    async fn release_forgotten(&mut self, now: Instant) -> Result<(), Exit> {
        if self.set_back_at <= now {
            self.set_back_at = now + SET_BACK_EVERY;
            if let Some(sql) = self.parts.table.release_set_back() {
                self.query_unless_locked(&sql).await?;
            }
        }
        if self.orphans_at <= now {
            self.orphans_at = now + ORPHANS_EVERY;
            self.query_unless_locked(&self.parts.table.release_orphans()).await?;
        }
        Ok(())
    }

    /// Stores what is known, and releases the rest.
    async fn finish(&mut self) -> Result<(), Exit> {
        while let Ok(result) = self.channels.results.try_recv() {
            self.claims.apply(result);
        }
        let stored = self.store().await;
        // also if the table refuses to be marked: the next router need not wait for the end of the lease
        let tried = self.claims.unknown_positions();
        self.query(&self.parts.table.release(&self.parts.token, &tried)).await?;
        stored
    }
}

/// How many rows to look at for a claim of this size. The server has to look at each to know its size, which takes long if they are large
/// and compressed.
fn claim_limit(bytes: usize, row_bytes: usize) -> usize {
    let fitting = bytes / row_bytes.max(1);
    fitting.saturating_mul(2).clamp(16, CLAIM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_looks_at_few_rows_if_they_are_large() {
        let megabyte = 1 << 20;
        for (row_bytes, expected) in
            [(0, CLAIM), (300, CLAIM), (10_000, 838), (megabyte, 16), (usize::MAX, 16)]
        {
            assert_eq!(claim_limit(4 * megabyte, row_bytes), expected, "{row_bytes}");
        }
    }
}
