//! The tests that need a server, real or scripted.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod allocations;
mod backfill;
mod bad_input;
mod bulk_reads;
mod checkpoints;
mod columns;
mod commands;
mod contracts;
mod dead_letters;
mod exactly_once;
mod faults;
mod fuzz_corpus;
mod heartbeat;
mod invariants;
mod messages;
mod network;
mod partitions;
mod password_command;
mod polling;
mod postgres_connection;
mod pruning;
mod replay;
mod routing;
mod secure_connection;
mod security;
mod shards;
mod situations;
mod slot;
mod standby;
mod stopping;
mod support;
mod systemd;
mod topics;
mod upgrade;
