//! Where a start resumes.

use crate::progress::Position;

/// Where a start resumes, and why there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// No checkpoint is stored: at the slot's own position.
    First(Position),
    /// At the checkpoint.
    Resumed(Position),
    /// After a gap that was accepted.
    Accepted(Position),
}

impl Start {
    /// The position.
    pub fn position(self) -> Position {
        let (Start::First(position) | Start::Resumed(position) | Start::Accepted(position)) = self;
        position
    }
}
