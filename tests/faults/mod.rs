//! Everything that can end does end, at any time.

mod authorization;
mod broker_errors;
mod broker_stopped;
mod cluster;
mod disk_full;
mod postgres_restarted;
mod sigkill;
mod topics_changed;
