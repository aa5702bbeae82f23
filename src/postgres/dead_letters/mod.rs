//! The table of parked events, `outbox_router.dead_letters`: `sql` has the statements, and `store` the session that writes it
//! while a router runs.

pub mod sql;
pub mod store;
