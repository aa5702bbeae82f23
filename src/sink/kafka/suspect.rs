//! Finds the record that caused a refusal. The broker refuses a whole batch because of one record.

use crate::error::Step;
use crate::pipeline::Event;
use crate::progress::Partial;

/// What earlier sessions have found out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Suspect {
    /// No record is suspect.
    #[default]
    None,
    /// A record up to and including this one: each is sent alone.
    UpTo(Partial),
    /// This one. It is sent when everything before it is durable.
    This(Partial),
}

impl Suspect {
    /// Extends the suspects to those up to `last`, if that is later.
    pub fn or_up_to(self, last: Option<Partial>) -> Self {
        let known = match self {
            Suspect::UpTo(known) => Some(known),
            Suspect::None | Suspect::This(_) => None,
        };
        last.max(known).map_or(self, Suspect::UpTo)
    }
}

/// A record that was sent alone, for the message about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentAlone {
    /// The event's id and the topic.
    pub event: String,
    /// How to go on without it.
    pub how_to_skip: [Step; 2],
    /// Whether everything before it is durable, so that the router can go on without it.
    pub all_before_durable: bool,
}

/// Whether a record may be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Like any other.
    WithOthers,
    /// With nothing else in flight.
    Alone { all_before_durable: bool },
    /// Not now.
    Later,
}

/// Sends suspect records alone.
#[derive(Debug)]
pub(super) struct Isolation {
    suspect: Suspect,
    /// The last record, if it was sent alone.
    alone: Option<SentAlone>,
    /// The next record is the culprit, and earlier ones are not durable yet.
    waits: bool,
}

impl Isolation {
    pub(super) fn new(suspect: Suspect) -> Self {
        Isolation { suspect, alone: None, waits: false }
    }

    /// Whether all sent records must be durable before the next one.
    pub(super) fn waits_for_commit(&self) -> bool {
        self.waits
    }

    /// Decides whether a record may be sent. `settled`: all sent records are durable. `in_flight`: records are in flight.
    pub(super) fn admit(&mut self, event: &Event<'_>, settled: bool, in_flight: bool) -> Admission {
        // the dead-letter sink isolates retried events itself
        if event.retried || self.suspect == Suspect::None {
            return Admission::WithOthers;
        }
        let place = event.place();
        let to_blame = self.suspect == Suspect::This(place);
        let alone = to_blame || matches!(self.suspect, Suspect::UpTo(last) if place <= last);
        self.waits = to_blame && !settled;
        // the record after it must not share a batch with it either
        if self.waits || (alone || self.alone.is_some()) && in_flight {
            return Admission::Later;
        }
        if alone { Admission::Alone { all_before_durable: settled } } else { Admission::WithOthers }
    }

    /// A record was sent as admitted.
    pub(super) fn sent(&mut self, admission: Admission, event: &Event<'_>, topic: &str) {
        self.alone = match admission {
            Admission::Alone { all_before_durable } => Some(SentAlone {
                event: format!("{} to the topic {topic}", event.row.printable_id()),
                how_to_skip: event.how_to_skip(),
                all_before_durable,
            }),
            _ => None,
        };
    }

    /// The record that was last sent alone.
    pub(super) fn alone(self) -> Option<SentAlone> {
        self.alone
    }
}
