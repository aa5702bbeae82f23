//! Names that routers keep for themselves: no event may use them, so the configuration refuses them.

/// What the prefix of every router's heartbeats begins with; the router's name follows.
pub const HEARTBEAT_PREFIX: &str = "outbox-router.heartbeat/";

/// The header of an event that is sent again because the position was reset: when that was.
pub const REPLAY_HEADER: &str = "outbox-router-replay";

/// The key of the record that shards leave when their number changes, for a router of this name without the number of
/// a shard. Shards have numbers, so it is the key of none of them.
pub fn handover_key(name: &str) -> String {
    format!("{name}/shards")
}
