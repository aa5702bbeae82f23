//! Everything that speaks to Postgres.

pub mod frames;
pub mod pgoutput;
