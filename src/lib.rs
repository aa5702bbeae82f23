//! Committed rows of an outbox table, from the Postgres write-ahead log to Kafka.
//!
//! # The path of an event
//!
//! ```text
//!     outbox table --WAL--> walsender
//!         |  CopyData
//!         v
//!     pg_logical::replication the connection: frames in, standby status out; far behind, bulk reads instead of a stream
//!     pg_logical::pgoutput    bytes -> Begin | Relation | Insert | Message ...   borrowed, never panics
//!     source::slot            messages -> changes, one after the other
//!     source::table           or rows of the table, which postgres::polling claims and marks
//!     outbox                  Relation + tuple, or a message -> OutboxEvent      columns found by name once
//!     contracts, routing      OutboxEvent -> validated -> Record {topic, key, headers, value, timestamp}
//!     sink::kafka             Record -> broker; durable -> its sequence number
//!     sink::dead_letters      or -> the table of parked events
//!     sink::row_status        what has become of a row that was polled
//!     progress                sequence numbers -> longest acknowledged prefix -> position
//!     sink::kafka::checkpoint_topic  position -> the positions topic; durable there -> flush LSN
//!         |
//!         v
//!     pg_logical::replication StandbyStatusUpdate(flush LSN)
//! ```
//!
//! Data goes one way; only positions come back. [`relay`] is the one loop between a [`source`], which reads the slot, the
//! [`pipeline`], which joins `outbox` and `routing`, and a [`sink`]. [`supervisor`] starts its sessions and decides what a failure
//! means. `pgoutput`, `outbox`, `routing` and `progress` do no I/O. [`checkpoint`] is what outlives the process, and decides where a
//! start resumes, or why it cannot.
//!
//! In exactly-once mode the position is a record in the events' own transaction, and counts once that is committed.
//!
//! # The other modules
//!
//! - [`config`]: the configuration, typed and checked once; [`cli`] and [`commands`]: the command line, and a file for each command
//! - [`monitor`]: the live state of a running router, which [`admin`] serves, as [`metrics`] among others, and [`systemd`] is told
//! - [`logging`], [`terminal`] and [`quantity`]: what a person sees, and how sizes and times are written
//! - [`error`]: transient and definite failures; [`advice`]: what to do about those that [`pg_logical`] reports
//! - [`contracts`]: validates payloads; [`connect_values`]: values as Debezium and Kafka Connect write them
//! - [`postgres`]: queries of the catalogues and the catalogue watch; [`dead_letters`] and [`unsendable`]: what cannot be sent, and why
//! - [`replay`]: the same loop with rows of the table that somebody asks for again; [`pruning`]: deletes old ones; [`archive`]: files of them
//! - [`shards`]: how aggregates are distributed over several slots; [`import`]: translates a Debezium connector's configuration
//! - [`topic_name`]: which names Kafka accepts for topics; `cloudevents` and `uri`: what attributes may be; [`reserved`]: names that belong to the router

pub mod admin;
pub mod advice;
pub mod archive;
pub mod checkpoint;
pub mod cli;
mod cloudevents;
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
pub mod pruning;
pub mod quantity;
pub mod relay;
pub mod replay;
pub mod reserved;
pub mod routing;
pub mod shards;
pub mod sink;
pub mod source;
pub mod supervisor;
pub mod systemd;
pub mod terminal;
pub mod topic_name;
pub mod unsendable;
mod uri;
mod utc;
