//! A database for each case, with a slot for each side.

use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use crate::case::{Case, Place};

/// How long a slot may take to be taken or released.
const SLOT_WITHIN: Duration = Duration::from_secs(30);

/// The server of the databases.
pub(crate) struct Server {
    config: Config,
    host: String,
    port: u16,
    user: String,
}

impl Server {
    /// Does not connect yet.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let config: Config = url.parse().context("parse the connection string")?;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            _ => anyhow::bail!("Debezium connects by TCP: give a connection string with a host"),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let user = config.get_user().unwrap_or("postgres").to_owned();
        Ok(Server { config, host, port, user })
    }

    /// Deletes the remains of an earlier run, and creates the case's database with its tables and both slots.
    pub(crate) async fn create(&self, case: &Case) -> anyhow::Result<Database> {
        let database = self.create_without_slots(case).await?;
        for slot in &database.slots {
            let make = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
            let client = database.client.as_ref().context("no connection to the case's database")?;
            client.execute(make, &[slot]).await.with_context(|| format!("create the slot {slot}"))?;
        }
        Ok(database)
    }

    /// The same without slots, which the readers create.
    pub(crate) async fn create_without_slots(&self, case: &Case) -> anyhow::Result<Database> {
        let name = case.identifier();
        let admin = connect(&self.config).await?;
        let mut database = Database {
            slots: [format!("{name}_debezium"), format!("{name}_router")],
            host: self.host.clone(),
            port: self.port,
            user: self.user.clone(),
            client: None,
            admin,
            name,
        };
        database.remove().await?;
        database
            .admin
            .batch_execute(&format!("CREATE DATABASE {}", database.name))
            .await
            .context("create a database")?;
        let client = self.connect_to(&database.name).await?;
        client.batch_execute(&case.table).await.map_err(in_words).context("run table.sql")?;
        database.client = Some(client);
        Ok(database)
    }

    /// Opens another connection to a case's database.
    pub(crate) async fn connect_to(&self, database: &str) -> anyhow::Result<Client> {
        connect(self.config.clone().dbname(database)).await
    }
}

/// The position of a slot, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) restart: i64,
    pub(crate) confirmed_flush: i64,
}

/// One case's database.
pub(crate) struct Database {
    pub(crate) name: String,
    host: String,
    port: u16,
    user: String,
    /// Debezium's slot, and the router's.
    slots: [String; 2],
    admin: Client,
    client: Option<Client>,
}

impl Database {
    /// Debezium's slot.
    pub(crate) fn debezium_slot(&self) -> &str {
        let [slot, _] = &self.slots;
        slot
    }

    /// The router's slot.
    pub(crate) fn router_slot(&self) -> &str {
        let [_, slot] = &self.slots;
        slot
    }

    /// The values of the placeholders in a connector's file.
    pub(crate) fn place<'a>(&'a self, slot: &'a str) -> Place<'a> {
        Place { host: &self.host, port: self.port, user: &self.user, database: &self.name, slot }
    }

    /// Runs the case's rows.sql.
    pub(crate) async fn insert_rows(&self, case: &Case) -> anyhow::Result<()> {
        let client = self.client.as_ref().context("no connection to the case's database")?;
        client.batch_execute(&case.rows).await.map_err(in_words).context("run rows.sql")
    }

    /// Whether the slot exists and is active.
    pub(crate) async fn is_read(&self, slot: &str) -> anyhow::Result<bool> {
        let active = "SELECT count(*) > 0 FROM pg_replication_slots WHERE slot_name = $1 AND active";
        Ok(self.admin.query_one(active, &[&slot]).await.context("query the slot")?.try_get(0)?)
    }

    /// The position of the slot, which must exist.
    pub(crate) async fn position(&self, slot: &str) -> anyhow::Result<Position> {
        let position = "SELECT (restart_lsn - '0/0')::bigint, (confirmed_flush_lsn - '0/0')::bigint \
                        FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.admin.query_one(position, &[&slot]).await.context("query the slot")?;
        Ok(Position { restart: row.try_get(0)?, confirmed_flush: row.try_get(1)? })
    }

    /// The end of the server's log.
    pub(crate) async fn written(&self) -> anyhow::Result<i64> {
        let written = "SELECT (pg_current_wal_lsn() - '0/0')::bigint";
        Ok(self.admin.query_one(written, &[]).await.context("query the end of the log")?.try_get(0)?)
    }

    /// Logs a snapshot of running transactions, which lets a slot's restart position advance.
    pub(crate) async fn checkpoint(&self) -> anyhow::Result<()> {
        self.admin.batch_execute("CHECKPOINT").await.context("run CHECKPOINT")
    }

    /// Waits until the slot is inactive.
    pub(crate) async fn released(&self, slot: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + SLOT_WITHIN;
        while self.is_read(slot).await? {
            anyhow::ensure!(Instant::now() < deadline, "the slot {slot} was not released");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Deletes slots and database.
    pub(crate) async fn drop(mut self) -> anyhow::Result<()> {
        self.client = None;
        self.remove().await
    }

    async fn remove(&self) -> anyhow::Result<()> {
        let known = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name = ANY($1)";
        let slots = self.slots.as_slice();
        for row in self.admin.query(known, &[&slots]).await.context("list the slots")? {
            let slot: &str = row.try_get(0)?;
            self.released(slot).await?;
            self.admin
                .execute("SELECT pg_drop_replication_slot($1)", &[&slot])
                .await
                .context("drop a slot")?;
        }
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        self.admin.batch_execute(&drop).await.context("drop a database")
    }
}

async fn connect(config: &Config) -> anyhow::Result<Client> {
    let (client, connection) = config.connect(NoTls).await.context("connect to Postgres")?;
    tokio::spawn(connection);
    Ok(client)
}

/// The server's message, which the client's error does not show.
fn in_words(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(said) => anyhow::anyhow!("{said}"),
        None => error.into(),
    }
}
