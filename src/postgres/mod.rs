//! Everything that the router asks Postgres, in sessions that `pg_logical` opens.
//!
//! ```text
//! pg_logical::session::Session
//!    |
//!    +--> catalog, timeline        what is asked before the start
//!    +--> watch                    a second session that checks meanwhile
//!    +--> log_comparison           whether the stream leaves out rows of the log
//!    +--> slot_*, bookmarks        the slot, who holds it, copies of it
//!    +--> open_transaction         what may make it retain log
//!    +--> cluster_manager          what may drop it
//!    +--> dead_letters             the events that could not be sent
//!    +--> inbox                    the events of a consumer
//!    +--> rows                     the rows of an outbox table, by queries
//!    +--> polling                  those of an outbox that is polled
//!    +--> replays                  who has asked for rows again
//!    +--> prunes                   deletes rows that every router has delivered
//!    +--> partitions               creates and drops partitions of an outbox
//!    |      +--> functions         what these two call
//!    +--> administrator            what an administrator types where the router's role may not
//! ```
//!
//! Every connection of the router is opened the same way: it tries the same hosts by the same rules, and fails with the same
//! messages.

pub mod administrator;
pub mod alteration;
pub mod backfills;
pub mod bookmarks;
pub mod catalog;
pub mod cluster_manager;
pub mod dead_letters;
pub mod functions;
pub mod heartbeat;
pub mod inbox;
pub mod log_comparison;
pub mod open_transaction;
pub mod partitions;
pub mod polling;
pub mod prunes;
pub mod replays;
pub mod row_filter;
pub mod row_security;
pub mod rows;
pub mod slot_functions;
pub mod slot_headroom;
pub mod slot_invalidation;
pub mod slot_lock;
mod slot_lock_key;
pub mod slot_record;
pub mod standby_slots;
pub mod timeline;
pub mod watch;
