//! Logical replication from Postgres: turns a connection string into the messages of a publication, and confirms positions.
//!
//! ```text
//!   "postgres://..."                 conninfo        parsed by libpq's rules, completed by environment and defaults
//!         |
//!         v
//!   hosts x addresses x TLS          connect         tried in turn, by libpq's rules
//!         |   socket, TLS            stream, tls
//!         |   password, SCRAM        auth, passfile, password_command
//!         v
//!      Session                       session         simple queries and walsender commands
//!         |
//!         v
//!   ReplicationStream                replication     START_REPLICATION or a bulk read; frames in, status updates out
//!         |            ^
//!         v            |
//!   Begin | Insert | Commit          pgoutput        borrowed from the receive buffer
//!         |            |
//!         v            |
//!      your program ---+             StandbyStatus   how far the server may remove its log
//! ```
//!
//! There are two ways to read a slot's changes. [`replication::ReplicationStream::begin`] streams them as they are committed.
//! [`replication::ReplicationStream::bulk_read`] reads many at a time, which is faster for a lagging reader; its statements
//! are in [`bulk_read`]. Both return the same messages.
//!
//! Every failure is an [`Error`]: either transient, so that another try may succeed, or definite, with the [`Remedy`] as a
//! value, which the program that uses this crate puts into words.

mod auth;
pub mod bulk_read;
pub mod connect;
pub mod conninfo;
pub mod environment;
mod error;
mod failure;
pub mod frames;
pub mod lock_wait;
mod login;
mod lsn;
pub mod passfile;
pub mod password_command;
pub mod pgoutput;
mod query_error;
pub mod quoting;
mod redacted;
pub mod replication;
mod secret;
pub mod server_error;
pub mod session;
mod startup;
pub mod stream;
mod timestamp;
mod tls;
mod wire;

pub use environment::Environment;
pub use error::{Definite, Error, InvalidConnInfo, Remedy, Transient};
pub use lsn::{Lsn, ParseLsnError};
pub use pgoutput::Oid;
pub use query_error::QueryError;
pub use redacted::Redacted;
pub use secret::{REDACTED, Secret};
pub use timestamp::PgTimestamp;
