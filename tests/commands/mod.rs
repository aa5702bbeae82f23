//! What a user types, on real servers.

mod check;
mod init;
mod least_privilege;
mod servers;
