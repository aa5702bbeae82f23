//! The record that may be to blame for a refusal. A batch is refused as a whole, because of one record in it.

use crate::pipeline::Event;
use crate::progress::Partial;

/// What an earlier session has found out of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Suspect {
    /// No record is.
    #[default]
    None,
    /// One of those up to and including this one: each is sent alone.
    UpTo(Partial),
    /// This one. It is sent when everything before it is certain.
    This(Partial),
}

impl Suspect {
    /// What is known already, or one of those up to `last`, if that is later.
    pub fn or_up_to(self, last: Option<Partial>) -> Self {
        let known = match self {
            Suspect::UpTo(known) => Some(known),
            Suspect::None | Suspect::This(_) => None,
        };
        last.max(known).map_or(self, Suspect::UpTo)
    }
}

/// A record that is under way alone, for a message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentAlone {
    /// The event's id, and the topic.
    pub event: String,
    /// What can be done to go on without it.
    pub how_to_skip: String,
    /// Whether everything before it is certain, so that the router can go on without it.
    pub nothing_before: bool,
}

/// Whether a record may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Like any other.
    WithOthers,
    /// With nothing else under way.
    Alone { nothing_before: bool },
    /// Not now.
    Later,
}

/// How the records of one session are sent.
#[derive(Debug)]
pub(super) struct Isolation {
    suspect: Suspect,
    /// The record that was sent last, if it was sent alone.
    alone: Option<SentAlone>,
    /// The next record is the one to blame, and others are not certain yet.
    waits: bool,
}

impl Isolation {
    pub(super) fn new(suspect: Suspect) -> Self {
        Isolation { suspect, alone: None, waits: false }
    }

    /// Whether everything that was sent has to be certain before the next record.
    pub(super) fn waits_for_commit(&self) -> bool {
        self.waits
    }

    /// `settled`: everything that was sent is certain. `under_way`: records are.
    pub(super) fn admits(&mut self, event: &Event<'_>, settled: bool, under_way: bool) -> Admission {
        // one that was parked is isolated by the dead letters
        if event.retried || self.suspect == Suspect::None {
            return Admission::WithOthers;
        }
        let place = event.place();
        let to_blame = self.suspect == Suspect::This(place);
        let alone = to_blame || matches!(self.suspect, Suspect::UpTo(last) if place <= last);
        self.waits = to_blame && !settled;
        // nor may the record after it share a batch with it
        if self.waits || (alone || self.alone.is_some()) && under_way {
            return Admission::Later;
        }
        if alone { Admission::Alone { nothing_before: settled } } else { Admission::WithOthers }
    }

    /// A record was sent as it was admitted.
    pub(super) fn sent(&mut self, admission: Admission, event: &Event<'_>, topic: &str) {
        self.alone = match admission {
            Admission::Alone { nothing_before } => Some(SentAlone {
                event: format!("{} to the topic {topic}", event.row.printable_id()),
                how_to_skip: event.how_to_skip(),
                nothing_before,
            }),
            _ => None,
        };
    }

    /// The record that was under way alone at last.
    pub(super) fn alone(self) -> Option<SentAlone> {
        self.alone
    }
}
