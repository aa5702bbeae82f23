//! Committed rows of an outbox table, from the Postgres write-ahead log to Kafka.
//!
//! # The way of an event
//!
//! ```text
//!     outbox table --WAL--> walsender
//!         |  CopyData
//!         v
//!     pg_logical::replication the connection: frames in, standby status out; far behind, bulk reads instead of a stream
//!     pg_logical::pgoutput    bytes -> Begin | Relation | Insert | Message ...   borrowed, never panics
//!     outbox                  Relation + tuple, or a message -> OutboxEvent      columns found by name once
//!     routing                 OutboxEvent -> Record {topic, key, headers, value, timestamp}
//!     sink::kafka             Record -> broker; durable -> its sequence number
//!     progress                sequence numbers -> longest acknowledged prefix -> position
//!     sink::kafka::checkpoint_topic  position -> the positions topic; durable there -> flush LSN
//!         |
//!         v
//!     pg_logical::replication StandbyStatusUpdate(flush LSN)
//! ```
//!
//! Data goes one way; only positions come back. [`relay`] is the one loop between a [`source`], which reads the slot, the
//! [`pipeline`], which joins `outbox` and `routing`, and a [`sink`]. [`supervisor`] starts its sessions and decides what a failure
//! means. `pgoutput`, `outbox`, `routing` and `progress` do no IO. [`checkpoint`] is what outlives the process: where a start goes on,
//! or why it must not.
//!
//! # Around it
//!
//! [`config`] is what the user wrote, typed and checked once. [`commands`] has a file for each command of [`cli`].
//! [`monitor`] is the live picture of a running router, which [`admin`] shows, by [`metrics`] among others; [`logging`] and
//! [`terminal`] are what a person sees, [`quantity`] how sizes and times are written for one. [`error`] tells what may pass by itself from what needs a person, [`advice`]
//! says in the router's words what [`pg_logical`] reports, [`contracts`] what payloads are judged by, [`connect_values`] how Debezium and Kafka Connect write values,
//! [`shards`] how aggregates are dealt out to several slots, [`import`] the translation of a Debezium connector's configuration, [`topic_name`] what Kafka takes as a topic's name,
//! [`reserved`] the names that are the routers' own.

pub mod admin;
pub mod advice;
pub mod checkpoint;
pub mod cli;
pub mod commands;
pub mod config;
pub mod contracts;
pub mod dead_letters;
pub mod error;
pub mod import;
mod json;
pub mod logging;
pub mod metrics;
pub mod monitor;
pub mod outbox;
pub mod pipeline;
pub mod postgres;
pub mod progress;
pub mod quantity;
pub mod relay;
pub mod reserved;
pub mod routing;
pub mod shards;
pub mod sink;
pub mod source;
pub mod supervisor;
pub mod terminal;
pub mod topic_name;
pub mod unsendable;
mod utc;
