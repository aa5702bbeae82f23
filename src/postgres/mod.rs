//! The connection to Postgres: from a typed connection string to an authenticated session.
//!
//! ```text
//! ConnInfo --connect--> hosts x addresses x TLS choice      connect
//!                         |  TCP or unix socket, TLS        stream, tls
//!                         |  startup, password, SCRAM       auth, passfile
//!                         v
//!                       Session                             session: simple queries, walsender commands
//!                         |
//!            +------------+-------------+
//!            v                          v
//!       tokio_postgres::Client    the replication stream, which takes the socket over
//! ```
//!
//! There is one way in: every connection of the router, whatever it is for, tries the same hosts by the same rules and
//! fails with the same sentences.

mod auth;
pub mod connect;
mod failure;
pub mod passfile;
pub mod server_error;
pub mod session;
pub mod sql;
pub mod stream;
mod tls;
mod wire;
