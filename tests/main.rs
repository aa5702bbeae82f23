//! All that needs a server, real or scripted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod faults;
mod invariants;
mod postgres_connection;
mod support;
