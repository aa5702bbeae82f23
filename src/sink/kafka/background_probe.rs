//! Checks that run on a blocking thread, one at a time, without anybody waiting for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a check is running.
#[derive(Debug, Default)]
pub(super) struct BackgroundProbe(Arc<AtomicBool>);

impl BackgroundProbe {
    /// Starts a check unless one is running. Returns whether it did.
    pub(super) fn start(&self, start: impl FnOnce() + Send + 'static) -> bool {
        if self.0.swap(true, Ordering::AcqRel) {
            return false;
        }
        let running = Arc::clone(&self.0);
        drop(tokio::task::spawn_blocking(move || {
            start();
            running.store(false, Ordering::Release);
        }));
        true
    }

    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn one_check_runs_at_a_time() {
        let probe = BackgroundProbe::default();
        let (end, ended) = channel::<()>();
        assert!(probe.start(move || assert!(ended.recv().is_err())));
        assert!(!probe.start(|| panic!("a second one")));
        drop(end);
        while probe.is_running() {
            tokio::task::yield_now().await;
        }
        assert!(probe.start(|| {}));
    }
}
