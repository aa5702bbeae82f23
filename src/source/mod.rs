//! Sources of changes: a replication slot, or the outbox table itself.

mod headroom;
mod lease;
pub mod slot;
pub mod table;

pub(crate) use lease::SessionLease;
