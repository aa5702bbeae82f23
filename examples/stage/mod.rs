//! What the programs play on: the router as a process, a consumer of its topics, and the table as the judge.

pub(crate) mod consumer;
pub(crate) mod figures;
pub(crate) mod log_reader;
pub(crate) mod outbox_table;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod router;
