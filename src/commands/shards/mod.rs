//! `shards`: changes the number of shards.

mod change;
mod drain;
mod plan;

use crate::cli::shards::ShardsCommand;
use crate::config::Config;
use crate::error::Error;

/// Runs the subcommand.
///
/// # Errors
/// A server refuses or cannot be reached, or events could be lost or sent twice.
pub async fn shards(config: &Config, command: &ShardsCommand) -> Result<(), Error> {
    let ShardsCommand::Change { from, dry_run, json, .. } = *command;
    change::change(config, from, dry_run, json).await
}
