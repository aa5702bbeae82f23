//! A separate database for each test, with the objects that `init` would create. Its topics go with it.

use pg_logical::Lsn;
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{Client, NoTls, Row};

use super::eventually::eventually;
use super::kafka_admin::discard_topics;
use super::shared;

/// The outbox table as documented, but with a default event type.
pub(crate) const TABLE: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, \
     aggregate_id text, event_type text NOT NULL DEFAULT 'happened', payload jsonb, \
     headers jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT clock_timestamp())";

/// The publication as `init` creates it.
pub(crate) const PUBLICATION: &str = "CREATE PUBLICATION outbox_router FOR TABLE outbox \
     WITH (publish = 'insert', publish_via_partition_root = true)";

/// The migrations that create the dead-letter table and the router's table of slots.
const DEAD_LETTERS: &str = include_str!("../../migrations/V2__dead_letters.sql");
const SLOTS: &str = include_str!("../../migrations/V3__slots.sql");

/// A database with its slot, and the topics on the shared broker that bear its name. All are deleted on drop.
pub(crate) struct Outbox {
    /// The name of the database and of the slot, and the beginning of every topic's name.
    pub(crate) name: String,
    server: String,
    client: Mutex<Option<Client>>,
}

/// The slot, as Postgres shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) confirmed: Lsn,
    /// The server process that reads the slot.
    pub(crate) active_pid: Option<i32>,
}

impl Outbox {
    /// A database with table, publication and slot on the shared server.
    pub(crate) async fn new() -> Self {
        Self::on(shared::postgres()).await
    }

    /// The same for a test that leaves transactions open.
    pub(crate) async fn with_long_transactions() -> Self {
        Self::on(shared::postgres_with_long_transactions()).await
    }

    /// The same on another server (a URL without a database).
    pub(crate) async fn on(server: &str) -> Self {
        Self::with_table(server, TABLE).await
    }

    /// The same with another definition of the table `outbox`.
    pub(crate) async fn with_table(server: &str, table: &str) -> Self {
        let outbox = Self::bare(server).await;
        outbox.execute(&format!("{table}; {PUBLICATION}")).await;
        outbox.create_slot("pgoutput").await;
        outbox
    }

    /// The same on another server, with the same names.
    pub(crate) async fn twin(&self, server: &str) -> Self {
        let twin = Self::named(server, self.name.clone()).await;
        twin.execute(&format!("{TABLE}; {PUBLICATION}")).await;
        twin.create_slot("pgoutput").await;
        twin
    }

    /// An empty database without a slot. `server` may have several hosts, separated by commas; then it is created on the primary.
    pub(crate) async fn bare(server: &str) -> Self {
        Self::named(server, shared::unique()).await
    }

    /// An empty database with this encoding on the shared server.
    pub(crate) async fn with_encoding(encoding: &str) -> Self {
        let (server, name) = (shared::postgres(), shared::unique());
        let create = format!(
            "CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        Self::created_by(server, name, &create).await
    }

    async fn named(server: &str, name: String) -> Self {
        let create = shared::create_database(&name);
        Self::created_by(server, name, &create).await
    }

    async fn created_by(server: &str, name: String, create: &str) -> Self {
        let administrator = connect(&url(server, "postgres")).await.unwrap();
        administrator.batch_execute(create).await.unwrap();
        Outbox { name, server: server.to_owned(), client: Mutex::default() }
    }

    /// Creates the slot and its row in the router's schema, as `init` does.
    pub(crate) async fn create_slot(&self, plugin: &str) {
        self.execute(&format!("CREATE SCHEMA IF NOT EXISTS outbox_router; {SLOTS}")).await;
        let sql = format!("SELECT pg_create_logical_replication_slot('{}', '{plugin}')", self.name);
        self.execute(&sql).await;
        let sql = format!(
            "INSERT INTO outbox_router.slots (slot, created_at) \
             SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{}' \
             ON CONFLICT (slot) DO UPDATE SET created_at = excluded.created_at, router = NULL",
            self.name
        );
        self.execute(&sql).await;
    }

    /// Creates the dead-letter table, as `init` does.
    pub(crate) async fn create_dead_letters_table(&self) {
        self.execute(&format!("CREATE SCHEMA IF NOT EXISTS outbox_router; {DEAD_LETTERS}")).await;
    }

    /// Creates the slot without a row in the router's schema.
    pub(crate) async fn create_slot_by_hand(&self) {
        self.execute(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", self.name))
            .await;
    }

    /// The superuser's URL, which the router uses too unless a test sets another.
    pub(crate) fn url(&self) -> String {
        url(&self.server, &self.name)
    }

    /// The server's host and port.
    pub(crate) fn address(&self) -> &str {
        self.server.rsplit_once('@').unwrap().1
    }

    /// The name of the topic of an aggregate type.
    pub(crate) fn topic(&self, aggregate_type: &str) -> String {
        format!("{}.{aggregate_type}", self.name)
    }

    /// A new connection.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await.unwrap()
    }

    /// The connection that this type's queries share. Reconnects if the server has closed it.
    async fn shared_client(&self) -> Result<MutexGuard<'_, Option<Client>>, tokio_postgres::Error> {
        let mut client = self.client.lock().await;
        if client.as_ref().is_none_or(Client::is_closed) {
            *client = Some(connect(&self.url()).await?);
        }
        Ok(client)
    }

    /// Runs statements, in one transaction unless they say otherwise.
    pub(crate) async fn execute(&self, sql: &str) {
        let client = self.shared_client().await.unwrap();
        client.as_ref().unwrap().batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Runs a query.
    pub(crate) async fn query(&self, sql: &str) -> Vec<Row> {
        self.try_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    async fn try_query(&self, sql: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
        let client = self.shared_client().await?;
        client.as_ref().unwrap().query(sql, &[]).await
    }

    /// `server_version_num`
    pub(crate) async fn server_version(&self) -> i32 {
        self.query("SELECT current_setting('server_version_num')::int").await[0].get(0)
    }

    /// Inserts one event and returns its id.
    pub(crate) async fn insert(&self, aggregate_type: &str, aggregate_id: &str, payload: &str) -> String {
        let client = self.shared_client().await.unwrap();
        let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, payload) VALUES ($1, $2, $3::text::jsonb) \
                   RETURNING id::text";
        let row = client.as_ref().unwrap().query_one(sql, &[&aggregate_type, &aggregate_id, &payload]).await;
        row.unwrap().get(0)
    }

    /// Inserts events of one aggregate, each in a transaction of its own, with the payload `{"n": number}`.
    pub(crate) async fn insert_numbers(
        &self,
        aggregate_type: &str,
        aggregate_id: &str,
        numbers: std::ops::Range<u32>,
    ) {
        for n in numbers {
            self.insert(aggregate_type, aggregate_id, &format!("{{\"n\": {n}}}")).await;
        }
    }

    /// The slot; `None` if it does not exist or the server does not answer.
    pub(crate) async fn slot(&self) -> Option<Slot> {
        let sql = format!(
            "SELECT confirmed_flush_lsn::text, active_pid FROM pg_replication_slots \
             WHERE slot_name = '{}' AND confirmed_flush_lsn IS NOT NULL",
            self.name
        );
        let rows = self.try_query(&sql).await.ok()?;
        let row = rows.first()?;
        Some(Slot { confirmed: row.get::<_, &str>(0).parse().unwrap(), active_pid: row.get(1) })
    }

    /// The slot's `confirmed_flush_lsn`.
    pub(crate) async fn confirmed(&self) -> Lsn {
        let what = format!("slot {} can be read", self.name);
        eventually(&what, async || self.slot().await).await.confirmed
    }

    /// The present end of the WAL on disk. Everything committed so far is before it. What other sessions have written and not flushed
    /// is not: it may stay so for long.
    pub(crate) async fn lsn(&self) -> Lsn {
        let rows = self.query("SELECT pg_current_wal_flush_lsn()::text").await;
        rows[0].get::<_, &str>(0).parse().unwrap()
    }

    /// Waits until the slot is confirmed past everything committed so far.
    pub(crate) async fn all_confirmed(&self) {
        let lsn = self.lsn().await;
        self.confirmed_past(lsn).await;
    }

    /// Waits until the slot is confirmed up to `lsn` at least.
    pub(crate) async fn confirmed_past(&self, lsn: Lsn) {
        let what = format!("slot {} is confirmed up to {lsn}", self.name);
        eventually(&what, async || self.slot().await.filter(|slot| slot.confirmed >= lsn)).await;
    }

    /// Creates a second slot, which never moves. [`Outbox::commit`] reads from it where a transaction ends.
    pub(crate) async fn create_witness(&self) {
        let sql =
            format!("SELECT pg_create_logical_replication_slot('{}_witness', 'test_decoding')", self.name);
        self.execute(&sql).await;
    }

    /// Runs statements in one transaction and returns its `end_lsn`. Needs [`Outbox::create_witness`].
    pub(crate) async fn commit(&self, sql: &str) -> Lsn {
        let mut client = self.client().await;
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let xid: String =
            transaction.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
        transaction.commit().await.unwrap();
        let rows = self
            .query(&format!(
                "SELECT lsn::text FROM pg_logical_slot_peek_changes('{}_witness', NULL, NULL) \
                 WHERE data = 'COMMIT {}'",
                self.name,
                // the WAL has only the lower 32 bits
                xid.parse::<u64>().unwrap() & 0xFFFF_FFFF
            ))
            .await;
        rows[0].get::<_, &str>(0).parse().unwrap()
    }

    /// Waits for three queries of the catalogue watch. By then the router has had time to confirm everything acknowledged so far.
    pub(crate) async fn watched(&self) {
        let last_query = "SELECT coalesce(max(query_start), 'epoch')::text FROM pg_stat_activity \
                     WHERE datname = current_database() AND application_name LIKE '% watch'";
        let mut last = self.query(last_query).await[0].get::<_, String>(0);
        for _ in 0..3 {
            last = eventually("the catalogue watch runs another query", async || {
                Some(self.query(last_query).await[0].get::<_, String>(0))
                    .filter(|now| *now > last && now != "epoch")
            })
            .await;
        }
    }

    /// Waits until a server process other than `pid` holds the slot's lock, and returns it.
    pub(crate) async fn locked_by_other_than(&self, pid: i32) -> i32 {
        eventually("another server process holds the slot's lock", async || {
            self.lock_holder().await.filter(|holder| *holder != pid)
        })
        .await
    }

    /// The server process that holds the slot's lock.
    pub(crate) async fn lock_holder(&self) -> Option<i32> {
        let sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        Some(self.query(sql).await.first()?.get(0))
    }

    /// Waits until a walsender reads the slot, and returns its process.
    pub(crate) async fn active_pid(&self) -> i32 {
        let what = format!("slot {} is read", self.name);
        eventually(&what, async || self.slot().await?.active_pid).await
    }

    /// Waits until a session is blocked by the advisory lock that serializes the writers of parked events.
    pub(crate) async fn session_waits_for_advisory_lock(&self) {
        let waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        eventually("a session waits for the advisory lock", async || self.query(waits).await.pop()).await;
    }

    /// Waits until nobody reads the slot.
    pub(crate) async fn released(&self) {
        let what = format!("nobody reads slot {}", self.name);
        eventually(&what, async || self.slot().await.filter(|slot| slot.active_pid.is_none())).await;
    }
}

fn url(server: &str, database: &str) -> String {
    let wanted = if server.contains(',') { "?target_session_attrs=read-write" } else { "" };
    format!("{server}/{database}{wanted}")
}

/// Connects, and runs the connection in the background.
pub(crate) async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // if the connection ends, the client's next query fails
    tokio::spawn(async move { connection.await.ok() });
    Ok(client)
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // the test's runtime runs on this thread, which must not block on it
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(discard(&server, &name))
        });
        let dropped = dropped.join();
        if !std::thread::panicking() {
            dropped.unwrap().unwrap();
        }
    }
}

async fn discard(server: &str, name: &str) -> Result<(), tokio_postgres::Error> {
    let administrator = connect(&url(server, "postgres")).await?;
    let slots =
        "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE database = $1";
    let drop_slots =
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1";
    eventually(&format!("the slots of {name} can be dropped"), async || {
        administrator.execute(slots, &[&name]).await.ok();
        administrator.execute(drop_slots, &[&name]).await.ok()
    })
    .await;
    // a session that is just starting has locked the database, and may wait for a lock that a failed test has left
    let sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1";
    administrator.execute(sessions, &[&name]).await?;
    // FORCE gives up if a process of another session does not end within five seconds
    let drop_database = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    eventually(&drop_database, async || administrator.batch_execute(&drop_database).await.ok()).await;
    // topics that remain only cost time
    discard_topics(name).await.ok();
    Ok(())
}
