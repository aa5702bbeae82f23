//! An optional timer for `select!`.

use tokio::time::{Instant, sleep_until};

/// Waits for the deadline, or forever if there is none.
pub async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
