//! `maintain`

use clap::Args;
use pg_logical::Secret;

use super::secret;

pub(super) const HELP: &str = "\
It deletes processed events that are older than their consumer keeps them, and idempotency keys that are forgotten, in batches. \
Events that are not processed are never deleted. It reads no configuration file. The role of `init --consumer --role` may do this.

The endpoint serves /metrics. The database is asked once in each interval, and not when the page is read. While Postgres cannot be \
reached it reconnects, and logs why once. SIGTERM, SIGINT and SIGQUIT stop it at once: nothing can be lost. Several may run at a time.

Exit codes:
  0  stopped by a signal; or, with --once, nothing is left to delete
  1  Postgres refuses; or, with --once, cannot be reached
  2  usage, or the address is in use

Examples:
  outbox-router maintain --url postgres://shipping@db/shipping
  outbox-router maintain --url postgres://shipping@db/shipping --listen 0.0.0.0:8085
  outbox-router maintain --url postgres://shipping@db/shipping --once";

/// `maintain`
#[derive(Debug, Args)]
pub struct MaintainArgs {
    /// The consumer's database. Give the password with PGPASSWORD or the passfile, because other users can read command lines
    #[arg(long, value_parser = secret, required = true)]
    pub url: Secret,

    /// Delete what is there to delete, and exit
    #[arg(long)]
    pub once: bool,

    /// With --once: print JSON
    #[arg(long, requires = "once")]
    pub json: bool,

    /// Where to serve /metrics
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8085", conflicts_with = "once")]
    pub listen: String,

    /// How long to wait when nothing is left to delete
    #[arg(long, value_name = "SECONDS", default_value_t = 10, conflicts_with = "once",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
}
