//! The application: several writers that change orders and customers, and put events into the outbox in the same
//! transactions. Some transactions roll back, some go back to a savepoint.
//!
//! Each aggregate counts its events under a row lock, so the numbers in the payloads are in the order of the commits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement, Transaction};

/// The types of aggregate that the writers change, each the topic of its own.
pub(crate) const AGGREGATE_TYPES: [&str; 2] = ["order", "customer"];

/// One transaction in so many rolls back, or goes back to a savepoint on its way.
const ONE_ROLLS_BACK_IN: u32 = 10;
const ONE_HAS_A_SAVEPOINT_IN: u32 = 10;
/// One transaction in so many changes a customer beside its order.
const ONE_CHANGES_A_CUSTOMER_IN: u32 = 4;

/// How much is written, by whom, and how fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) writers: u32,
    /// Rows that commit, at least; the writers share them.
    pub(crate) rows: u64,
    /// The time to spread them over.
    pub(crate) span: Duration,
    /// Few orders make writers wait for each other, which is what order is about.
    pub(crate) orders: u32,
    pub(crate) customers: u32,
    pub(crate) seed: u64,
}

/// What the writers know of what they did.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Each event whose COMMIT succeeded, and when the writer heard so.
    pub(crate) committed: HashMap<String, Instant>,
    /// Events that were rolled back; none of them may ever arrive.
    pub(crate) rolled_back: HashSet<String>,
    pub(crate) transactions: u64,
    pub(crate) rollbacks: u64,
    pub(crate) savepoint_rollbacks: u64,
}

impl Written {
    pub(crate) fn add(&mut self, other: Written) {
        self.committed.extend(other.committed);
        self.rolled_back.extend(other.rolled_back);
        self.transactions += other.transactions;
        self.rollbacks += other.rollbacks;
        self.savepoint_rollbacks += other.savepoint_rollbacks;
    }
}

/// A connection whose other half runs as a task until the client is dropped.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to Postgres")?;
    // its error reaches the client's next query
    tokio::spawn(connection);
    Ok(client)
}

/// Creates the application's own tables. The outbox is made by `outbox-router init`.
pub(crate) async fn create_tables(postgres: &Client) -> anyhow::Result<()> {
    let tables = "
        CREATE TABLE orders (id text PRIMARY KEY, total numeric NOT NULL, events bigint NOT NULL);
        CREATE TABLE customers (id text PRIMARY KEY, total numeric NOT NULL, events bigint NOT NULL)";
    postgres
        .batch_execute(tables)
        .await
        .context("create the tables `orders` and `customers`; servers that have been used before will not do")
}

/// Runs the writers to their end. `committed` counts rows while they run.
pub(crate) async fn write(url: &str, plan: Plan, committed: &Arc<AtomicU64>) -> anyhow::Result<Written> {
    let mut writers = JoinSet::new();
    for number in 0..plan.writers {
        let mut client = connect(url).await?;
        let committed = Arc::clone(committed);
        writers.spawn(async move {
            let mut writer = Writer::prepare(&client, plan, number).await?;
            writer.run(&mut client, &committed).await?;
            anyhow::Ok(writer.written)
        });
    }
    let mut written = Written::default();
    while let Some(ended) = writers.join_next().await {
        written.add(ended.context("a writer panicked")?.context("a writer failed")?);
    }
    Ok(written)
}

struct Writer {
    plan: Plan,
    /// Which of the writers this is, from 0 on.
    number: u32,
    random: StdRng,
    statements: Statements,
    written: Written,
}

struct Statements {
    change_order: Statement,
    change_customer: Statement,
    emit: Statement,
}

/// A transaction's events, by what became of them.
#[derive(Default)]
struct Events {
    standing: Vec<String>,
    undone: Vec<String>,
}

impl Writer {
    async fn prepare(client: &Client, plan: Plan, number: u32) -> anyhow::Result<Self> {
        let change = |table: &str| {
            format!(
                "INSERT INTO {table} AS before VALUES ($1, $2::bigint * 0.01, $3)
                 ON CONFLICT (id) DO UPDATE
                 SET total = before.total + excluded.total, events = before.events + excluded.events
                 RETURNING events"
            )
        };
        // text to jsonb in the server: the driver needs no JSON of its own
        let emit = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers)
                    VALUES ($1, $2, $3, $4::text::jsonb, $5::text::jsonb) RETURNING id::text";
        let statements = Statements {
            change_order: client.prepare(&change("orders")).await?,
            change_customer: client.prepare(&change("customers")).await?,
            emit: client.prepare(emit).await?,
        };
        let random = StdRng::seed_from_u64(plan.seed.wrapping_add(number.into()));
        Ok(Writer { plan, number, random, statements, written: Written::default() })
    }

    async fn run(&mut self, client: &mut Client, committed: &AtomicU64) -> anyhow::Result<()> {
        let begin = tokio::time::Instant::now();
        let share = self.plan.rows.div_ceil(self.plan.writers.into());
        let mut done = 0;
        while done < share {
            let due = self.plan.span.mul_f64(done as f64 / share as f64);
            tokio::time::sleep_until(begin + due).await;
            let rows = self.transaction(client).await?;
            done += rows;
            committed.fetch_add(rows, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One transaction; returns how many rows it committed.
    async fn transaction(&mut self, client: &mut Client) -> anyhow::Result<u64> {
        let mut transaction = client.transaction().await?;
        let mut events = Events::default();
        // an order before a customer, always, so that no two writers wait for each other
        let order = format!("order-{}", self.random.random_range(1..=self.plan.orders));
        self.change(&mut transaction, "order", &order, &mut events).await?;
        if self.one_in(ONE_CHANGES_A_CUSTOMER_IN) {
            let customer = format!("customer-{}", self.random.random_range(1..=self.plan.customers));
            self.change(&mut transaction, "customer", &customer, &mut events).await?;
        }

        self.written.transactions += 1;
        self.written.rolled_back.extend(events.undone);
        if self.one_in(ONE_ROLLS_BACK_IN) {
            transaction.rollback().await?;
            self.written.rollbacks += 1;
            self.written.rolled_back.extend(events.standing);
            return Ok(0);
        }
        transaction.commit().await?;
        let at = Instant::now();
        let rows = events.standing.len() as u64;
        self.written.committed.extend(events.standing.into_iter().map(|id| (id, at)));
        Ok(rows)
    }

    /// Changes one aggregate and emits its events; now and then only after doing the same in vain.
    async fn change(
        &mut self,
        transaction: &mut Transaction<'_>,
        aggregate_type: &str,
        aggregate_id: &str,
        events: &mut Events,
    ) -> anyhow::Result<()> {
        if self.one_in(ONE_HAS_A_SAVEPOINT_IN) {
            let savepoint = transaction.savepoint("second_thoughts").await?;
            let undone = self.emit(&savepoint, aggregate_type, aggregate_id).await?;
            savepoint.rollback().await?;
            self.written.savepoint_rollbacks += 1;
            events.undone.extend(undone);
        }
        events.standing.extend(self.emit(transaction, aggregate_type, aggregate_id).await?);
        Ok(())
    }

    /// One to four events of one aggregate; returns their ids.
    async fn emit(
        &mut self,
        transaction: &Transaction<'_>,
        aggregate_type: &str,
        aggregate_id: &str,
    ) -> anyhow::Result<Vec<String>> {
        let count: i64 = self.random.random_range(1..=4);
        let cents: i64 = self.random.random_range(100..100_000);
        let change = match aggregate_type {
            "order" => &self.statements.change_order,
            _ => &self.statements.change_customer,
        };
        let last: i64 = transaction.query_one(change, &[&aggregate_id, &cents, &count]).await?.try_get(0)?;
        let mut ids = Vec::new();
        for sequence in last - count + 1..=last {
            let event_type = event_type(aggregate_type, sequence);
            let payload = self.payload(aggregate_id, sequence, cents);
            let headers = self.headers();
            let emitted = transaction
                .query_one(
                    &self.statements.emit,
                    &[&aggregate_type, &aggregate_id, &event_type, &payload, &headers],
                )
                .await?;
            ids.push(emitted.try_get(0)?);
        }
        Ok(ids)
    }

    /// With what tends to go wrong on the way: quotes, backslashes, letters of two and four bytes, trailing zeros.
    fn payload(&mut self, aggregate_id: &str, sequence: i64, cents: i64) -> String {
        const WORDS: [&str; 6] = ["Grüße", "\"by hand\"", "a\\b", "🚚", "line\nbreak", "plain"];
        let note: Vec<&str> =
            (0..self.random.random_range(0..30)).filter_map(|_| self.pick(&WORDS)).collect();
        let note = serde_json::Value::from(note.join(" "));
        format!(
            r#"{{"sequence": {sequence}, "aggregate": "{aggregate_id}", "amount": {}.{:02}, "note": {note}}}"#,
            cents / 100,
            cents % 100
        )
    }

    fn headers(&mut self) -> String {
        let trace: u128 = self.random.random();
        let span: u64 = self.random.random();
        format!(
            r#"{{"traceparent": "00-{trace:032x}-{span:016x}-01", "writer": {}, "tenant": null}}"#,
            self.number
        )
    }

    fn pick<'w>(&mut self, words: &[&'w str]) -> Option<&'w str> {
        words.get(self.random.random_range(0..words.len())).copied()
    }

    fn one_in(&mut self, times: u32) -> bool {
        self.random.random_range(0..times) == 0
    }
}

fn event_type(aggregate_type: &str, sequence: i64) -> &'static str {
    match (aggregate_type, sequence) {
        ("order", 1) => "OrderPlaced",
        ("order", _) => "OrderChanged",
        (_, 1) => "CustomerJoined",
        _ => "CustomerChanged",
    }
}
