//! Shared by the example programs: the router as a process, a consumer of its topics, and the rows of the outbox table.

pub(crate) mod consumer;
pub(crate) mod figures;
pub(crate) mod log_reader;
pub(crate) mod outbox_table;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod router;
