//! Servers and certificates for the tests.

pub(crate) mod certificates;
pub(crate) mod kafka;
pub(crate) mod place;
pub(crate) mod postgres;
