//! The metrics of a consumer's inbox and idempotency keys, which `maintain` serves.

use ::metrics::Unit;

use super::{Kind, Metric};

metrics! {
    "outbox_consumer_";
    UP = Gauge "up" [], None,
        "1 if the database answered last time, else 0.";
    CLAIMS_TOTAL = Counter "claims_total" ["outcome"], Some(Unit::Count),
        "Claims of events, by outcome: fresh, done or busy.";
    QUEUE_EVENTS_TOTAL = Counter "queue_events_total" ["outcome"], Some(Unit::Count),
        "Events of the queue: put, duplicate (not put again), processed, retried (an attempt failed) or failed (the last one).";
    SEQUENCES_SKIPPED_TOTAL = Counter "sequences_skipped_total" [], Some(Unit::Count),
        "Events whose sequence was not above the last one of their aggregate.";
    REQUESTS_TOTAL = Counter "requests_total" ["outcome"], Some(Unit::Count),
        "Requests with an idempotency key, by outcome: new, replay, mismatch, in_progress or expired.";
    WAITING = Gauge "waiting" ["consumer"], Some(Unit::Count),
        "Events that wait in the queue; 10,000 means that or more, here and for the next three.";
    FAILED = Gauge "failed" ["consumer"], Some(Unit::Count),
        "Events of the queue that have no attempt left.";
    LEASED = Gauge "leased" ["consumer"], Some(Unit::Count),
        "Events that are under a lease.";
    EXPIRED_LEASES = Gauge "expired_leases" ["consumer"], Some(Unit::Count),
        "Events whose lease has expired before their handler ended, and that nobody has taken over.";
    OLDEST_UNPROCESSED_SECONDS = Gauge "oldest_unprocessed_seconds" ["consumer"], Some(Unit::Seconds),
        "Age of the oldest event that waits or whose lease has expired; 0 if there is none.";
    DELETED_TOTAL = Counter "deleted_total" ["what"], Some(Unit::Count),
        "What this process has deleted: events or keys.";
    ERRORS_TOTAL = Counter "errors_total" [], Some(Unit::Count),
        "Failures after which this process connected again.";
}
