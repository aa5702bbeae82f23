//! What a fault leaves behind for the judgement.

use std::time::Instant;

use outbox_router::lsn::Lsn;

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
    /// Nothing but what it had put down somewhere.
    Position {
        died: Instant,
        restarted: Instant,
        /// Where the slot stood while no router ran.
        confirmed: Lsn,
    },
}
