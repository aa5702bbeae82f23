//! Faults of servers, configuration and events are reported with the right exit code. The snapshots hold every message: what is
//! wrong, where, and what to do.

mod configuration;
mod events;
mod slots;
mod start;
pub(crate) mod unreachable;
