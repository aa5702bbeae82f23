//! Servers and certificates for the tests.

pub(crate) mod certificates;
pub(crate) mod postgres;
