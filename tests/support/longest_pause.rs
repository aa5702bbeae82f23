//! The longest time without an acknowledgement: a figure that tests print but do not limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::router::{Router, page};

/// Polls the number of acknowledged events of a router under load.
pub(crate) struct LongestPause {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl LongestPause {
    pub(crate) fn measure(router: &Router) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (port, stopped) = (router.admin_port().unwrap(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (mut events, mut moved, mut longest) = (0, Instant::now(), Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let status = page(port, "/status").map(|(_, body)| body).unwrap_or_default();
                let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
                let now = status["totals"]["events"].as_u64().unwrap_or(events);
                if now != events {
                    longest = longest.max(moved.elapsed());
                    (events, moved) = (now, Instant::now());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            longest
        });
        LongestPause { stop, thread }
    }

    /// Stops, and returns the longest time between two acknowledgements.
    pub(crate) fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
