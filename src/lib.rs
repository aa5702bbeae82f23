//! Reads committed rows of an outbox table from the Postgres write-ahead log and sends them to Kafka.

pub mod config;
pub mod error;
pub mod lsn;
pub mod postgres;
