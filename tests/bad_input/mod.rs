//! What is wrong with servers, configuration or events gets a sentence and the right exit code.

mod events;
mod start;
