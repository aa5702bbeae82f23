//! Until when the server is known to have heard from this session, which is what holds the slot for it.
//!
//! An answer may lie unread while this process gets no time, so what counts is when the server has sent it, by the
//! server's own clock. The two clocks are laid side by side at the answer that took the least time.

use std::time::Duration;

use tokio::time::Instant;

use crate::postgres::pgoutput::PgTimestamp;

/// By how much two clocks may run apart: a thousandth.
const APART: u32 = 1000;

#[derive(Debug)]
pub(super) struct Answers {
    last: Instant,
    /// When the fastest answer was read here, and when the server had sent it.
    fastest: Option<(Instant, PgTimestamp)>,
}

impl Answers {
    pub(super) fn new(now: Instant) -> Answers {
        Answers { last: now, fastest: None }
    }

    /// Nothing is read on purpose, so nothing is known: what is to be answered counts from now.
    pub(super) fn not_listening(&mut self, now: Instant) {
        self.last = now;
    }

    /// At that time at the earliest the server had the session.
    pub(super) fn seen(&mut self, at: Instant) {
        self.last = self.last.max(at);
    }

    /// An answer was read.
    pub(super) fn answered(&mut self, now: Instant, sent: PgTimestamp) {
        let sent_here = self.fastest.and_then(|(read, then)| {
            let since = u64::try_from(sent.0.checked_sub(then.0)?).ok()?;
            let drift = now.saturating_duration_since(read) / APART;
            read.checked_add(Duration::from_micros(since) + drift)
        });
        match sent_here.filter(|here| *here < now) {
            Some(here) => self.last = self.last.max(here),
            // the fastest so far, or one whose clock was set
            None => {
                self.fastest = Some((now, sent));
                self.last = now;
            }
        }
    }

    /// For how long the server may not have heard from this session.
    pub(super) fn unanswered(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn server(seconds: i64) -> PgTimestamp {
        PgTimestamp(seconds * 1_000_000)
    }

    #[test]
    fn an_answer_counts_from_when_it_was_sent() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        answers.answered(start + SECOND, server(7));
        assert_eq!(answers.unanswered(start + SECOND), Duration::ZERO);
        // sent two seconds after the first, read five seconds after it
        answers.answered(start + SECOND * 6, server(9));
        let unanswered = answers.unanswered(start + SECOND * 6);
        assert_eq!(unanswered, SECOND * 3 - SECOND * 5 / APART);
    }

    #[test]
    fn an_answer_that_took_less_time_sets_the_clocks() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        answers.answered(start + SECOND * 3, server(0));
        answers.answered(start + SECOND * 5, server(4));
        assert_eq!(answers.unanswered(start + SECOND * 5), Duration::ZERO);
        answers.answered(start + SECOND * 9, server(6));
        assert!(answers.unanswered(start + SECOND * 9) > SECOND);
    }

    #[test]
    fn a_clock_that_is_set_does_no_lasting_harm() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        answers.answered(start, server(1000));
        for back_by in [999, -5000] {
            for second in 1..3 {
                let now = start + SECOND * second;
                answers.answered(now, server(1000 - back_by + i64::from(second)));
                assert_eq!(answers.unanswered(now), Duration::ZERO, "{back_by} {second}");
            }
        }
    }

    #[test]
    fn what_is_not_read_on_purpose_is_not_waited_for() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        answers.answered(start, server(0));
        answers.not_listening(start + SECOND * 60);
        // an old one, from behind a full buffer
        answers.answered(start + SECOND * 61, server(1));
        assert_eq!(answers.unanswered(start + SECOND * 61), SECOND);
    }
}
