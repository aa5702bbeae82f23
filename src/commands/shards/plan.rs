//! The recorded handover position, a record of the positions topic. Once it is written, the new shards begin there even if
//! the command is interrupted.

use std::sync::Arc;

use pg_logical::Lsn;

use crate::checkpoint::{Handover, handover_subject};
use crate::commands::stored_position::StoredPosition;
use crate::config::Config;
use crate::error::Error;
use crate::progress::Position;
use crate::sink::kafka::checkpoint_topic::look_up;

/// The progress of the change to the shards of `config`.
pub(super) async fn read(config: &Config) -> Result<Option<Handover>, Error> {
    let record = look_up(&config.for_handover(), None).await?;
    Ok(Handover::to(record.as_ref(), config.base_slot(), config.shards.count))
}

/// Records that the shards of `config` begin at this position or, if `done`, that they have begun and the old slots are
/// dropped.
pub(super) async fn write(config: &Config, at: Lsn, done: bool) -> Result<(), Error> {
    let mut plan = config.for_handover();
    plan.postgres.slot = handover_subject(config.base_slot(), config.shards.count, done);
    let plan = Arc::new(plan);
    let mut stored = StoredPosition::load(&plan).await?;
    stored.open(&plan).await?;
    stored.read_again().await?;
    stored.write(&plan, Position { flush: at, partial: None }, None, None).await?;
    stored.close().await;
    Ok(())
}
