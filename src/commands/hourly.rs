//! What `run` does every hour besides delivering events. A failure stops nothing else.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::monitor::{Monitor, State};

const INTERVAL: Duration = Duration::from_secs(3_600);

/// The wait after a refusal, which somebody may correct.
const RETRY_REFUSED: Duration = Duration::from_secs(300);

/// The wait after a failure that passes by itself.
const RETRY: Duration = Duration::from_secs(60);

/// How often the states of the routers are checked.
const CHECK: Duration = Duration::from_secs(1);

/// Work that is done every hour.
pub(super) trait Pass {
    /// Returns when it may be done.
    async fn ready(&self);

    async fn perform(&self) -> Result<(), Error>;

    /// Logs a failure that is not that of the time before.
    fn log(&self, error: &Error);
}

/// Warns of a failure. `failing`: what it means, as the beginning of a sentence.
pub(super) fn warn(failing: &str, error: &Error) {
    match error {
        Error::Definite(definite) => {
            tracing::warn!(code = %definite.code, remedy = %definite.remedy, "{failing}: {}", definite.what);
        }
        Error::Transient(transient) => tracing::warn!("{failing} for now: {transient}"),
    }
}

/// Repeats it until `stop`.
pub(super) async fn repeat(pass: &impl Pass, stop: &CancellationToken) {
    let mut logged = None;
    while stop.run_until_cancelled(pass.ready()).await.is_some() {
        let done = pass.perform().await;
        if stop.is_cancelled() {
            break;
        }
        let wait = match &done {
            Ok(()) => INTERVAL,
            Err(Error::Transient(_)) => RETRY,
            Err(Error::Definite(_)) => RETRY_REFUSED,
        };
        let problem = done.as_ref().err().map(ToString::to_string);
        if let Err(error) = &done
            && problem != logged
        {
            pass.log(error);
        }
        logged = problem;
        stop.run_until_cancelled(sleep(wait)).await;
    }
}

/// Waits until every router of this process has verified where it resumes, and delivers.
pub(super) async fn all_active(monitors: &[Monitor]) {
    while !monitors.iter().all(|monitor| matches!(monitor.current_state(), State::Active | State::Ended)) {
        sleep(CHECK).await;
    }
}
