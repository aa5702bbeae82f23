//! How long nothing was acknowledged: a figure to read, which no test is judged by.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::router::{Router, page};

/// Asks a router under load again and again how many events were acknowledged.
pub(crate) struct Standstill {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Standstill {
    pub(crate) fn watch(router: &Router) -> Self {
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
        Standstill { stop, thread }
    }

    /// The longest time between two acknowledgements.
    pub(crate) fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
