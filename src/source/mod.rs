//! Sources of changes. There is one so far, a replication slot.

pub mod slot;
