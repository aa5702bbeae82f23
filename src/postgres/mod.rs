//! Everything that speaks to Postgres: from a typed connection string to the messages of the stream.
//!
//! ```text
//! ConnInfo --connect--> hosts x addresses x TLS choice      connect
//!                         |  TCP or unix socket, TLS        stream, tls
//!                         |  startup, password, SCRAM       auth, passfile
//!                         v
//!                       Session                             session: simple queries, walsender commands
//!                         |                                 catalog, timeline: what is asked before the start
//!            +------------+-------------+
//!            v                          v
//!       tokio_postgres::Client    ReplicationStream         replication, frames: CopyData in, status out
//!                                       |                   watch: a second session that looks on meanwhile
//!                                       v
//!                                 Begin | Insert | Commit   pgoutput
//! ```
//!
//! There is one way in: every connection of the router, whatever it is for, tries the same hosts by the same rules and
//! fails with the same sentences.

mod auth;
pub mod bites;
pub mod bookmarks;
pub mod catalog;
pub mod connect;
pub mod dead_letters;
mod failure;
pub mod frames;
pub mod heartbeat;
pub mod lock_wait;
pub mod passfile;
pub mod pgoutput;
pub mod quoting;
pub mod replication;
pub mod room;
pub mod server_error;
pub mod session;
pub mod slot_functions;
pub mod slot_lock;
pub mod slot_record;
pub mod sql;
pub mod standby_slots;
pub mod stream;
pub mod timeline;
mod tls;
pub mod watch;
mod wire;
