//! The commands, run as a user would, with real servers.

mod agreement;
pub(crate) mod check;
mod check_outbox;
mod check_topics;
mod failover;
mod init;
mod least_privilege;
mod publication_remedies;
mod route;
mod servers;
mod tail;
mod waiting;
mod weak_acknowledgements;
