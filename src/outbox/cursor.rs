//! The place of a row in its table.

use serde::{Deserialize, Serialize};

/// The values of a row by which it is found again, as Postgres writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The time of the insert, in microseconds since 1970.
    pub micros: i64,
    /// That time as text.
    pub created_at: String,
    /// What tells the order of rows of the same time, as text.
    pub ties: Vec<String>,
}
