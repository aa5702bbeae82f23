//! The middleware for idempotency keys, in a server of axum with a real Postgres.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod faults;
mod lease;
mod outcomes;
mod server;
mod unavailable;

// that of the tests of the functions, which use more of it
#[allow(dead_code)]
#[path = "../sql/support.rs"]
mod support;
