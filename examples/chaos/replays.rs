//! Replays of rows, which go on while faults happen.

use std::collections::HashSet;
use std::time::Duration;

use tokio::process::Child;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::stage::router::AdminCommands;

/// How long the end of the campaign waits for a replay.
const LAST: Duration = Duration::from_secs(30);

/// The replay that was started last.
#[derive(Debug, Default)]
pub(crate) struct Replays {
    running: Option<Child>,
}

impl Replays {
    /// Starts a replay, unless one is running. Returns whether it did.
    pub(crate) fn start(&mut self, commands: &AdminCommands, arguments: &[&str]) -> std::io::Result<bool> {
        if let Some(running) = &mut self.running
            && running.try_wait()?.is_none()
        {
            return Ok(false);
        }
        self.running = Some(commands.start(arguments)?);
        Ok(true)
    }

    /// Waits for it, but not for long: it may have been told to be slow.
    pub(crate) async fn finish(&mut self) {
        if let Some(mut running) = self.running.take()
            && timeout(LAST, running.wait()).await.is_err()
        {
            // it has ended by itself meanwhile, or dropping it kills it
            let _ = running.kill().await;
        }
    }
}

/// The replay headers of all replays.
pub(crate) async fn marks(postgres: &Client) -> Result<HashSet<String>, tokio_postgres::Error> {
    let rows = postgres.query("SELECT mark FROM outbox_router.replays", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
