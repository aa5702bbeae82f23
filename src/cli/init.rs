//! Arguments of `init`.

use clap::{Args, ValueEnum};
use pg_logical::Secret;

use super::secret;

pub(super) const HELP: &str = "\
Existing objects are left unchanged, so it can be run again at any time. That includes an outbox table of your own with other \
column names.

Exit codes:
  0  everything exists
  1  Postgres refused, or cannot be reached
  2  usage or configuration

Examples:
  outbox-router init                       as the user of the configuration
  outbox-router init --url postgres://postgres@db/shop --role outbox_router
  outbox-router init --backfill            and have the rows that are there already sent first
  outbox-router init --print-sql | less    to read it, or to have it run by somebody else
  outbox-router init --print-acls          the Kafka ACLs to grant
  outbox-router init --consumer --url postgres://postgres@db/shipping --role shipping";

/// How long a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Period {
    /// A day in UTC.
    Day,
    /// A week that begins on a Monday.
    Week,
    /// A month.
    Month,
}

impl Period {
    /// Its name, as in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Period::Day => "day",
            Period::Week => "week",
            Period::Month => "month",
        }
    }
}

/// `init`
#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    /// Connect as an administrator, to the same database. Give the password with PGPASSWORD or the passfile, because other users
    /// can read command lines
    #[arg(long, value_parser = secret, conflicts_with = "print_acls")]
    pub url: Option<Secret>,

    /// The role that `run` or the consumer connects as: created unless it exists, and granted only what it needs
    #[arg(long)]
    pub role: Option<String>,

    /// Let `run` first send the rows that are in the outbox table before the slot is created
    #[arg(long, conflicts_with_all = ["consumer", "print_sql", "print_acls"])]
    pub backfill: bool,

    /// Create the outbox table with partitions by time, which `run` creates ahead and prune drops whole
    #[arg(long, value_name = "PERIOD", value_enum, conflicts_with_all = ["consumer", "print_acls"])]
    pub partitioned: Option<Period>,

    /// With --backfill: only rows inserted at this time or later, in UTC, or how long ago, as 30d
    #[arg(long, value_name = "TIME", requires = "backfill")]
    pub since: Option<String>,

    /// With --backfill: only rows for which this SQL condition holds when they are read, such as "published_at IS NULL"
    #[arg(long, value_name = "CONDITION", requires = "backfill")]
    pub only: Option<String>,

    /// Install inbox and idempotency keys for a consumer instead, in the database of --url; without a configuration
    #[arg(long, conflicts_with = "print_acls")]
    pub consumer: bool,

    /// Print the SQL instead of running it
    #[arg(long)]
    pub print_sql: bool,

    /// Print the Kafka ACLs that the router needs
    #[arg(long, conflicts_with = "print_sql")]
    pub print_acls: bool,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["print_sql", "print_acls"])]
    pub json: bool,
}
