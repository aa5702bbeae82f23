//! Where a start goes on.

use crate::progress::Position;

/// Where the stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Nothing is remembered: at the slot's own position.
    First(Position),
    /// Where the router left off.
    Resumed(Position),
    /// There was a gap, and it was accepted.
    Accepted(Position),
}

impl Start {
    /// Where.
    pub fn position(self) -> Position {
        let (Start::First(position) | Start::Resumed(position) | Start::Accepted(position)) = self;
        position
    }
}
