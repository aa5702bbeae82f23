//! Where events go. Today there is one sink, Kafka.
//!
//! A sink takes records with the number of their change, and reports through [`Outcomes`] when a record is durable or
//! was refused. It stores checkpoints, and does not decide what they are: positions are counted in `progress`.

mod delivery_stats;
pub mod kafka;
mod outcomes;

pub(crate) use delivery_stats::{DeliveryStats, InFlight};
pub use outcomes::{Outcomes, Refusal};
