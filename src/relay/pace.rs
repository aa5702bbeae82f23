//! How long the stream is left alone while many small transactions come.
//!
//! Kafka's client sends what it has as soon as the answer before is there. With a thousand transactions a second that is
//! right: each arrives within a millisecond. With several thousand the requests, of few records each, take the processors of
//! router, broker and consumers, and what comes waits for them. So from some rate on the stream is read every few
//! milliseconds, and each request takes what has come.

use std::time::Duration;

use tokio::time::Instant;

/// Transactions a second up to which nothing waits,
const QUIET: f64 = 1_500.0;
/// and from which on the stream is left alone for the longest time.
const BUSY: f64 = 3_000.0;

/// At 5,000 transactions a second on two processors it makes the 99th percentile a quarter.
const LONGEST: Duration = Duration::from_millis(4);

/// The rate is that of the last one or two of these.
const SPAN: Duration = Duration::from_millis(20);

/// When the stream is read next.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    /// In this span, up to the last look,
    counted: u32,
    /// and since.
    committed: u32,
    /// Transactions a second.
    rate: f64,
    read_at: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { began: now, counted: 0, committed: 0, rate: 0.0, read_at: now }
    }

    /// A transaction has come.
    pub(super) fn committed(&mut self) {
        self.committed = self.committed.saturating_add(1);
    }

    /// When to read, if not at once. All that had come was dealt with.
    pub(super) fn next_read(&mut self, now: Instant) -> Option<Instant> {
        if self.committed > 0 {
            self.counted = self.counted.saturating_add(std::mem::take(&mut self.committed));
            let span = now.saturating_duration_since(self.began);
            if span >= SPAN {
                let rate = f64::from(self.counted) / span.as_secs_f64();
                // what was before a pause says nothing of what comes after it
                self.rate = if span < 2 * SPAN { (self.rate + rate) / 2.0 } else { rate };
                (self.began, self.counted) = (now, 0);
            }
            self.read_at = now + self.pause();
        }
        (self.read_at > now).then_some(self.read_at)
    }

    fn pause(&self) -> Duration {
        LONGEST.mul_f64(((self.rate - QUIET) / (BUSY - QUIET)).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads transactions that come `apart`, as soon as it may, for so long; says how often, and when it read last.
    fn reads(pace: &mut Pace, begin: Instant, apart: Duration, span: Duration) -> (u32, Instant) {
        let (mut reads, mut now, mut came) = (0, begin, begin);
        while now < begin + span {
            // what has come meanwhile; if nothing has, the next one
            came = came.max(now);
            now = came;
            pace.committed();
            reads += 1;
            let next = pace.next_read(now).unwrap_or(now + apart);
            while came + apart < next {
                came += apart;
                pace.committed();
            }
            came += apart;
            now = next;
        }
        (reads, now)
    }

    #[test]
    fn a_thousand_transactions_a_second_are_read_at_once() {
        let begin = Instant::now();
        let (reads, _) =
            reads(&mut Pace::new(begin), begin, Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(reads, 1_000);
    }

    #[test]
    fn five_thousand_are_read_every_four_milliseconds() {
        let begin = Instant::now();
        let (reads, _) =
            reads(&mut Pace::new(begin), begin, Duration::from_micros(200), Duration::from_secs(1));
        assert!((200..=350).contains(&reads), "{reads}");
    }

    #[test]
    fn what_comes_after_a_pause_is_read_at_once() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let (_, end) = reads(&mut pace, begin, Duration::from_micros(200), Duration::from_secs(1));
        let later = end + Duration::from_secs(1);
        assert_eq!(pace.next_read(later), None);
        pace.committed();
        assert_eq!(pace.next_read(later), None);
    }

    #[test]
    fn a_turn_without_a_transaction_puts_nothing_off() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let (_, end) = reads(&mut pace, begin, Duration::from_micros(200), Duration::from_secs(1));
        pace.committed();
        let next = pace.next_read(end);
        assert_eq!(next, Some(end + LONGEST));
        assert_eq!(pace.next_read(end + Duration::from_millis(3)), next);
        assert_eq!(pace.next_read(end + LONGEST), None);
    }
}
