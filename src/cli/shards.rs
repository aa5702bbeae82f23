//! `shards`, and the option with which other commands choose one.

use clap::{Args, Subcommand};

pub(super) const HELP: &str = "\
An outbox can be read by several slots at once, each with the aggregates of one shard (`count` in [shards]). An aggregate \
must not be sent by two of them, so the number is changed by handing over at one position of the log: what was committed \
before it is delivered from the old slots, what comes after it from the new ones. Applications go on writing.

  1. Set the new `count`, and run `outbox-router init`: it makes the new publications and slots.
  2. Stop every router with the old number.
  3. Run `outbox-router shards change --from NUMBER`: it delivers what the old slots hold up to the present end of the log, \
hands over, and drops the old slots.
  4. Start the routers with the new number.

Where a server is away it waits, as `run` does, and says so. Cut off anywhere, also with Ctrl-C, it is run again. Parked events \
have to be decided before.

Exit codes:
  0  done, or with --dry-run: shown
  1  a server refuses or cannot be reached, or something is missing that `init` makes
  2  usage or configuration
  3  events could be lost or sent twice: a slot is missing or was moved, or events are parked

Examples:
  outbox-router shards change --from 1 --dry-run
  outbox-router shards change --from 2";

/// `--shard`
#[derive(Debug, Clone, Args)]
pub struct ShardArgs {
    /// Only this one of the shards; may be repeated [default: those of `[shards] only`, else all]
    #[arg(long = "shard", value_name = "NUMBER", global = true)]
    pub chosen: Vec<u32>,
}

/// `shards ...`
#[derive(Debug, Subcommand)]
pub enum ShardsCommand {
    /// Hand over from another number of shards to the one that the configuration says
    Change {
        /// The number that there was; 1: there were no shards
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
        from: u32,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}
