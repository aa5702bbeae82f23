//! Sources of changes: a replication slot, or the outbox table itself.

pub mod slot;
pub mod table;
