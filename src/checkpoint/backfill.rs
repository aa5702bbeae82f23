//! How far the rows from before a slot have been sent.

use serde::{Deserialize, Serialize};

use crate::outbox::Cursor;

/// As the checkpoint stores it, until the stream begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillDone {
    /// The id of the backfill. A later one of the same slot has another.
    pub id: String,
    /// How many rows are acknowledged.
    pub rows: u64,
    /// The last of them.
    pub last: Option<Cursor>,
}
