//! The outbox table of a router that polls: its rows are claimed in batches, and marked when they are published or refused.
//!
//! ```text
//!   worker --batches--> source        rows under a lease
//!   worker <--results-- sink          published, refused, or not sent
//! ```
//!
//! - `sql` has the statements
//! - `table` looks up the columns of the table
//! - `worker` carries out the statements in a session of its own, and keeps account of the claims
//! - `refused` is for operators: the rows that were refused
//! - `messages` between worker and router

pub mod messages;
pub mod refused;
pub mod sql;
pub mod table;
pub mod worker;
