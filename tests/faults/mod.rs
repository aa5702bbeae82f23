//! Everything that can end does end, at any time.

pub(crate) mod authorization;
mod broker_errors;
pub(crate) mod broker_stopped;
mod cluster;
mod disk_full;
pub(crate) mod failover;
mod left_behind;
mod outbox_locked;
mod postgres_restarted;
pub(crate) mod sigkill;
mod slot_lost;
mod standby_away;
mod topics_changed;
