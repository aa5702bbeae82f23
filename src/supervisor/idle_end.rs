//! A server that ends an idle stream every now and then, as serverless ones do: nothing is lost, and the next session is there at once.

use std::convert::Infallible;
use std::time::Duration;

use pg_logical::server_error::{CLOSED, STOPPED};

use super::STABLE_AFTER;
use crate::error::{Peer, Transient};
use crate::monitor::{Monitor, State};

/// After this time without a session, the router is no longer ready.
const LATE: Duration = Duration::from_secs(3);

/// An administrator has terminated the session, or `idle_session_timeout` has.
const ORDERLY: [&str; 2] = ["(SQLSTATE 57P01)", "(SQLSTATE 57P05)"];

/// Whether a session that `lasted` so long has ended in order while nothing was in flight. Such an end is no failure unless the next
/// session fails: it is logged with the next session.
pub(super) fn is_idle_end(failure: &Transient, lasted: Duration, unacknowledged: usize) -> bool {
    let ends = |text: &str| failure.what.ends_with(text);
    let orderly = ends(CLOSED) || ends(STOPPED) || ORDERLY.into_iter().any(ends);
    failure.peer == Peer::Postgres && orderly && unacknowledged == 0 && lasted >= STABLE_AFTER
}

/// Shows the end of the last session as a failure if the next one takes long to start.
pub(super) async fn show_if_late(monitor: &Monitor, last: Option<&Transient>) -> Infallible {
    if let Some(last) = last {
        tokio::time::sleep(LATE).await;
        monitor.state(State::Reconnecting { peer: last.peer, code: None, reason: last.what.clone() });
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_orderly_end_of_a_long_idle_session_is_no_failure() {
        let broke = |why: &str| format!("the replication stream broke: {why}");
        let failed = |what: &str| Transient::new(Peer::Postgres, what);
        let terminated = "the server ended the replication stream: terminating connection due to administrator command (SQLSTATE 57P01)";
        for (failure, lasted, unacknowledged, expected) in [
            (failed(&broke(CLOSED)), STABLE_AFTER, 0, true),
            (failed(&broke(STOPPED)), STABLE_AFTER, 0, true),
            (failed(terminated), STABLE_AFTER, 0, true),
            (failed("idle (SQLSTATE 57P05)"), STABLE_AFTER, 0, true),
            (failed(&broke(CLOSED)), STABLE_AFTER / 2, 0, false),
            (failed(&broke(CLOSED)), STABLE_AFTER, 1, false),
            (Transient::new(Peer::Kafka, broke(CLOSED)), STABLE_AFTER, 0, false),
            (failed(&broke("connection reset by the server")), STABLE_AFTER, 0, false),
            (failed("out of memory (SQLSTATE 53200)"), STABLE_AFTER, 0, false),
        ] {
            assert_eq!(
                is_idle_end(&failure, lasted, unacknowledged),
                expected,
                "{failure} {lasted:?} {unacknowledged}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_session_is_shown_as_lost() {
        let (monitor, _) = Monitor::for_test("shop.outbox_router");
        monitor.state(State::Active);
        let last = Transient::new(Peer::Postgres, CLOSED);
        for (last, waited, ready) in
            [(None, 2 * LATE, true), (Some(&last), LATE / 2, true), (Some(&last), 2 * LATE, false)]
        {
            let _ = tokio::time::timeout(waited, show_if_late(&monitor, last)).await;
            assert_eq!(monitor.current_state().kind().is_ready(), ready, "{last:?} {waited:?}");
        }
    }
}
