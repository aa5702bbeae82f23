//! How far the setup of many topics is.

use std::time::{Duration, Instant};

use indicatif::HumanCount;

/// Topics that are needed sooner after the last ones belong to the same count.
const SAME_COUNT: Duration = Duration::from_secs(10);

/// How many topics of those known so far are ready.
#[derive(Debug, Default)]
pub(super) struct TopicProgress {
    ready: usize,
    total: usize,
    /// When the last topics became ready.
    last: Option<Instant>,
}

impl TopicProgress {
    /// Begins to set up topics; this many are not ready. Returns whether that begins a new count.
    pub(super) fn begin(&mut self, missing: usize) -> bool {
        let new = self.last.is_none_or(|last| last.elapsed() > SAME_COUNT);
        if new {
            self.ready = 0;
            self.last = Some(Instant::now());
        }
        self.total = self.ready + missing;
        new
    }

    /// This many more are ready.
    pub(super) fn ready(&mut self, count: usize) {
        self.ready += count;
        self.last = Some(Instant::now());
    }

    /// For the state; `None` for a single topic.
    pub(super) fn text(&self, creating: bool) -> Option<String> {
        let what = if creating { "creating" } else { "looking up" };
        let [ready, total] = [self.ready, self.total].map(|count| HumanCount(count as u64));
        (self.total > 1).then(|| format!("{what} topics: {ready} of {total}"))
    }

    /// Logs it. Topics that exist are looked up at each start, and that is no news.
    pub(super) fn log(&self, creating: bool) {
        match self.text(creating) {
            Some(progress) if creating => tracing::info!("{progress}"),
            Some(progress) => tracing::debug!("{progress}"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_that_follow_soon_are_counted_together() {
        let mut progress = TopicProgress::default();
        assert!(progress.begin(1));
        assert_eq!(progress.text(true), None, "a single topic is nothing to watch");
        progress.ready(1);
        assert!(!progress.begin(2_999));
        assert_eq!(progress.text(false).as_deref(), Some("looking up topics: 1 of 3,000"));
        progress.ready(999);
        progress.begin(2_500);
        assert_eq!(progress.text(true).as_deref(), Some("creating topics: 1,000 of 3,500"));
        progress.last = Instant::now().checked_sub(2 * SAME_COUNT);
        assert!(progress.begin(2));
        assert_eq!(progress.text(true).as_deref(), Some("creating topics: 0 of 2"));
    }
}
