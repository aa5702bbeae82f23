//! `slot`

use clap::{Args, Subcommand};
use pg_logical::Lsn;

use super::UrlArgs;
use super::shards::ShardArgs;

pub(super) const HELP: &str = "\
The position is stored twice: in the slot, and in the topic that `positions_topic` in [delivery] names. These commands move \
both, in an order that is safe if they are interrupted. A running router releases the slot and resumes at the new position \
without a restart.

A bookmark is a copy of the slot that does not move. Postgres retains the log from there on until the bookmark is dropped: \
check `list` regularly. With `[bookmarks] every` the router creates bookmarks and drops the oldest.

Events that a reset sends again carry the header outbox-router-replay, with the time of the reset.

Exit codes:
  0  done, or with --dry-run: shown
  1  a server refuses or cannot be reached, or the bookmark does not exist
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

    /// How to connect.
    #[command(flatten)]
    pub connection: UrlArgs,
}

impl SlotCommand {
    /// Whether it prints JSON.
    pub fn json(&self) -> bool {
        match self {
            SlotCommand::List { json }
            | SlotCommand::Bookmark { json, .. }
            | SlotCommand::Drop { json, .. }
            | SlotCommand::Reset { how: MoveArgs { json, .. }, .. }
            | SlotCommand::Advance { how: MoveArgs { json, .. }, .. } => *json,
        }
    }
}

/// What to do with the position.
#[derive(Debug, Subcommand)]
pub enum SlotCommand {
    /// Show the slot, its checkpoint and its bookmarks
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a bookmark at the slot's position: a copy to go back to
    Bookmark {
        /// Its name: lower-case letters, digits and underscores
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Drop a bookmark, so that Postgres no longer retains the log for it
    Drop {
        /// The bookmark, as `list` shows it
        name: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Print JSON; needs --yes
        #[arg(long, requires = "yes")]
        json: bool,
    },
    /// Go back to a bookmark: events committed since then are sent again
    Reset {
        /// The bookmark's name, or a time in UTC such as 14:05 or 2026-11-21T14:05: the last bookmark created by then
        #[arg(long, value_name = "NAME|TIME")]
        to: String,
        /// How.
        #[command(flatten)]
        how: MoveArgs,
    },
    /// Skip the events that were committed before a position and not sent yet
    Advance {
        /// The position to resume at
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
    /// Only show how many events and bytes are affected, and when they were committed
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Print JSON; needs --dry-run or --yes
    #[arg(long)]
    pub json: bool,
}
