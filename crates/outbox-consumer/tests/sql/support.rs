//! A database with the functions, and sessions in it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const MIGRATIONS: [&str; 3] = [
    include_str!("../../../../migrations/consumer/V1__inbox.sql"),
    include_str!("../../../../migrations/consumer/V2__inbox_queue.sql"),
    include_str!("../../../../migrations/consumer/V3__idempotency_keys.sql"),
];

/// Dropped with its sessions.
pub(crate) struct Database {
    name: String,
    server: String,
}

impl Database {
    /// On the server of `TEST_POSTGRES_URL`, with the table `effects`.
    pub(crate) async fn new() -> Self {
        Self::on(&std::env::var("TEST_POSTGRES_URL").expect("TEST_POSTGRES_URL: run scripts/test")).await
    }

    pub(crate) async fn on(url: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = url.rsplit_once('/').unwrap().0.to_owned();
        let name = format!("consumer_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let database = Database { name, server };
        let options = std::env::var("TEST_DATABASE_OPTIONS").unwrap_or_default();
        database.in_postgres(&format!("CREATE DATABASE {} {options}", database.name)).await;
        let session = database.session().await;
        session.ok("CREATE SCHEMA outbox_router; CREATE TABLE effects (event_id text NOT NULL)").await;
        for sql in MIGRATIONS {
            session.ok(sql).await;
        }
        database
    }

    async fn in_postgres(&self, sql: &str) {
        Session::connect(&format!("{}/postgres", self.server)).await.ok(sql).await;
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/{}", self.server, self.name)
    }

    pub(crate) async fn session(&self) -> Session {
        Session::connect(&self.url()).await
    }

    /// How often the event had an effect.
    pub(crate) async fn effects(&self, event: &str) -> u32 {
        let count = format!("SELECT count(*) FROM effects WHERE event_id = '{event}'");
        self.session().await.ok(&count).await.parse().unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let url = format!("{}/postgres", self.server);
        let dropped = std::thread::spawn(move || {
            Runtime::new().unwrap().block_on(async { Session::connect(&url).await.ok(&sql).await })
        });
        let _ = dropped.join();
    }
}

/// The connection ends when this is dropped.
pub(crate) struct Session {
    client: Client,
    pub(crate) pid: i32,
    connection: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Session {
    async fn connect(url: &str) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        Session { client, pid, connection }
    }

    /// The rows as text, with `|` between columns, or the SQLSTATE.
    pub(crate) async fn ask(&self, sql: &str) -> Result<String, String> {
        self.query(sql).await.map_err(|error| match error.as_db_error() {
            Some(error) => error.code().code().to_owned(),
            None => "connection".to_owned(),
        })
    }

    /// The rows of a statement that succeeds.
    pub(crate) async fn ok(&self, sql: &str) -> String {
        self.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    async fn query(&self, sql: &str) -> Result<String, tokio_postgres::Error> {
        let messages = self.client.simple_query(sql).await?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let columns: Vec<_> = (0..row.len()).map(|n| row.get(n).unwrap_or_default()).collect();
                Some(columns.join("|"))
            }
            _ => None,
        });
        Ok(rows.collect::<Vec<_>>().join("\n"))
    }

    /// The SQLSTATE of a statement that fails, which has a hint unless the class is 40 or 25.
    pub(crate) async fn fails(&self, sql: &str) -> String {
        match self.client.simple_query(sql).await {
            Ok(_) => panic!("{sql}: no error"),
            Err(error) => {
                let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
                let code = error.code().code();
                assert!(error.hint().is_some() || !matches!(&code[..2], "22"), "{sql}: {error:?}");
                code.to_owned()
            }
        }
    }

    /// Waits until the session `pid` waits for a lock.
    pub(crate) async fn until_blocked(&self, pid: i32) {
        let blocked = format!("SELECT cardinality(pg_blocking_pids({pid})) > 0");
        self.until(&blocked).await;
    }

    /// Makes everything due that waits in the queue, or is under a lease. A worker may set a mark at the same time, and no event below
    /// it may become due: so the transaction has its id before it reads the clock, as in the functions.
    pub(crate) async fn pass_time(&self) {
        self.ok(
            "SELECT pg_current_xact_id(); UPDATE outbox_router.inbox_queue SET due_at = clock_timestamp() WHERE due_at < 'infinity'",
        )
        .await;
    }

    /// Waits until a query returns true.
    pub(crate) async fn until(&self, sql: &str) {
        let start = Instant::now();
        while self.ok(sql).await != "t" {
            assert!(start.elapsed() < Duration::from_secs(180), "{sql}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
