//! What is wrong with servers, configuration or events gets a sentence and the right exit code. The snapshots hold every
//! sentence: what, where, and what to do.

mod configuration;
mod events;
mod slots;
mod start;
mod unreachable;
