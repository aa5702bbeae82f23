//! Why a session ended.

use crate::error::Error;
use crate::progress::Sequence;
use crate::unsendable::{Reason, Unsendable};

/// Why a session ended.
#[derive(Debug)]
pub enum Outcome {
    /// It was asked to stop.
    Stopped,
    /// Something failed.
    Failed(Error),
    /// The sink refused a record.
    Refused(Refusal),
    /// The source ended on its own; its result says why.
    SourceEnded,
}

/// The first refused record of a session, and how far the refusal reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The highest refused sequence number: records of one batch are refused together.
    pub last: Sequence,
    /// Whether sending the same record again may succeed.
    pub transient: bool,
    /// The broker's reason, and the remedy.
    pub why: Unsendable,
}

impl Refusal {
    /// A refusal of no particular record: this session cannot go on, but another may.
    pub fn of_session(reason: String, remedy: &str) -> Self {
        let why = Unsendable::new(Reason::Refused, reason, remedy);
        Refusal { last: Sequence(0), transient: true, why }
    }

    /// Whether it lasts until an operator acts, as for a revoked privilege.
    pub fn waits_for_a_person(&self) -> bool {
        self.transient && !self.why.remedy.is_empty()
    }
}
