//! The position that outlives the process: what is remembered of it, and whether it may still be trusted. Pure.
//!
//! ```text
//!   progress --Position--> Checkpoint --JSON--> the positions topic       while running
//!   the positions topic --JSON--> Checkpoint --resume--> where to go on    at a start
//!   the first of the stream --ResumeCheck--> whether it is that log       right after it
//! ```
//!
//! Postgres saves a slot's position only at checkpoints and lets anybody move it. So the router keeps its own in Kafka,
//! beside the events that it vouches for, and confirms nothing to Postgres that is not durable there.

mod handover;
mod reading;
mod record;
mod resume;
mod resume_check;
mod resumption;
mod slot_record;
mod start;
mod timeline;

pub use handover::{Handover, subject as handover_subject};
pub use reading::{Reading, Traces};
pub use record::{Checkpoint, LogFingerprint, NotReadable, Replay};
pub use resume::{Found, ResumeConflict, not_new};
pub use resume_check::{OtherLog, ResumeCheck, Verdict};
pub use resumption::{Resumption, latest, resume};
pub use slot_record::SlotRecord;
pub use start::Start;
pub use timeline::{Descent, System, descent};

#[cfg(test)]
pub(crate) use record::tests::remembered;
