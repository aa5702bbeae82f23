//! Which cluster a server belongs to, and whether its history contains a position of another timeline.

use pg_logical::Lsn;

/// What `IDENTIFY_SYSTEM` reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// The system identifier, created by initdb; copies and standbys share it.
    pub identifier: String,
    /// The timeline; a promotion or a restore starts a new one.
    pub timeline: u32,
    /// How far the log is flushed.
    pub flush: Lsn,
}

/// How a server's log relates to a position on another timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descent {
    /// The server's log contains the position.
    Holds,
    /// The server's log left that timeline before the position.
    LeftBefore {
        /// The timeline that was left.
        timeline: u32,
        /// Where it left.
        switch: Lsn,
    },
    /// The server's log does not descend from that timeline, as far as can be read.
    Unrelated,
}

/// Looks for `position`, of `timeline`, in the text of a history file of another timeline: lines of parent timeline, switch
/// point and reason. A line that cannot be read may be the one that counts.
pub fn descent(history: &str, timeline: u32, position: Lsn) -> Descent {
    let mut descends = false;
    for line in history.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.split_whitespace();
        let parent = fields.next().and_then(|parent| parent.parse::<u32>().ok());
        let Some((parent, switch)) = parent.zip(fields.next().and_then(|point| point.parse::<Lsn>().ok()))
        else {
            return Descent::Unrelated;
        };
        descends |= parent == timeline;
        if descends && switch < position {
            return Descent::LeftBefore { timeline: parent, switch };
        }
    }
    if descends { Descent::Holds } else { Descent::Unrelated }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: &str = "1\t0/A000000\tno recovery target specified\n\n2\t0/C000000\tbefore 2026-11-21\n";

    #[test]
    fn no_guessing_a_position_behind_a_switch_point_is_found_out() {
        let left = |timeline, switch| Descent::LeftBefore { timeline, switch: Lsn(switch) };
        for (timeline, position, expected) in [
            (1, 0x9000000, Descent::Holds),
            (1, 0xA000000, Descent::Holds),
            (1, 0xA000001, left(1, 0xA000000)),
            (1, 0xB000000, left(1, 0xA000000)),
            (2, 0xB000000, Descent::Holds),
            (2, 0xD000000, left(2, 0xC000000)),
        ] {
            assert_eq!(descent(HISTORY, timeline, Lsn(position)), expected, "{timeline} {position:X}");
        }
    }

    #[test]
    fn no_guessing_about_a_timeline_that_is_no_ancestor() {
        // two standbys were promoted, one after the other, from the same timeline
        let sibling = "1\t0/C000000\tno recovery target specified\n";
        assert_eq!(descent(sibling, 2, Lsn(0xB000000)), Descent::Unrelated);
        // the old primary came back
        assert_eq!(descent("", 2, Lsn(0xB000000)), Descent::Unrelated);
    }

    #[test]
    fn no_guessing_about_a_history_that_cannot_be_read() {
        assert_eq!(descent("# comment\n1 0/A000000\nx y z\n", 1, Lsn(5)), Descent::Unrelated);
        assert_eq!(descent("1\n", 1, Lsn(5)), Descent::Unrelated);
    }
}
