//! What was decided, in one record of the positions topic: from then on the new shards begin at this position of the log,
//! whatever ends the command that hands over.

use std::sync::Arc;

use crate::commands::kept::Kept;
use crate::config::Config;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::progress::Position;
use crate::sink::kafka::positions::look_up;

/// The record's slot where nothing is under way.
const DONE: &str = "done";

/// The key of the record is that of a router, which it is not: shards have numbers.
fn of(config: &Config) -> Config {
    Config { name: format!("{}/shards", config.name), ..config.clone() }
}

fn slot(config: &Config) -> String {
    format!("{}_of_{}", config.slot_of_all(), config.shards.count)
}

/// Where the shards of `config` begin, if it was decided and is not done yet. Without a positions topic nothing is known.
pub(super) async fn read(config: &Config) -> Result<Option<Lsn>, Error> {
    let Some(topic) = &config.delivery.positions_topic else { return Ok(None) };
    let written = look_up(&of(config), topic).await?;
    Ok(written.filter(|written| written.slot == slot(config)).map(|written| written.position.flush))
}

/// The shards of `config` begin at this position.
pub(super) async fn decide(config: &Config, at: Lsn) -> Result<(), Error> {
    write(config, slot(config), at).await
}

/// They have begun, and nothing is left of the others.
pub(super) async fn done(config: &Config, at: Lsn) -> Result<(), Error> {
    write(config, DONE.to_owned(), at).await
}

async fn write(config: &Config, slot: String, at: Lsn) -> Result<(), Error> {
    let mut plan = of(config);
    plan.postgres.slot = slot;
    let plan = Arc::new(plan);
    let mut kept = Kept::look(&plan).await?;
    kept.open(&plan).await?;
    kept.read().await?;
    kept.write(&plan, Position { flush: at, partial: None }, None, None).await?;
    kept.close().await;
    Ok(())
}
