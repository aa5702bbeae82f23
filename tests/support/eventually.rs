//! Waiting for a condition: the only way in which tests wait.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// More than anything takes on a busy machine. Nothing is ever measured against it.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// Asks again and again until `probe` has an answer. A probe that itself never comes back fails the test as well.
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Ok(Some(answer)) = timeout_at(deadline, probe()).await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {DEADLINE:?} in vain: {what}");
        sleep(EVERY).await;
    }
}
