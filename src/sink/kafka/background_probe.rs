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
        let under_way = Arc::clone(&self.0);
        drop(tokio::task::spawn_blocking(move || {
            start();
            under_way.store(false, Ordering::Release);
        }));
        true
    }

    #[cfg(test)]
    pub(super) fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn there_is_one_look_at_a_time_and_then_another() {
        let probe = BackgroundProbe::default();
        let (end, ended) = channel::<()>();
        assert!(probe.start(move || assert!(ended.recv().is_err())));
        assert!(!probe.start(|| panic!("a second one")));
        drop(end);
        while probe.is_under_way() {
            tokio::task::yield_now().await;
        }
        assert!(probe.start(|| {}));
    }
}
