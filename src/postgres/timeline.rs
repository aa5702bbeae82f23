//! Which cluster this is, and whether its history contains our position.

use super::server_error::QueryError;
use super::session::Session;
use crate::error::{Error, Peer};
use crate::lsn::Lsn;

/// The answer to IDENTIFY_SYSTEM (Postgres manual, "Streaming Replication Protocol").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// The cluster's identifier, made by initdb; copies and standbys share it.
    pub identifier: String,
    /// The timeline: a promotion or a restore starts a new one.
    pub timeline: u32,
    /// How far the log is flushed.
    pub flush: Lsn,
}

impl System {
    /// Asks a replication session.
    pub async fn identify(session: &mut Session) -> Result<Self, QueryError> {
        let rows = session.query("IDENTIFY_SYSTEM").await?;
        let system = rows.first().and_then(|row| {
            Some(System {
                identifier: row.get(0)?.to_owned(),
                timeline: row.get(1)?.parse().ok()?,
                flush: row.get(2)?.parse().ok()?,
            })
        });
        system.ok_or_else(|| Error::transient(Peer::Postgres, "IDENTIFY_SYSTEM gave no answer").into())
    }

    /// The history file of its timeline: which timelines it came from, and where it left them.
    pub async fn history(&self, session: &mut Session) -> Result<String, QueryError> {
        let rows = session.query(&format!("TIMELINE_HISTORY {}", self.timeline)).await?;
        Ok(rows.first().and_then(|row| row.get(1)).unwrap_or_default().to_owned())
    }
}

/// The first switch away from `timeline` or a later one that lies before `position`, from the text of a history file:
/// lines of parent timeline, switch point and reason.
pub fn left_before(history: &str, timeline: u32, position: Lsn) -> Option<(u32, Lsn)> {
    let switch = |line: &str| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?.parse::<u32>().ok()?, fields.next()?.parse::<Lsn>().ok()?))
    };
    history.lines().filter_map(switch).find(|(parent, point)| *parent >= timeline && *point < position)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: &str = "1\t0/A000000\tno recovery target specified\n\n2\t0/C000000\tbefore 2026-11-21\n";

    #[test]
    fn no_guessing_a_position_behind_a_switch_point_is_found_out() {
        for (timeline, position, expected) in [
            (1, 0x9000000, None),
            (1, 0xA000000, None),
            (1, 0xA000001, Some((1, Lsn(0xA000000)))),
            (1, 0xB000000, Some((1, Lsn(0xA000000)))),
            (2, 0xB000000, None),
            (2, 0xD000000, Some((2, Lsn(0xC000000)))),
            (3, 0xD000000, None),
        ] {
            assert_eq!(left_before(HISTORY, timeline, Lsn(position)), expected, "{timeline} {position:X}");
        }
    }

    #[test]
    fn a_history_that_cannot_be_read_holds_no_switch() {
        assert_eq!(left_before("# comment\nx y z\n1\n", 1, Lsn(5)), None);
    }
}
