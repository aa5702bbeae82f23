//! The outbox table as a source.
//!
//! Each row becomes a transaction of one change. Positions in the log do not exist; in their place stands the number of the row.

pub mod backfilled;
mod paged;
pub mod polled;
pub mod replayed;
pub mod rows;
pub mod sent;
