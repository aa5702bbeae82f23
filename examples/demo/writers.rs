//! The application: several writers that change orders and customers, and insert events into the outbox in the same transactions.
//! Some transactions roll back, entirely or to a savepoint.
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

/// The aggregate types that the writers change; each has its own topic.
pub(crate) const AGGREGATE_TYPES: [&str; 2] = ["order", "customer"];

/// How often something happens: once in this many transactions or changes.
const ROLLBACK_ONE_IN: u32 = 10;
const SAVEPOINT_ONE_IN: u32 = 10;
/// One transaction in this many changes a customer besides its order.
const CUSTOMER_ONE_IN: u32 = 4;

/// The load of the demo.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) writers: u32,
    /// The minimum number of committed rows, which the writers share.
    pub(crate) rows: u64,
    /// The time to spread them over.
    pub(crate) span: Duration,
    /// Few, so that writers contend for the same orders.
    pub(crate) orders: u32,
    pub(crate) customers: u32,
    pub(crate) seed: u64,
}

/// What the writers know of their transactions.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Each event whose COMMIT succeeded, and when it returned.
    pub(crate) committed: HashMap<String, Instant>,
    /// Events that were rolled back and must never arrive.
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

/// Connects. The connection runs as a task until the client is dropped.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to Postgres")?;
    // the client's next query reports its error
    tokio::spawn(connection);
    Ok(client)
}

/// Creates the application's own tables; `outbox-router init` creates the outbox.
pub(crate) async fn create_tables(postgres: &Client) -> anyhow::Result<()> {
    let tables = "
        CREATE TABLE orders (id text PRIMARY KEY, total numeric NOT NULL, events bigint NOT NULL);
        CREATE TABLE customers (id text PRIMARY KEY, total numeric NOT NULL, events bigint NOT NULL)";
    postgres.batch_execute(tables).await.context(
        "create the tables `orders` and `customers`; the demo needs servers that have not been used before",
    )
}

/// Runs the writers to their end, and counts rows in `committed` meanwhile.
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
    /// The writer's number, from 0.
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

/// The events of a transaction: those that it commits, and those rolled back to a savepoint.
#[derive(Default)]
struct Events {
    inserted: Vec<String>,
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
        // the server casts text to jsonb, so the driver needs no JSON support
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

    /// Runs one transaction; returns the number of rows committed.
    async fn transaction(&mut self, client: &mut Client) -> anyhow::Result<u64> {
        let mut transaction = client.transaction().await?;
        let mut events = Events::default();
        // always in this order, so that writers do not deadlock
        let order = format!("order-{}", self.random.random_range(1..=self.plan.orders));
        self.change(&mut transaction, "order", &order, &mut events).await?;
        if self.one_in(CUSTOMER_ONE_IN) {
            let customer = format!("customer-{}", self.random.random_range(1..=self.plan.customers));
            self.change(&mut transaction, "customer", &customer, &mut events).await?;
        }

        self.written.transactions += 1;
        self.written.rolled_back.extend(events.undone);
        if self.one_in(ROLLBACK_ONE_IN) {
            transaction.rollback().await?;
            self.written.rollbacks += 1;
            self.written.rolled_back.extend(events.inserted);
            return Ok(0);
        }
        transaction.commit().await?;
        let at = Instant::now();
        let rows = events.inserted.len() as u64;
        self.written.committed.extend(events.inserted.into_iter().map(|id| (id, at)));
        Ok(rows)
    }

    /// Changes one aggregate and emits its events. Sometimes does so twice, the first time rolled back to a savepoint.
    async fn change(
        &mut self,
        transaction: &mut Transaction<'_>,
        aggregate_type: &str,
        aggregate_id: &str,
        events: &mut Events,
    ) -> anyhow::Result<()> {
        if self.one_in(SAVEPOINT_ONE_IN) {
            let savepoint = transaction.savepoint("rolled_back").await?;
            let undone = self.emit(&savepoint, aggregate_type, aggregate_id).await?;
            savepoint.rollback().await?;
            self.written.savepoint_rollbacks += 1;
            events.undone.extend(undone);
        }
        events.inserted.extend(self.emit(transaction, aggregate_type, aggregate_id).await?);
        Ok(())
    }

    /// Emits one to four events of one aggregate; returns their ids.
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

    /// A payload with texts that are easily mangled: quotes, backslashes, characters of two and four bytes, trailing zeros.
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
