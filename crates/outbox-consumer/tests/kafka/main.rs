//! The loop that consumes topics, with a real Postgres and a real Kafka.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod faults;
mod handlers;
mod parked;
mod partitions;
mod topic;

// that of the tests of the functions, which use more of it
#[allow(dead_code)]
#[path = "../sql/support.rs"]
mod support;
