//! `tail`

use clap::Args;
use pg_logical::Lsn;

use super::shards::ShardArgs;

pub(super) const HELP: &str = "\
Streams through a slot of its own, which is gone when the command ends, makes the records that `run` would send, and prints them. \
No broker is asked, and nothing is moved: neither the router's slot nor its position. It can run beside routers. The slot takes \
one of max_replication_slots and one of max_wal_senders meanwhile, and holds the log that is not printed yet. Without --since it is made once every \
transaction that is open on the server has ended.

A line names the topic, the key, the partition if a route chooses it, the size of the value, and the event's place in the log; \
the headers follow. With --json each line of standard output is an object with `position`, `topic`, `partition`, `key`, `headers`, \
`timestamp`, `value_bytes`, `violation` (how a payload that is sent breaks its contract) and, with --payload, `value`; what is no UTF-8 \
is an object with `base64`. An event that cannot be sent has `position`, `id`, `reason` and `refused` instead. Everything else that is said \
is on standard error. The part of a position before the colon can be given to --since. Not looked at are the sizes \
that client and topic take, and whether an earlier event of the aggregate is parked.

Exit codes:
  0  stopped by a signal, or nobody reads the output any more
  1  Postgres refuses or cannot be reached, or the position lies before what is kept
  2  usage or configuration
  3  a row cannot be read

Examples:
  outbox-router tail
  outbox-router tail --json --payload | jq .value
  outbox-router tail --since 0/1A2B3C8";

/// `tail`
#[derive(Debug, Clone, Args)]
pub struct TailArgs {
    /// Begin with what was committed from this position on, as far as the router's slot still holds it [default: now]
    #[arg(long, value_name = "LSN")]
    pub since: Option<Lsn>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,

    /// Print payloads too
    #[arg(long)]
    pub payload: bool,

    /// Which shard.
    #[command(flatten)]
    pub shards: ShardArgs,
}
