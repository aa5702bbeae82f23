//! What the tests use: servers, certificates, the router as a process, the outbox and the consumer.

pub(crate) mod certificates;
pub(crate) mod comparison;
pub(crate) mod eventually;
pub(crate) mod instance;
pub(crate) mod kafka;
mod kafka_admin;
pub(crate) mod longest_pause;
pub(crate) mod mock;
pub(crate) mod name_server;
pub(crate) mod namespace;
pub(crate) mod outbox;
pub(crate) mod place;
pub(crate) mod pooler;
pub(crate) mod postgres;
pub(crate) mod private_cluster;
pub(crate) mod private_kafka;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod router;
pub(crate) mod seed;
pub(crate) mod sentences;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod table_lock;
pub(crate) mod token_server;
pub(crate) mod writers;
