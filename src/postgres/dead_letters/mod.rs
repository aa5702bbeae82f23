//! The table of parked events, `outbox_router.dead_letters`: `sql` has the statements, `worker` the session that writes it while a
//! router runs, and `store` the router's handle to that session.

mod batches;
pub mod messages;
pub mod sql;
pub mod store;
pub mod worker;
