//! The servers of the measurements, a slot for each run, and a router with its own name, topic and mode.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use outbox_router::config::DeliveryMode;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::stage::router::Router;

/// The default number of partitions per topic.
pub(crate) const PARTITIONS: u32 = 6;
/// The slot that `init` creates, which no router reads.
const SLOT_OF_INIT: &str = "of_init";
/// How long a slot may stay active after its router has ended.
const SLOT_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The id of an event.
pub(crate) type Id = u128;

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) mode: DeliveryMode,
    /// The name of the router and its slot.
    pub(crate) name: String,
    /// A template as in `[route] topic`; by default the name.
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    /// The router's URL of Postgres, if it differs from the ground's.
    pub(crate) postgres: Option<String>,
    /// Additional lines of the router's configuration.
    pub(crate) settings: String,
    /// The number of shards.
    pub(crate) shards: u32,
}

impl Run {
    pub(crate) fn new(part: &str, mode: DeliveryMode, number: u32) -> Self {
        let name = format!("{part}-{}-{number}", mode.name());
        let (topic, settings) = (name.clone(), String::new());
        Run { mode, name, topic, partitions: PARTITIONS, postgres: None, settings, shards: 1 }
    }

    /// The name of the slot: the name with underscores.
    pub(crate) fn slot(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The slots of all shards.
    pub(crate) fn slots(&self) -> Vec<String> {
        match self.shards {
            1 => vec![self.slot()],
            of => (0..of).map(|number| format!("{}_{number}_of_{of}", self.slot())).collect(),
        }
    }
}

/// The servers, the program, and the folder for the routers' files.
pub(crate) struct Ground {
    program: PathBuf,
    folder: PathBuf,
    pub(crate) url: String,
    pub(crate) brokers: String,
    pub(crate) client: Client,
}

impl Ground {
    /// Creates the table and the publication.
    pub(crate) async fn prepare(
        program: &Path,
        folder: &Path,
        url: &str,
        brokers: &str,
    ) -> anyhow::Result<Self> {
        let client = connect(url).await?;
        let ground = Ground {
            program: program.to_owned(),
            folder: folder.to_owned(),
            url: url.to_owned(),
            brokers: brokers.to_owned(),
            client,
        };
        let settings = format!("postgres.slot = \"{SLOT_OF_INIT}\"\ndead_letters.policy = \"park\"\n");
        Router::new(program, &folder.join("init"), url, brokers, &settings)?.init().await?;
        // it would retain the WAL of all measurements
        ground.drop_slot(SLOT_OF_INIT).await?;
        Ok(ground)
    }

    /// Creates the publications of `count` shards, for slots that are created later.
    pub(crate) async fn prepare_shards(&self, count: u32) -> anyhow::Result<()> {
        let run = Run { shards: count, ..Run::new("of-init", DeliveryMode::AtLeastOnce, count) };
        self.router(&run, "only")?.init().await?;
        for slot in run.slots() {
            self.drop_slot(&slot).await?;
        }
        Ok(())
    }

    /// The output of `outbox-router --version`.
    pub(crate) async fn router_version(&self) -> anyhow::Result<String> {
        let router = Router::new(&self.program, &self.folder.join("init"), &self.url, &self.brokers, "")?;
        Ok(router.run_command(&["--version"]).await?.trim().to_owned())
    }

    /// A router for `run`, with its files in a folder named `seat`. Does not start it.
    pub(crate) fn router(&self, run: &Run, seat: &str) -> anyhow::Result<Router> {
        let Run { mode, name, topic, partitions, postgres, settings, shards } = run;
        let settings = format!(
            "name = \"{name}\"\npostgres.slot = \"{slot}\"\nroute.topic = \"{topic}\"\n\
             topics.partitions = {partitions}\ndelivery.mode = \"{mode}\"\nshards.count = {shards}\n{settings}",
            slot = run.slot(),
            mode = mode.name(),
        );
        let folder = self.folder.join(&run.name).join(seat);
        Router::new(
            &self.program,
            &folder,
            postgres.as_deref().unwrap_or(&self.url),
            &self.brokers,
            &settings,
        )
    }

    /// Creates a slot at the present position.
    pub(crate) async fn create_slot(&self, slot: &str) -> anyhow::Result<()> {
        let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        self.client.query(sql, &[&slot]).await.with_context(|| format!("create the slot {slot}"))?;
        self.record_new_slot(slot).await
    }

    /// Copies a slot with its position.
    pub(crate) async fn copy_slot(&self, from: &str, slot: &str) -> anyhow::Result<()> {
        let sql = "SELECT pg_copy_logical_replication_slot($1, $2)";
        let copied = self.client.query(sql, &[&from, &slot]).await;
        copied.with_context(|| format!("copy the slot {from}"))?;
        self.record_new_slot(slot).await
    }

    /// Records a new slot in the router's schema, as `init` does. In exactly-once the router refuses a slot that may have been
    /// read.
    async fn record_new_slot(&self, slot: &str) -> anyhow::Result<()> {
        let sql = "INSERT INTO outbox_router.slots (slot, created_at) \
                   SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1 \
                   ON CONFLICT (slot) DO UPDATE SET created_at = excluded.created_at, router = NULL";
        self.client.execute(sql, &[&slot]).await.context("write outbox_router.slots")?;
        Ok(())
    }

    /// Whether the slot is active.
    pub(crate) async fn is_read(&self, slot: &str) -> anyhow::Result<bool> {
        let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.client.query_opt(sql, &[&slot]).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
    }

    pub(crate) async fn drop_slot(&self, slot: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + SLOT_RELEASE_TIMEOUT;
        loop {
            match self.client.query("SELECT pg_drop_replication_slot($1)", &[&slot]).await {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(50)).await,
                Err(error) => return Err(error).with_context(|| format!("drop the slot {slot}")),
            }
        }
    }

    /// The ids of the events written for the run.
    pub(crate) async fn rows_of(&self, run: &Run) -> anyhow::Result<HashSet<Id>> {
        self.rows_of_type(&run.name).await
    }

    pub(crate) async fn rows_of_type(&self, aggregate_type: &str) -> anyhow::Result<HashSet<Id>> {
        self.rows_but_for(aggregate_type, &[]).await
    }

    /// The ids of the type's events, except those of some aggregates.
    pub(crate) async fn rows_but_for(
        &self,
        aggregate_type: &str,
        aggregates: &[String],
    ) -> anyhow::Result<HashSet<Id>> {
        let sql = "SELECT id::text FROM outbox WHERE aggregate_type = $1 AND aggregate_id <> ALL ($2)";
        let rows = self.client.query(sql, &[&aggregate_type, &aggregates]).await;
        let rows = rows.context("read the outbox table")?;
        rows.iter().map(|row| id(row.try_get(0)?)).collect()
    }
}

/// Connects. The connection runs as a task until the client is dropped.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to Postgres")?;
    // the client's next query reports its error
    tokio::spawn(connection);
    Ok(client)
}

/// Parses a `uuid` as Postgres prints it.
pub(crate) fn id(text: &str) -> anyhow::Result<Id> {
    Id::from_str_radix(&text.replace('-', ""), 16).with_context(|| format!("the id {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_ids_as_postgres_prints_them() -> anyhow::Result<()> {
        assert_eq!(id("00000000-0000-0000-0000-0000000000ff")?, 255);
        assert!(id("").is_err());
        Ok(())
    }

    #[test]
    fn slot_name_is_valid_in_postgres() {
        let run = Run::new("catch-up", DeliveryMode::ExactlyOnce, 3);
        assert_eq!(
            (run.topic.as_str(), run.slot().as_str()),
            ("catch-up-exactly-once-3", "catch_up_exactly_once_3")
        );
    }
}
