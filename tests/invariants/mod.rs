//! What must never break; one file for each invariant, and its name in its tests.

mod bounded_memory;
mod contiguous_ack;
pub(crate) mod feedback_never_starves;
mod idle_ack;
mod left_and_returned;
mod no_guessing;
mod order_per_aggregate;
mod partition_triggers;
mod payload_bytes_pass_through;
mod secrets_and_payloads_stay_out;
pub(crate) mod way_out;
