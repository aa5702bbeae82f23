//! The position that outlives the process: what is remembered of it, and whether it may still be trusted. Pure.
//!
//! ```text
//!   progress --Position--> Remembered --JSON--> the positions topic       while running
//!   the positions topic --JSON--> Remembered --judge--> where to start    at a start
//!   the first of the stream --Recognition--> whether it is that log       right after it
//! ```
//!
//! Postgres saves a slot's position only at checkpoints and lets anybody move it. So the router keeps its own in Kafka,
//! beside the events that it vouches for, and confirms nothing to Postgres that is not durable there.

mod handover;
mod judge;
mod recognition;
mod record;

pub use handover::{Handover, subject as handover_subject};
pub use judge::{Found, Gap, Start, judge, not_new};
pub use recognition::{OtherLog, Recognition, Verdict, begin};
pub use record::{NotReadable, Reading, Remembered, Replay, Tail, Traces};

#[cfg(test)]
pub(crate) use record::tests::remembered;
