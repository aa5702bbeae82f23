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
    /// Its choices, for people.
    pub(crate) what: String,
}

/// What of the router was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The process, and what it knows. It may have lost its sessions, so many of them.
    Process { sessions: u64 },
    /// Nothing but what it had put down somewhere.
    Position {
        died: Instant,
        restarted: Instant,
        /// Where the slot stood while no router ran.
        confirmed: Lsn,
    },
}
