//! Logical replication from Postgres: from a connection string to the messages of a publication, and the position back.
//!
//! ```text
//!   "postgres://..."                 conninfo        read as libpq reads it, environment and defaults laid under
//!         |
//!         v
//!   hosts x addresses x TLS          connect         one after the other, by libpq's rules
//!         |   socket, TLS            stream, tls
//!         |   password, SCRAM        auth, passfile
//!         v
//!      Session                       session         simple queries and walsender commands
//!         |
//!         v
//!   ReplicationStream                replication     START_REPLICATION or a bulk read; frames in, status updates out
//!         |            ^
//!         v            |
//!   Begin | Insert | Commit          pgoutput        borrowed from the receive buffer, never a panic
//!         |            |
//!         v            |
//!      your program ---+             StandbyStatus   what the server may forget
//! ```
//!
//! Two ways lead to a slot's changes. [`replication::ReplicationStream::begin`] streams them as they are committed.
//! [`replication::ReplicationStream::bulk_read`] asks for many at a time, which is faster for a reader that is far behind; the
//! statements are in [`bulk_read`]. Both bring the same messages.
//!
//! Every failure is an [`Error`]: transient, so that trying again may do, or definite, with the [`Remedy`] as a value. The program
//! that uses this crate says it in its own words.

mod auth;
pub mod bulk_read;
pub mod connect;
pub mod conninfo;
pub mod environment;
mod error;
mod failure;
pub mod frames;
pub mod lock_wait;
mod lsn;
pub mod passfile;
pub mod pgoutput;
pub mod quoting;
mod redacted;
pub mod replication;
mod secret;
pub mod server_error;
pub mod session;
pub mod stream;
mod timestamp;
mod tls;
mod wire;

pub use environment::Environment;
pub use error::{Definite, Error, InvalidConnInfo, Remedy, Transient};
pub use lsn::{Lsn, ParseLsnError};
pub use pgoutput::Oid;
pub use redacted::Redacted;
pub use secret::{REDACTED, Secret};
pub use timestamp::PgTimestamp;
