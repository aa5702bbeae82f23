//! Stores why the router has stopped, so that `check` can say it before the next start finds it again.

use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::{Checkpoint, Stopped};
use crate::config::Config;
use crate::error::Definite;
use crate::sink::kafka::checkpoint_topic::CheckpointTopic;

/// How long Kafka may take. The exit code matters more.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Adds the reason to the last checkpoint. It keeps its epoch, so it does not count if a standby has begun meanwhile.
pub(super) async fn store(config: &Arc<Config>, last: &Checkpoint, why: &Definite) {
    let Definite { code, what, remedy, .. } = why;
    let stopped = Some(Stopped { code: *code, what: what.clone(), remedy: remedy.clone() });
    let checkpoint = Checkpoint { stopped, ..last.clone() };
    let stored = async {
        let Some(mut topic) = CheckpointTopic::open(config).await? else { return Ok(()) };
        let stored = topic.begin(&checkpoint).await;
        topic.close().await;
        stored
    };
    match tokio::time::timeout(TIMEOUT, stored).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(peer = "kafka", %error, "the reason of the stop is not stored"),
        Err(_) => tracing::debug!(peer = "kafka", "the reason of the stop is not stored in time"),
    }
}
