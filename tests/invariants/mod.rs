//! The guarantees that must never break: one file for each, whose tests start with its name.

mod altered_publication;
mod bounded_memory;
mod contiguous_ack;
pub(crate) mod feedback_never_starves;
mod idle_ack;
mod no_guessing;
pub(crate) mod order_per_aggregate;
mod partition_triggers;
mod payload_bytes_pass_through;
mod published_tables;
pub(crate) mod recovery_sql;
mod secrets_and_payloads_stay_out;
mod temporarily_unpublished;
