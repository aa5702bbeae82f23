//! The sinks: Kafka, optionally wrapped by the dead-letter sink, or standard output.

pub mod dead_letters;
pub mod kafka;
pub mod stdout;
