//! Where changes come from. Today there is one source, a replication slot.

pub mod slot;
