//! Where records go: Kafka, and the dead letters around it.

pub mod dead_letters;
pub mod kafka;
