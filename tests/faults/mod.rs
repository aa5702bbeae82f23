//! Everything that can end does end, at any time.

mod authorization;
mod broker_errors;
mod broker_stopped;
mod cluster;
mod disk_full;
pub(crate) mod failover;
mod postgres_restarted;
mod sigkill;
mod slot_lost;
mod topics_changed;
