//! All that needs a server, real or scripted.

mod postgres_connection;
mod support;
