//! What the loop counts.

use metrics::{Unit, counter, describe_counter};

pub(super) const CLAIMS: &str = "outbox_consumer_claims_total";
pub(super) const PARKED: &str = "outbox_consumer_parked_total";

pub(super) fn register() {
    describe_counter!(CLAIMS, Unit::Count, "Events that were claimed, by outcome.");
    describe_counter!(PARKED, Unit::Count, "Events that were put into the queue of the inbox.");
    for outcome in ["fresh", "done"] {
        counter!(CLAIMS, "outcome" => outcome).increment(0);
    }
    counter!(PARKED).increment(0);
}
