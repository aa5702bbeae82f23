//! `slot`

use clap::{Args, Subcommand};
use pg_logical::Lsn;

use super::shards::ShardArgs;

pub(super) const HELP: &str = "\
The position is kept twice: in the slot, and in the topic that `positions_topic` in [delivery] names. These commands move \
both, and so that the router goes on rightly if they are cut off in the middle. One that runs lets go of the slot, and goes \
on at the new position by itself; no restart is needed.

A bookmark is a copy of the slot that stays where it is. Postgres keeps the log from there on until it is dropped: have an \
eye on `list`. `[bookmarks] every` makes them by itself and drops the oldest.

What a reset sends again bears the header outbox-router-replay, with the time of the reset.

Exit codes:
  0  done, or with --dry-run: shown
  1  a server refuses or cannot be reached, or there is no such bookmark
  2  usage or configuration
  3  the slot is missing, foreign or lost

Examples:
  outbox-router slot list
  outbox-router slot bookmark before_import
  outbox-router slot reset --to before_import --dry-run
  outbox-router slot reset --to 14:05
  outbox-router slot advance --to 16/B374D849    as a message of the router says";

/// `slot`
#[derive(Debug, Args)]
pub struct SlotArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SlotCommand,

    /// Which shards.
    #[command(flatten)]
    pub shards: ShardArgs,
}

/// What to do with the position.
#[derive(Debug, Subcommand)]
pub enum SlotCommand {
    /// Show the slot, what is remembered of it, and its bookmarks
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a bookmark where the slot is now: a copy to go back to
    Bookmark {
        /// What to call it: lower-case letters, digits and underscores
        name: String,
    },
    /// Drop a bookmark, so that Postgres need not keep the log from there any longer
    Drop {
        /// The bookmark, as `list` shows it
        name: String,
    },
    /// Go back to a bookmark: what was committed since then is sent again
    Reset {
        /// The bookmark's name, or a time in UTC such as 14:05 or 2026-11-21T14:05: the last bookmark made by then
        #[arg(long, value_name = "NAME|TIME")]
        to: String,
        /// How.
        #[command(flatten)]
        how: MoveArgs,
    },
    /// Leave out what was committed before a position and not sent yet
    Advance {
        /// The position to go on at
        #[arg(long, value_name = "LSN")]
        to: Lsn,
        /// How.
        #[command(flatten)]
        how: MoveArgs,
    },
}

/// `slot reset`, `slot advance`
#[derive(Debug, Args)]
pub struct MoveArgs {
    /// Only say how many events and bytes it concerns, from when to when
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
}
