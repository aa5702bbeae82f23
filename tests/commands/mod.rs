//! The commands, run as a user would, with real servers.

mod agreement;
mod business_keys;
pub(crate) mod check;
mod check_outbox;
mod check_topics;
mod config;
mod end_to_end;
mod failover;
mod inbox;
mod init;
mod init_consumer;
mod json_errors;
mod json_reports;
mod least_privilege;
mod maintain;
mod publication_remedies;
mod repeated_option;
mod route;
mod servers;
mod status;
mod tail;
mod waiting;
mod weak_acknowledgements;
