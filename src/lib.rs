//! Reads committed rows of an outbox table from the Postgres write-ahead log and sends them to Kafka.

pub mod admin;
pub mod cli;
pub mod commands;
pub mod config;
pub mod error;
pub mod logging;
pub mod lsn;
pub mod metrics;
pub mod monitor;
pub mod outbox;
pub mod postgres;
pub mod progress;
pub mod relay;
pub mod routing;
pub mod sink;
pub mod supervisor;
pub mod terminal;
mod utc;
