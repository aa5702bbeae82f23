//! Debezium's side of a case.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep};

use crate::case::Case;
use crate::connect::{Task, Worker};
use crate::database::Database;
use crate::outcome::Outcome;
use crate::topics::Broker;

/// How long the connector may take to start reading, and then the last row to arrive.
const WITHIN: Duration = Duration::from_secs(90);

/// Starts Debezium, writes the rows, and waits until the last has arrived or Debezium has failed.
pub(crate) async fn run(
    case: &Case,
    database: &Database,
    broker: &Broker,
    worker: &mut Worker,
) -> anyhow::Result<Outcome> {
    let slot = database.debezium_slot();
    let name = &database.name;
    worker.create(name, &case.connector(&database.place(slot))).await?;
    let outcome = until_the_last_row(case, database, broker, worker, name).await;
    worker.delete(name).await?;
    database.released(slot).await?;
    Ok(Outcome { stored: broker.read_settled().await?, ..outcome? })
}

async fn until_the_last_row(
    case: &Case,
    database: &Database,
    broker: &Broker,
    worker: &mut Worker,
    name: &str,
) -> anyhow::Result<Outcome> {
    let deadline = Instant::now() + WITHIN;
    while !database.is_read(database.debezium_slot()).await? {
        if let Task::Failed(why) = worker.task(name).await? {
            return Ok(Outcome { stored: Vec::new(), failure: Some(why) });
        }
        ensure!(Instant::now() < deadline, "Debezium does not read its slot");
        sleep(Duration::from_millis(50)).await;
    }
    database.insert_rows(case).await?;
    let deadline = Instant::now() + WITHIN;
    loop {
        let task = worker.task(name).await?;
        let stored = broker.read()?;
        if stored.iter().any(|stored| stored.record.id() == Some(&case.settings.last_id)) {
            return Ok(Outcome { stored, failure: None });
        }
        if let Task::Failed(why) = task {
            return Ok(Outcome { stored, failure: Some(why) });
        }
        if Instant::now() > deadline {
            return Ok(Outcome { stored, failure: Some("the last row did not arrive".to_owned()) });
        }
        sleep(Duration::from_millis(100)).await;
    }
}
