//! Writers that commit events on a fixed schedule, so that a late transaction does not delay the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::ground::{Id, connect, id};
use crate::stage::consumer::Received;

const WRITERS: u32 = 4;
const KEYS: u64 = 1_000;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Transactions per second.
    pub(crate) rate: u32,
    /// Events per transaction.
    pub(crate) rows: u32,
}

/// The committed events, and when COMMIT returned.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<HashMap<Id, Instant>>>);

impl Ledger {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Id, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running writers; dropping it ends them.
pub(crate) struct Writers {
    pub(crate) ledger: Ledger,
    stop: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Writers {
    /// Starts writers that commit events of the aggregate type `kind` until they are stopped.
    pub(crate) async fn start(postgres: &str, kind: &str, load: Load) -> anyhow::Result<Self> {
        Self::start_many(postgres, kind, load, WRITERS).await
    }

    /// Starts `count` writers, each on a connection of its own, which share the load.
    pub(crate) async fn start_many(
        postgres: &str,
        kind: &str,
        load: Load,
        count: u32,
    ) -> anyhow::Result<Self> {
        let (ledger, stop) = (Ledger::default(), CancellationToken::new());
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(connect(postgres).await?);
        }
        let begin = tokio::time::Instant::now();
        let mut tasks = JoinSet::new();
        for (number, client) in (0_u64..).zip(clients) {
            let (ledger, stop, kind) = (ledger.clone(), stop.clone(), kind.to_owned());
            let turns = (number..).step_by(count as usize);
            tasks.spawn(async move { write(&client, &kind, (turns, load, begin), &ledger, &stop).await });
        }
        Ok(Writers { ledger, stop, tasks })
    }

    /// # Errors
    /// A writer has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            Some(ended) => ended.context("a writer panicked")?.context("a writer failed"),
            None => Ok(()),
        }
    }

    /// Ends the writers after their current transactions.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Ledger> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a writer panicked")?.context("a writer failed")?;
        }
        Ok(self.ledger)
    }
}

/// Writes the transactions of these turns until it is stopped.
async fn write(
    client: &Client,
    kind: &str,
    (turns, load, begin): (impl Iterator<Item = u64>, Load, tokio::time::Instant),
    ledger: &Ledger,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    // the server casts text to jsonb, so the driver needs no JSON support
    let sql = "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
               SELECT id::uuid, $1, key, 'Measured', payload::jsonb
               FROM unnest($2::text[], $3::text[], $4::text[]) rows (id, key, payload)";
    let insert = client.prepare(sql).await?;
    for turn in turns {
        if stop.run_until_cancelled(sleep_until(begin + due(turn, load.rate))).await.is_none() {
            break;
        }
        let numbers: Vec<Id> = (0..load.rows).map(|_| rand::random()).collect();
        let ids: Vec<String> = numbers.iter().map(|id| format!("{id:032x}")).collect();
        let first = turn * u64::from(load.rows);
        let keys: Vec<String> = (first..).take(ids.len()).map(|n| format!("key-{}", n % KEYS)).collect();
        let payloads: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"n": {turn}, "text": "{}"}}"#, id.repeat(8))).collect();
        client.execute(&insert, &[&kind, &ids, &keys, &payloads]).await?;
        let committed = Instant::now();
        ledger.lock().extend(numbers.into_iter().map(|id| (id, committed)));
    }
    Ok(())
}

/// When a transaction is due, from the beginning.
fn due(turn: u64, rate: u32) -> Duration {
    Duration::from_secs_f64(turn as f64 / f64::from(rate))
}

/// Records when each id arrived first, and drains the records.
pub(crate) fn arrivals(records: &mut Vec<Received>, first: &mut HashMap<Id, Instant>) {
    for record in records.drain(..) {
        let Some(id) = record.id().and_then(|text| id(text).ok()) else { continue };
        first
            .entry(id)
            .and_modify(|at: &mut Instant| *at = record.arrived.min(*at))
            .or_insert(record.arrived);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_has_the_requested_rate() {
        assert_eq!([due(0, 200), due(1, 200), due(400, 200)], [0, 5, 2000].map(Duration::from_millis));
    }
}
