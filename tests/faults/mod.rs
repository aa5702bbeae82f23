//! Everything that can end does end, at any time.

mod broker_errors;
mod broker_stopped;
mod cluster;
mod postgres_restarted;
mod sigkill;
mod topics_changed;
