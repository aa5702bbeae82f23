//! Waits for a session's Kafka clients to end, which a slow name server can delay.

use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::relay::Outcome;

/// How often the main loop signals that it is alive.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// After this time the wait is logged.
const LOG_AFTER: Duration = Duration::from_secs(2);

/// How long a router that was asked to stop waits. Aborting a transaction takes part of this time.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Waits without limit: the next session must not send anything before this one's queued records are purged. When the
/// router stops, there is no next session, and the process ends the clients.
pub(super) struct Closing<'a> {
    monitor: &'a Monitor,
    stop: &'a CancellationToken,
    begun: Instant,
    leave_by: Option<Instant>,
    /// Why the session is over; taken when it is logged.
    why: Option<(Peer, String)>,
}

impl<'a> Closing<'a> {
    pub(super) fn new(outcome: &Outcome, monitor: &'a Monitor, stop: &'a CancellationToken) -> Self {
        let why = match outcome {
            Outcome::Failed(Error::Transient(failure)) => (failure.peer, failure.what.clone()),
            Outcome::Failed(Error::Definite(definite)) => (Peer::Postgres, definite.what.clone()),
            Outcome::Refused(refusal) => (Peer::Kafka, refusal.why.what.clone()),
            Outcome::Stopped | Outcome::SourceEnded => (Peer::Kafka, "the session is over".to_owned()),
        };
        Closing { monitor, stop, begun: Instant::now(), leave_by: None, why: Some(why) }
    }

    /// Waits until these clients have ended.
    pub(super) async fn wait(&mut self, clients: impl Future<Output = ()>) {
        let mut clients = std::pin::pin!(clients);
        loop {
            tokio::select! {
                () = &mut clients => return,
                () = tokio::time::sleep(ALIVE_INTERVAL) => self.monitor.main_loop_ran(),
            }
            if self.stop.is_cancelled() {
                let leave_by = *self.leave_by.get_or_insert_with(|| Instant::now() + STOP_TIMEOUT);
                if Instant::now() >= leave_by {
                    return;
                }
            } else if self.begun.elapsed() > LOG_AFTER {
                self.log_wait();
            }
        }
    }

    fn log_wait(&mut self) {
        let Some((peer, why)) = self.why.take() else { return };
        let reason = format!(
            "{why}; the session's Kafka client has not ended yet: it may be waiting for a name server"
        );
        tracing::warn!(
            peer = peer.label(),
            reason,
            "the session is over, and its Kafka client has not ended yet"
        );
        self.monitor.state(State::Reconnecting { peer, code: None, reason });
    }
}
