//! Whether this process stood still: stopped by a signal, starved, or asleep with its machine.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// No turn takes so long, unless the process gets no time.
const LONG: Duration = Duration::from_millis(100);

/// The loop turns several times a second, whatever there is to do.
#[derive(Debug)]
pub(super) struct Awake {
    /// It stands still while the machine sleeps,
    last: Instant,
    /// and this one does not, but may be set.
    wall: SystemTime,
}

impl Awake {
    pub(super) fn new(now: Instant, wall: SystemTime) -> Self {
        Awake { last: now, wall }
    }

    /// Whether the turn under way has taken so long that another router may have the slot: that is asked before it goes on.
    pub(super) fn is_overdue(&self, now: Instant, wall: SystemTime) -> bool {
        self.since(now, wall) > LONG
    }

    /// How long the last turn took at most. A clock that was set back tells nothing, one that was set ahead too much.
    pub(super) fn turned(&mut self, now: Instant, wall: SystemTime) -> Duration {
        std::mem::replace(self, Awake::new(now, wall)).since(now, wall)
    }

    fn since(&self, now: Instant, wall: SystemTime) -> Duration {
        let by_the_wall = wall.duration_since(self.wall).unwrap_or_default();
        now.saturating_duration_since(self.last).max(by_the_wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_that_stood_still_finds_out_by_either_clock() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let mut awake = Awake::new(now, wall);
        assert_eq!(awake.turned(now + SECOND, wall + SECOND), SECOND);
        // stopped
        assert_eq!(awake.turned(now + SECOND * 9, wall + SECOND * 9), SECOND * 8);
        // asleep
        assert_eq!(awake.turned(now + SECOND * 10, wall + SECOND * 99), SECOND * 90);
        // set back
        assert_eq!(awake.turned(now + SECOND * 11, wall), SECOND);
    }

    #[test]
    fn a_turn_in_which_the_process_stood_still_is_overdue_by_either_clock() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let awake = Awake::new(now, wall);
        assert!(!awake.is_overdue(now + LONG, wall + LONG));
        assert!(awake.is_overdue(now + SECOND, wall));
        assert!(awake.is_overdue(now, wall + SECOND));
        assert!(!awake.is_overdue(now + LONG, wall - SECOND));
    }
}
