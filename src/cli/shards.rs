//! `shards`, and the option with which other commands choose one.

use clap::{Args, Subcommand};

use super::UrlArgs;

pub(super) const HELP: &str = "\
An outbox can be read by several slots at once, each with the aggregates of one shard (`count` in [shards]). An aggregate \
must not be sent by two of them, so the number is changed at one position of the log: events committed before it are delivered \
from the old slots, and later events from the new ones. Applications can keep writing.

  1. Set the new `count`, and run `outbox-router init`, which creates the new publications and slots.
  2. Stop every router with the old number.
  3. Run `outbox-router shards change --from NUMBER`: it delivers the events of the old slots up to the present end of the log, \
hands over, and drops the old slots.
  4. Start the routers with the new number.

While a server is unreachable the command waits, as `run` does, and logs why. If it is interrupted, even with Ctrl-C, run it again. \
Parked events must be retried or discarded first.

Exit codes:
  0  done, or with --dry-run: shown
  1  a server refuses or cannot be reached, or an object that `init` creates is missing
  2  usage or configuration
  3  events could be lost or sent twice: a slot is missing or was moved, or events are parked

Examples:
  outbox-router shards change --from 1 --dry-run
  outbox-router shards change --from 2";

/// `--shard`
#[derive(Debug, Clone, Args)]
pub struct ShardArgs {
    /// Only this shard; may be repeated [default: those of `[shards] only`, else all]
    #[arg(long = "shard", value_name = "NUMBER", global = true)]
    pub chosen: Vec<u32>,
}

/// `shards ...`
#[derive(Debug, Subcommand)]
pub enum ShardsCommand {
    /// Hand over from another number of shards to the configured number
    Change {
        /// The previous number of shards; 1 means without shards
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
        from: u32,
        /// Only show what would be done
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// How to connect.
        #[command(flatten)]
        connection: UrlArgs,
    },
}
