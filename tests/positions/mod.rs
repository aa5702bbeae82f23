//! The position that is remembered in Kafka: what it saves after a crash, and what it finds out.

mod gaps;
mod late;
mod remembered;
mod shared;
mod unacknowledged;
