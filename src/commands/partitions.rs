//! What `run` does about a partitioned outbox for which `init --partitioned` was run: it creates partitions before they are needed.

use std::time::Duration;

use pg_logical::PgTimestamp;
use pg_logical::connect::Startup;
use pg_logical::session::Session;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::connect;
use super::hourly::{Pass, all_active, repeat, warn};
use super::times::now;
use crate::config::{Config, TableName};
use crate::error::Error;
use crate::monitor::{CountedPartitions, Monitor};
use crate::postgres::partitions::{Partitions, are_managed, count_partitions, create_next};

/// How long partitions wait for a router that does not deliver.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// Creates partitions until `stop`, or until the handle is dropped. The first of the monitors of this process is told about it.
pub(super) fn start(
    config: &Config,
    monitors: Vec<Monitor>,
    stop: CancellationToken,
) -> Option<AbortOnDropHandle<()>> {
    // a table that is polled has no partitions
    if config.polling.is_some() || config.outbox.tables.is_empty() {
        return None;
    }
    let upkeep = Upkeep { config: config.clone(), monitor: monitors.first()?.clone(), monitors, stop };
    Some(AbortOnDropHandle::new(tokio::spawn(async move { repeat(&upkeep, &upkeep.stop).await })))
}

struct Upkeep {
    config: Config,
    monitor: Monitor,
    monitors: Vec<Monitor>,
    stop: CancellationToken,
}

impl Pass for Upkeep {
    /// Routers that wait for a broker do not keep partitions from being created.
    async fn ready(&self) {
        let _ = timeout(LONGEST_WAIT, all_active(&self.monitors)).await;
    }

    async fn perform(&self) -> Result<(), Error> {
        let connecting = connect(&self.config, "partitions", Startup::default());
        let Some(connected) = self.stop.run_until_cancelled(connecting).await else { return Ok(()) };
        let mut session = connected.map_err(Error::without_router)?;
        let mut failed = None;
        for table in &self.config.outbox.tables {
            // the other tables do not have to wait
            if let Err(error) = self.of_table(&mut session, table).await {
                failed = failed.or(Some(error));
            }
        }
        session.close().await;
        failed.map_or(Ok(()), |error| Err(error.without_router()))
    }

    fn log(&self, error: &Error) {
        warn("partitions of the outbox are not created", error);
    }
}

impl Upkeep {
    async fn of_table(&self, session: &mut Session, table: &TableName) -> Result<(), Error> {
        if !are_managed(session, table).await? {
            return Ok(());
        }
        let created = self.create(session, table).await;
        // also if none can be created, because somebody has to know
        let now = now(session).await?;
        let counted = count_partitions(session, &table.in_sql(), now).await;
        let counted = counted.map(|Partitions { begins, in_default, .. }| {
            let begins = begins.into_iter().map(PgTimestamp::from_unix_micros).collect();
            self.monitor.counted_partitions(table.to_string(), CountedPartitions { begins, in_default });
        });
        created.and(counted)
    }

    async fn create(&self, session: &mut Session, table: &TableName) -> Result<(), Error> {
        while !self.stop.is_cancelled() {
            match create_next(session, &table.in_sql()).await? {
                Some(name) => tracing::info!("created the partition {name} of {table}"),
                None => break,
            }
        }
        Ok(())
    }
}
