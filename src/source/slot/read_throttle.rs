//! Delays reads of the stream while many small transactions arrive.
//!
//! librdkafka sends its queue as soon as the previous answer has arrived. At a thousand transactions a second that is right: each
//! arrives within a millisecond. At several thousand, requests with few records each occupy the processors of router, broker and
//! consumers, and events wait for them. So above some rate the router pauses after each read, and each request carries what has
//! arrived in the meantime.

use std::time::Duration;

use tokio::time::Instant;

/// Transactions a second per step: up to two steps nothing waits, and each further step adds a pause of a millisecond, the
/// resolution of timers.
const STEP: f64 = 1_000.0;

/// The longest pause. At 5,000 transactions a second on two processors it cuts the 99th percentile of latency to a quarter.
const LONGEST: Duration = Duration::from_millis(4);

/// The rate is measured over the last one or two of these spans.
const SPAN: Duration = Duration::from_millis(20);

/// Measures the rate and decides when to read next.
#[derive(Debug)]
pub(super) struct ReadThrottle {
    began: Instant,
    /// Transactions in this span up to the last call of `next_read`.
    counted: u32,
    /// Transactions since then.
    committed: u32,
    /// Transactions a second.
    rate: f64,
    /// Whether the current transaction has an event. Others cause no request.
    has_event: bool,
    read_at: Instant,
}

impl ReadThrottle {
    pub(super) fn new(now: Instant) -> Self {
        ReadThrottle { began: now, counted: 0, committed: 0, rate: 0.0, has_event: false, read_at: now }
    }

    /// An event was read.
    pub(super) fn event(&mut self) {
        self.has_event = true;
    }

    /// A commit was read.
    pub(super) fn commit(&mut self) {
        self.committed = self.committed.saturating_add(u32::from(std::mem::take(&mut self.has_event)));
    }

    /// Whether reads are delayed: then much data in one read does not mean a backlog.
    pub(super) fn is_busy(&self) -> bool {
        self.delay() > Duration::ZERO
    }

    /// When to read next; `None` for at once. Called when everything received is processed.
    pub(super) fn next_read(&mut self, now: Instant) -> Option<Instant> {
        if self.committed > 0 {
            self.counted = self.counted.saturating_add(std::mem::take(&mut self.committed));
            let span = now.saturating_duration_since(self.began);
            if span >= SPAN {
                let rate = f64::from(self.counted) / span.as_secs_f64();
                // after a pause the earlier rate means nothing
                self.rate = if span < 2 * SPAN { (self.rate + rate) / 2.0 } else { rate };
                (self.began, self.counted) = (now, 0);
            }
            self.read_at = now + self.delay();
        }
        (self.read_at > now).then_some(self.read_at)
    }

    fn delay(&self) -> Duration {
        let milliseconds = (self.rate / STEP - 1.0).floor().clamp(0.0, LONGEST.as_secs_f64() * 1e3);
        Duration::from_secs_f64(milliseconds / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a transaction with one event.
    fn come(throttle: &mut ReadThrottle) {
        throttle.event();
        throttle.commit();
    }

    /// Reads transactions that arrive `apart` from each other, as early as allowed, for `span`. Returns the number of reads and
    /// the time of the last.
    fn reads(throttle: &mut ReadThrottle, begin: Instant, apart: Duration, span: Duration) -> (u32, Instant) {
        let (mut reads, mut now, mut came) = (0, begin, begin);
        while now < begin + span {
            // everything that has arrived, or else the next one
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

    /// Reads per second once the rate is known.
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
        // a read waits for the first transaction after the millisecond
        assert!((800..=1_001).contains(&reads), "{reads}");
    }

    #[test]
    fn transactions_without_events_cause_no_delay() {
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
    fn the_first_transaction_after_a_pause_is_read_at_once() {
        let begin = Instant::now();
        let mut throttle = ReadThrottle::new(begin);
        let (_, end) = reads(&mut throttle, begin, Duration::from_micros(180), Duration::from_secs(1));
        let later = end + Duration::from_secs(1);
        assert_eq!(throttle.next_read(later), None);
        come(&mut throttle);
        assert_eq!(throttle.next_read(later), None);
    }

    #[test]
    fn a_call_without_a_transaction_delays_nothing() {
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
