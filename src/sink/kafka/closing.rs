//! The end of a session's Kafka clients, which may take as long as a name server does.

use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Peer};
use crate::monitor::{Monitor, State};
use crate::relay::Outcome;

/// How often the main loop says that it turns.
const TURN: Duration = Duration::from_secs(1);

/// An end that takes so long is worth a line.
const LONG: Duration = Duration::from_secs(2);

/// How long a router that was asked to stop waits. It takes some of that to abort a transaction.
const LEAVE: Duration = Duration::from_secs(3);

/// Waits for the clients as long as it takes: the next session must send nothing before what this one has under way is thrown
/// away. When the router stops, there is no next one, and all ends with the process.
pub(super) struct Closing<'a> {
    monitor: &'a Monitor,
    stop: &'a CancellationToken,
    begun: Instant,
    leave_by: Option<Instant>,
    /// Why the session is over, until that was told.
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

    /// Until these clients have ended.
    pub(super) async fn wait(&mut self, clients: impl Future<Output = ()>) {
        let mut clients = std::pin::pin!(clients);
        loop {
            tokio::select! {
                () = &mut clients => return,
                () = tokio::time::sleep(TURN) => self.monitor.turned(),
            }
            if self.stop.is_cancelled() {
                let leave_by = *self.leave_by.get_or_insert_with(|| Instant::now() + LEAVE);
                if Instant::now() >= leave_by {
                    return;
                }
            } else if self.begun.elapsed() > LONG {
                self.tell();
            }
        }
    }

    fn tell(&mut self) {
        let Some((peer, why)) = self.why.take() else { return };
        let reason = format!(
            "{why}; the session's Kafka client has not ended yet: it may be waiting for a name server"
        );
        tracing::warn!(
            peer = peer.label(),
            reason,
            "the session is over, and its Kafka client has not ended yet"
        );
        self.monitor.state(State::Reconnecting { peer, reason });
    }
}
