//! A database of its own for each case, with a slot for each side.

use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

use crate::case::{Case, Place};

/// How long a slot may take to be taken or released.
const SLOT_WITHIN: Duration = Duration::from_secs(30);

/// The server that databases are made in.
pub(crate) struct Server {
    config: Config,
    host: String,
    port: u16,
    user: String,
}

impl Server {
    /// Connects to nothing yet.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let config: Config = url.parse().context("understand the connection string")?;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            _ => anyhow::bail!("Debezium connects by TCP: give a connection string with a host"),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let user = config.get_user().unwrap_or("postgres").to_owned();
        Ok(Server { config, host, port, user })
    }

    /// Makes the case's database with its tables and both slots. What is left of an earlier run goes first.
    pub(crate) async fn create(&self, case: &Case) -> anyhow::Result<Database> {
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
        let client = connect(self.config.clone().dbname(&database.name)).await?;
        client.batch_execute(&case.table).await.map_err(in_words).context("run table.sql")?;
        for slot in &database.slots {
            let make = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
            client.execute(make, &[slot]).await.with_context(|| format!("create the slot {slot}"))?;
        }
        database.client = Some(client);
        Ok(database)
    }
}

/// One case's database.
pub(crate) struct Database {
    pub(crate) name: String,
    host: String,
    port: u16,
    user: String,
    /// Debezium's, and the router's.
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

    /// For the placeholders of a connector's file.
    pub(crate) fn place<'a>(&'a self, slot: &'a str) -> Place<'a> {
        Place { host: &self.host, port: self.port, user: &self.user, database: &self.name, slot }
    }

    /// Runs the case's rows.sql.
    pub(crate) async fn insert_rows(&self, case: &Case) -> anyhow::Result<()> {
        let client = self.client.as_ref().context("no connection to the case's database")?;
        client.batch_execute(&case.rows).await.map_err(in_words).context("run rows.sql")
    }

    /// Whether somebody reads from the slot.
    pub(crate) async fn is_read(&self, slot: &str) -> anyhow::Result<bool> {
        let active = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
        Ok(self.admin.query_one(active, &[&slot]).await.context("look at the slot")?.try_get(0)?)
    }

    /// Waits until nobody reads from the slot any more.
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

/// The server's own message, which the client's error keeps to itself.
fn in_words(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(said) => anyhow::anyhow!("{said}"),
        None => error.into(),
    }
}
