//! The table of parked events, `outbox_router.dead_letters`: `sql` what is asked of it, `desk` the session that writes it
//! while a router runs.

pub mod sql;
pub mod store;
