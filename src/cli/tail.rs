//! `tail`

use clap::Args;
use pg_logical::Lsn;

use super::UrlArgs;
use super::shards::ShardArgs;

pub(super) const HELP: &str = "\
Reads through a temporary slot, builds the records that `run` would send, and prints them. It does not connect to Kafka and moves \
neither the router's slot nor its position, so it can run beside routers. While it runs, the slot takes one of \
max_replication_slots and one of max_wal_senders, and retains the log that is not printed yet. Without --since, Postgres creates the \
slot once every transaction that is open on the server has ended.

A line names the topic, the key, the partition if a route chooses it, the size of the value, and the event's position in the log; \
the headers follow. With --json each line of standard output is an object with `position`, `topic`, `partition`, `key`, `headers`, \
`timestamp`, `value_bytes`, `violation` (how a payload that is sent violates its contract) and, with --payload, `value`; bytes that \
are not UTF-8 are an object with `base64`. An event that cannot be sent has `position`, `id`, `reason` and `refused` instead. \
Messages go to standard error. To continue from an event, pass the part of its position before the colon to --since. Not checked: \
the size limits of client and topic, and whether an earlier event of the aggregate is parked.

Exit codes:
  0  stopped by a signal, or the reader of the output has closed it
  1  Postgres refuses or cannot be reached, or the slot no longer has the log at the position
  2  usage or configuration
  3  a row cannot be read, or events could be missed: the router's slot is lost, or the publication
     or a table has changed

Examples:
  outbox-router tail
  outbox-router tail --json --payload | jq .value
  outbox-router tail --since 0/1A2B3C8";

/// `tail`
#[derive(Debug, Clone, Args)]
pub struct TailArgs {
    /// Start with events committed from this position on, if the router's slot still has them [default: now]
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

    /// How to connect.
    #[command(flatten)]
    pub connection: UrlArgs,
}
