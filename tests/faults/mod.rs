//! Everything that can end does end, at any time.

mod broker_errors;
mod broker_stopped;
pub(crate) mod failover;
mod postgres_restarted;
mod sigkill;
mod slot_lost;
