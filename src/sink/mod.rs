//! Where records go: Kafka, and the dead letters around it; or standard output.

pub mod dead_letters;
pub mod kafka;
pub mod stdout;
