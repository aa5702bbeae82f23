//! The sinks: Kafka, optionally wrapped by the dead-letter sink or by the one that reports the status of rows, or standard output.

pub mod dead_letters;
pub mod kafka;
pub mod leave_out;
pub mod row_status;
pub mod stdout;
