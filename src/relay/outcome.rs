//! Why a session is over.

use crate::error::Error;
use crate::progress::Sequence;
use crate::unsendable::{Reason, Unsendable};

/// Why a session is over.
#[derive(Debug)]
pub enum Outcome {
    /// As asked.
    Stopped,
    /// Something failed.
    Failed(Error),
    /// The sink refused a record.
    Refused(Refusal),
    /// The source has come to an end, which says itself why.
    SourceEnded,
}

/// The first refused record of a session, and how far the refusal reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The highest number that was refused for this reason: the records of one batch are refused together.
    pub last: Sequence,
    /// Whether sending the same record again could have another end.
    pub transient: bool,
    /// What the broker said, and what a person can do about it.
    pub why: Unsendable,
}

impl Refusal {
    /// Of no record in particular: this session cannot go on, and another one may.
    pub fn of_session(reason: String, remedy: &str) -> Self {
        let why = Unsendable::new(Reason::Refused, reason, remedy);
        Refusal { last: Sequence(0), transient: true, why }
    }

    /// It passes when a person does something: a right was taken away.
    pub fn waits_for_a_person(&self) -> bool {
        self.transient && !self.why.remedy.is_empty()
    }
}
