//! Two sessions with the same event, in every order of their statements, and killed at each of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::support::{Database, Session};

/// What a consumer runs, with `{}` for the event.
const CONSUMER: [&str; 4] = [
    "BEGIN",
    "INSERT INTO effects SELECT '{}' FROM outbox_router.inbox_claim('c', '{}') WHERE outcome = 'fresh'",
    "SELECT count(*) FROM effects",
    "COMMIT",
];

/// The same with a batch.
const BATCH: [&str; 4] = [
    "BEGIN",
    "INSERT INTO effects SELECT * FROM outbox_router.inbox_claim('c', ARRAY['{}', '{}-2'])",
    "SELECT count(*) FROM effects",
    "COMMIT",
];

/// A receiver and a worker in one.
const WORKER: [&str; 5] = [
    "SELECT outbox_router.inbox_put('c', '{}', 'x')",
    "BEGIN",
    "SELECT FROM outbox_router.inbox_next('c', 500)",
    "INSERT INTO effects SELECT '{}' WHERE outbox_router.inbox_done('c', '{}')",
    "COMMIT",
];

/// A request with an idempotency key.
const REQUEST: [&str; 4] = [
    "BEGIN",
    "WITH begun AS (INSERT INTO tokens SELECT '{}', token FROM outbox_router.idempotency_begin('u', '{}', sha256('x'), \
     max_wait => '0.1 s') WHERE outcome = 'new' RETURNING *) INSERT INTO effects SELECT event_id FROM begun",
    "SELECT outbox_router.idempotency_finish('u', event_id, token, 201) FROM tokens WHERE event_id = '{}'",
    "COMMIT",
];

/// A session of which one statement at a time may be waiting for a lock.
struct Side {
    session: Arc<Session>,
    waiting: Option<JoinHandle<()>>,
}

impl Side {
    async fn new(database: &Database) -> Self {
        Side { session: Arc::new(database.session().await), waiting: None }
    }

    /// Starts a statement, and returns when it is complete or waits for a lock.
    async fn step(&mut self, admin: &Session, sql: String) {
        if let Some(waiting) = self.waiting.take() {
            // the statement before has to end first
            waiting.await.unwrap();
        }
        let session = Arc::clone(&self.session);
        let task = tokio::spawn(async move {
            // an error of a killed session, or of one that did not take the event
            let _ = session.ask(&sql).await;
        });
        let blocked = format!("SELECT cardinality(pg_blocking_pids({})) > 0", self.session.pid);
        while !task.is_finished() {
            if admin.ok(&blocked).await == "t" {
                self.waiting = Some(task);
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.await.unwrap();
        }
        let _ = self.session.ask("ROLLBACK").await;
    }
}

/// Every order of `left` statements of one side and `right` of the other.
fn orders(left: usize, right: usize) -> Vec<Vec<bool>> {
    if left == 0 || right == 0 {
        return vec![[vec![true; left], vec![false; right]].concat()];
    }
    let prefixed =
        |first: bool, rest: Vec<Vec<bool>>| rest.into_iter().map(move |rest| [vec![first], rest].concat());
    prefixed(true, orders(left - 1, right)).chain(prefixed(false, orders(left, right - 1))).collect()
}

async fn in_every_order(statements: &[&str]) {
    let database = Database::new().await;
    let admin = database.session().await;
    admin.ok("CREATE TABLE tokens (event_id text, token uuid)").await;
    let (mut left, mut right) = (Side::new(&database).await, Side::new(&database).await);
    for (n, order) in orders(statements.len(), statements.len()).into_iter().enumerate() {
        let event = format!("e{n}");
        let (mut of_left, mut of_right) = (statements.iter(), statements.iter());
        for is_left in &order {
            let (side, rest) = if *is_left { (&mut left, &mut of_left) } else { (&mut right, &mut of_right) };
            // a side that waits for the other goes on when that has ended
            if side.waiting.as_ref().is_some_and(|waiting| !waiting.is_finished()) {
                continue;
            }
            let sql = rest.next().unwrap().replace("{}", &event);
            side.step(&admin, sql).await;
        }
        let left_waits = left.waiting.as_ref().is_some_and(|waiting| !waiting.is_finished());
        let mut remaining = [(&mut left, of_left), (&mut right, of_right)];
        if left_waits {
            remaining.reverse();
        }
        for (side, rest) in remaining {
            for sql in rest {
                side.step(&admin, sql.replace("{}", &event)).await;
            }
        }
        left.end().await;
        right.end().await;
        assert_eq!(database.effects(&event).await, 1, "{order:?}");
    }
}

/// Kills the first session before each of its statements, and lets the second do everything.
async fn killed_everywhere(statements: &[&str]) {
    let database = Database::new().await;
    let admin = database.session().await;
    admin.ok("CREATE TABLE tokens (event_id text, token uuid)").await;
    for killed_before in 1..=statements.len() {
        let event = format!("k{killed_before}");
        let (mut first, mut second) = (Side::new(&database).await, Side::new(&database).await);
        for sql in &statements[..killed_before] {
            first.step(&admin, sql.replace("{}", &event)).await;
        }
        admin.ok(&format!("SELECT pg_terminate_backend({})", first.session.pid)).await;
        admin
            .until(&format!(
                "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {})",
                first.session.pid
            ))
            .await;
        for sql in statements {
            second.step(&admin, sql.replace("{}", &event)).await;
        }
        second.end().await;
        assert_eq!(database.effects(&event).await, 1, "killed before statement {killed_before}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_has_one_effect() {
    in_every_order(&CONSUMER).await;
    killed_everywhere(&CONSUMER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_one_effect() {
    in_every_order(&BATCH).await;
    killed_everywhere(&BATCH).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_event_has_one_effect() {
    in_every_order(&WORKER).await;
    killed_everywhere(&WORKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_effect() {
    in_every_order(&REQUEST).await;
    killed_everywhere(&REQUEST).await;
}
