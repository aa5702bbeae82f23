//! How long the stream is left alone while many small transactions come.
//!
//! Kafka's client sends what it has as soon as the answer before is there. With a thousand transactions a second that is
//! right: each arrives within a millisecond. With several thousand the requests, of few records each, take the processors of
//! router, broker and consumers, and what comes waits for them. So from some rate on the stream is left alone
//! after each read, and each request takes what has come meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// Up to twice as many transactions a second nothing waits; with each more the stream is left alone for a millisecond longer,
/// since timers are no finer.
const STEP: f64 = 1_000.0;

/// At 5,000 transactions a second on two processors it makes the 99th percentile a quarter.
const LONGEST: Duration = Duration::from_millis(4);

/// The rate is that of the last one or two of these.
const SPAN: Duration = Duration::from_millis(20);

/// When the stream is read next.
#[derive(Debug)]
pub(super) struct ReadThrottle {
    began: Instant,
    /// In this span, up to the last look,
    counted: u32,
    /// and since.
    committed: u32,
    /// Transactions a second.
    rate: f64,
    /// The transaction under way has an event. Others make no request.
    has_event: bool,
    read_at: Instant,
}

impl ReadThrottle {
    pub(super) fn new(now: Instant) -> Self {
        ReadThrottle { began: now, counted: 0, committed: 0, rate: 0.0, has_event: false, read_at: now }
    }

    /// An event has come.
    pub(super) fn event(&mut self) {
        self.has_event = true;
    }

    /// A transaction has come to its end.
    pub(super) fn commit(&mut self) {
        self.committed = self.committed.saturating_add(u32::from(std::mem::take(&mut self.has_event)));
    }

    /// Whether so many come that the stream is left alone after each read: what a read brings then is no flood.
    pub(super) fn is_busy(&self) -> bool {
        self.pause() > Duration::ZERO
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
        let milliseconds = (self.rate / STEP - 1.0).floor().clamp(0.0, LONGEST.as_secs_f64() * 1e3);
        Duration::from_secs_f64(milliseconds / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction with an event.
    fn come(throttle: &mut ReadThrottle) {
        throttle.event();
        throttle.commit();
    }

    /// Reads transactions that come `apart`, as soon as it may, for so long; says how often, and when it read last.
    fn reads(throttle: &mut ReadThrottle, begin: Instant, apart: Duration, span: Duration) -> (u32, Instant) {
        let (mut reads, mut now, mut came) = (0, begin, begin);
        while now < begin + span {
            // what has come meanwhile; if nothing has, the next one
            came = came.max(now);
            now = came;
            come(throttle);
            reads += 1;
            let next = throttle.next_read(now).unwrap_or(now + apart);
            while came + apart < next {
                came += apart;
                come(throttle);
            }
            came += apart;
            now = next;
        }
        (reads, now)
    }

    /// How often it reads in a second when the rate is known.
    fn reads_once_known(apart: Duration) -> u32 {
        let begin = Instant::now();
        let mut throttle = ReadThrottle::new(begin);
        let (_, known) = reads(&mut throttle, begin, apart, Duration::from_millis(200));
        reads(&mut throttle, known, apart, Duration::from_secs(1)).0
    }

    #[test]
    fn a_thousand_transactions_a_second_are_read_at_once() {
        let begin = Instant::now();
        let (reads, _) =
            reads(&mut ReadThrottle::new(begin), begin, Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(reads, 1_000);
    }

    #[test]
    fn more_than_five_thousand_are_read_every_four_milliseconds() {
        let reads = reads_once_known(Duration::from_micros(180));
        assert!((230..=251).contains(&reads), "{reads}");
    }

    #[test]
    fn two_and_a_half_thousand_are_read_every_millisecond() {
        let reads = reads_once_known(Duration::from_micros(400));
        // the first that comes after the millisecond is waited for
        assert!((800..=1_001).contains(&reads), "{reads}");
    }

    #[test]
    fn transactions_of_other_tables_are_no_reason_to_wait() {
        let begin = Instant::now();
        let mut throttle = ReadThrottle::new(begin);
        for millisecond in 1..1_000 {
            (0..10).for_each(|_| throttle.commit());
            if millisecond % 20 == 0 {
                come(&mut throttle);
            }
            assert_eq!(throttle.next_read(begin + Duration::from_millis(millisecond)), None);
        }
        assert!(!throttle.is_busy());
    }

    #[test]
    fn what_comes_after_a_pause_is_read_at_once() {
        let begin = Instant::now();
        let mut throttle = ReadThrottle::new(begin);
        let (_, end) = reads(&mut throttle, begin, Duration::from_micros(180), Duration::from_secs(1));
        let later = end + Duration::from_secs(1);
        assert_eq!(throttle.next_read(later), None);
        come(&mut throttle);
        assert_eq!(throttle.next_read(later), None);
    }

    #[test]
    fn a_turn_without_a_transaction_puts_nothing_off() {
        let begin = Instant::now();
        let mut throttle = ReadThrottle::new(begin);
        let (_, end) = reads(&mut throttle, begin, Duration::from_micros(180), Duration::from_secs(1));
        come(&mut throttle);
        let next = throttle.next_read(end);
        assert_eq!(next, Some(end + LONGEST));
        assert_eq!(throttle.next_read(end + Duration::from_millis(3)), next);
        assert_eq!(throttle.next_read(end + LONGEST), None);
    }
}
