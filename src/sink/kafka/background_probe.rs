//! Looks that nobody waits for: one at a time of a kind, on a thread that may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether one is under way.
#[derive(Debug, Default)]
pub(super) struct BackgroundProbe(Arc<AtomicBool>);

impl BackgroundProbe {
    /// Begins one, unless one is under way. Whether it has.
    pub(super) fn look(&self, look: impl FnOnce() + Send + 'static) -> bool {
        if self.0.swap(true, Ordering::AcqRel) {
            return false;
        }
        let under_way = Arc::clone(&self.0);
        drop(tokio::task::spawn_blocking(move || {
            look();
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
        let aside = BackgroundProbe::default();
        let (end, ended) = channel::<()>();
        assert!(aside.look(move || assert!(ended.recv().is_err())));
        assert!(!aside.look(|| panic!("a second one")));
        drop(end);
        while aside.is_under_way() {
            tokio::task::yield_now().await;
        }
        assert!(aside.look(|| {}));
    }
}
