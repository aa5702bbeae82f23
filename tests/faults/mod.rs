//! Routers, brokers and Postgres servers fail, lose privileges or lose data while events flow.

pub(crate) mod authorization;
mod bookmarks_lost;
mod broker_errors;
pub(crate) mod broker_stopped;
mod cluster;
mod disk_full;
pub(crate) mod failover;
mod idle_end;
mod outbox_locked;
mod postgres_restarted;
mod secrets_rotated;
pub(crate) mod sigkill;
mod slot_lost;
mod stale_session;
mod standby_away;
mod topics_changed;
mod walsender_waits;
