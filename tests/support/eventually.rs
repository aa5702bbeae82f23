//! Waiting for a condition, which is the only way in which tests wait.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// More than anything takes on a busy machine. It is not a limit that the router has to meet.
const DEADLINE: Duration = Duration::from_secs(180);

pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// Probes ask servers that all tests share, so they come less often the longer a test waits.
const LONGEST_INTERVAL: Duration = Duration::from_millis(100);

/// Polls `probe` until it returns a value. A probe that never returns fails the test too.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let (deadline, mut interval) = (Instant::now() + DEADLINE, INTERVAL);
    loop {
        if let Ok(Some(answer)) = timeout_at(deadline, probe()).await {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        sleep(interval).await;
        interval = (interval * 5 / 4).min(LONGEST_INTERVAL);
    }
}
