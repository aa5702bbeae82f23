//! What a fault leaves behind for the judgement.

use std::time::{Duration, Instant};

/// One fault that happened.
#[derive(Debug, Clone)]
pub(crate) struct Injected {
    pub(crate) began: Instant,
    /// When the last server was back, the router started again or the network clear.
    pub(crate) back: Instant,
    /// What the router had to go on from.
    pub(crate) left: Left,
    /// Whether a session that it ended can have left a request on the way to the broker.
    pub(crate) on_its_way: bool,
    /// How late the broker's answers were, if it did not answer as ever.
    pub(crate) broker_late: Option<Duration>,
    /// What was to be sent again on purpose.
    pub(crate) asked: Option<Asked>,
    /// From when to when nothing that was committed in that time may arrive: a standby that is waited for lacked it.
    pub(crate) withheld: Option<(Instant, Instant)>,
    /// What a reason has to contain that is given while it lasts.
    pub(crate) names: &'static [&'static str],
    /// By when after it events have to flow, if a minute is too long.
    pub(crate) recovers_within: Option<Duration>,
    /// Whether it began before the router had caught up after the fault before it.
    pub(crate) overlaps: bool,
    /// Its choices, for people.
    pub(crate) what: String,
}

/// What of the router was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The process, and what it knows.
    Process,
    /// Nothing but the position in Kafka.
    Position { died: Instant, restarted: Instant },
}

/// Somebody went back to a bookmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// What each record that is sent again for it says in its header.
    pub(crate) mark: String,
    /// When the bookmark had been made, and when the way back to it began.
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}
