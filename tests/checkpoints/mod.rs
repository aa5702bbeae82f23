//! Checkpoints in Kafka: what they save from being sent again after a crash, and which resume conflicts they reveal.

mod late_records;
mod resume_conflicts;
mod resumed;
mod shared_topic;
mod unacknowledged;
