//! How many duplicates a fault may bring while routers poll the table: an upper bound.
//!
//! A router sends a row again if it, or the router that claimed the row before, ended or lost its session before the row was marked.
//! So each of these brings at most as many repetitions as a router may have claimed and not marked. A router that was frozen for longer
//! than its lease has lost its claims to others, too. And a row that an application keeps locked cannot be marked; it is released and
//! sent again when its lease runs out.
//!
//! What arrives late can only be one request of a session that has ended, which holds records of one partition. Only a router that was
//! frozen for longer than its lease may send all that its client had queued, as docs/polling.md says.

use std::time::Instant;

use crate::allowance::{Allowed, Seen};
use crate::injected::{Injected, Left};

/// How many rows a router may have claimed and not marked (`MAX_ROWS` in src/supervisor/polling.rs).
const MAX_ROWS: u64 = 5_000;

/// More partitions than there are.
const EVERY_PARTITION: u64 = 1_000;

/// Computes it; `until` is when the next fault began.
pub(crate) fn allowed(injected: &Injected, seen: Seen<'_>, until: Instant) -> Allowed {
    let was_ended = u64::from(injected.left != Left::Process);
    let ended = was_ended + seen.sessions_of(injected, until).count() as u64;
    let outlasted = u64::from(injected.outlasted_lease);
    let late = if injected.on_its_way { ended } else { 0 };
    Allowed {
        duplicates: (ended + outlasted) * MAX_ROWS + injected.kept_locked,
        stale_partitions: late + outlasted * EVERY_PARTITION,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::allowance::Session;
    use crate::faults::survived;

    /// Began at 1 s; the next fault began at 3 s. Sessions begin at these milliseconds; the flag says whether they are the first ones of
    /// their processes.
    fn allowed_after(alter: impl Fn(&mut Injected), sessions: &[(u64, bool)]) -> (u64, u64) {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut injected = survived(at(1_000), at(2_000), String::new());
        alter(&mut injected);
        if injected.left != Left::Process {
            injected.left = Left::Position { died: at(1_000), restarted: at(2_000) };
        }
        let sessions: Vec<Session> =
            sessions.iter().map(|(ms, first)| Session { at: at(*ms), first: *first }).collect();
        let (looks, marks, arrivals, again, positions) = (&[][..], &[][..], &[][..], &[][..], &[][..]);
        let seen = Seen { looks, marks, sessions: &sessions, arrivals, again, positions, standbys: true };
        let Allowed { duplicates, stale_partitions } = allowed(&injected, seen, at(3_000));
        (duplicates, stale_partitions)
    }

    #[test]
    fn each_router_that_ended_or_lost_its_session_may_repeat_what_it_had_claimed() {
        let lives = |_: &mut Injected| {};
        let now = Instant::now();
        let dies = |injected: &mut Injected| injected.left = Left::Position { died: now, restarted: now };
        let frozen = |injected: &mut Injected| injected.outlasted_lease = true;
        let purged = |injected: &mut Injected| injected.on_its_way = false;
        let locked = |injected: &mut Injected| injected.kept_locked = 7;
        let case = |alter: &dyn Fn(&mut Injected), sessions: &[(u64, bool)]| allowed_after(alter, sessions);
        let cases = [
            (case(&lives, &[]), (0, 0)),
            // of other faults
            (case(&lives, &[(900, false), (3_000, false)]), (0, 0)),
            (case(&lives, &[(1_500, false), (1_600, false)]), (10_000, 2)),
            // its first session is that of the router that was ended
            (case(&dies, &[(2_100, true)]), (5_000, 1)),
            (case(&dies, &[(2_100, true), (2_500, false)]), (10_000, 2)),
            (case(&frozen, &[]), (5_000, EVERY_PARTITION)),
            (case(&purged, &[(1_500, false)]), (5_000, 0)),
            (case(&locked, &[]), (7, 0)),
        ];
        for (number, (allowed, expected)) in cases.into_iter().enumerate() {
            assert_eq!(allowed, expected, "case {number}");
        }
    }
}
