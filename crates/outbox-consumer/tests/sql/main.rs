//! The SQL functions of `migrations/consumer`, called from several sessions at once.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod claim;
mod expiry;
mod idempotency;
mod interleaved;
mod lease;
mod marks;
mod order;
mod plans;
mod pooler;
mod queue;
mod support;
