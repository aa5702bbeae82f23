//! What is recorded of an injected fault, for the judgement.

use std::time::{Duration, Instant};

/// One injected fault.
#[derive(Debug, Clone)]
pub(crate) struct Injected {
    pub(crate) began: Instant,
    /// When it was over: the last server was back, the router restarted, or the network restored.
    pub(crate) back: Instant,
    /// From what the router had to resume.
    pub(crate) left: Left,
    /// Whether a session that it ended may have left a request in flight to the broker.
    pub(crate) on_its_way: bool,
    /// The additional delay of the broker's answers; `None`: it answered normally.
    pub(crate) broker_late: Option<Duration>,
    /// Whether a router that polls was frozen for longer than its lease, and others may have taken over what it had claimed.
    pub(crate) outlasted_lease: bool,
    /// How many rows an application kept locked, so that a router that polls could not mark them.
    pub(crate) kept_locked: u64,
    /// A replay that was requested.
    pub(crate) asked: Option<Asked>,
    /// A period in which events committed in it must not arrive, because a synchronized standby lacks them.
    pub(crate) withheld: Option<(Instant, Instant)>,
    /// Texts that a reason given during the fault has to contain.
    pub(crate) names: &'static [&'static str],
    /// The longest time until events flow again, where a minute is too long.
    pub(crate) recovers_within: Option<Duration>,
    /// Whether it began before the router had caught up after the fault before it.
    pub(crate) overlaps: bool,
    /// A description of its parameters for the progress display.
    pub(crate) what: String,
}

/// What the router resumes from after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The same process, with its state in memory.
    Process,
    /// Only the checkpoint in Kafka.
    Position { died: Instant, restarted: Instant },
}

/// A replay: the slot was reset to a bookmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The value of the replay header of each repeated record.
    pub(crate) mark: String,
    /// When the bookmark had been created, and when the reset to it began.
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}
