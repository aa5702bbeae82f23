//! Checkpoints: the position that outlives the process, and whether a start may still rely on it. Pure.
//!
//! ```text
//!   progress --Position--> Checkpoint --JSON--> positions topic             while running
//!   positions topic --JSON--> Checkpoint --resume--> where to resume        at a start
//!   start of the stream --ResumeCheck--> whether it is the same log         right after the start
//! ```
//!
//! Postgres saves a slot's position only at its own checkpoints, and anybody can move a slot. So the router stores its position
//! in Kafka next to the events, and confirms nothing to Postgres that is not durable there.

mod backfill;
mod handover;
mod record;
mod resume;
mod resume_check;
mod resume_conflict;
mod resumption;
mod slot_record;
mod start;
mod start_facts;
mod stream_definition;
mod timeline;
mod without_checkpoint;

pub use backfill::BackfillDone;
pub use handover::{Handover, subject as handover_subject};
pub use record::{Checkpoint, LogFingerprint, NotReadable, Replay, Stopped};
pub use resume_check::{LogMismatch, ResumeCheck, Verdict};
pub use resume_conflict::ResumeConflict;
pub use resumption::{Resumption, latest, resume};
pub use slot_record::SlotRecord;
pub use start::Start;
pub use start_facts::StartFacts;
pub use stream_definition::{Alteration, LeftOut, StreamDefinition, Traces};
pub use timeline::{Descent, System, descent};

#[cfg(test)]
pub(crate) use record::tests::sample_checkpoint;
