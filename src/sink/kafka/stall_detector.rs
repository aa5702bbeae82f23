//! Detects that nothing is acknowledged, decides whom to ask for the reason, and when to report it.
//!
//! Only one reason is reported at a time, or the log would alternate between them: first that no broker can be reached,
//! then that the positions topic cannot acknowledge, then what the oldest record's topic or a transaction waits for.

use tokio::time::{Duration, Instant};

use super::checkpointer::Checkpointer;
use super::publisher::Publisher;
use super::{PROBE_AFTER, STALLED};
use crate::monitor::Monitor;
use crate::progress::Position;

/// A broker that does not answer at all gets longer: librdkafka may be about to drop the connection, and then logs the
/// reason.
const UNANSWERED: Duration = Duration::from_secs(8);

/// The reason if a checkpoint is not acknowledged and the metadata of its topic does not explain it.
const UNEXPLAINED: &str = "the brokers answer, but do not acknowledge it; their logs say why";

/// The stall clocks of one session.
pub(super) struct StallDetector {
    /// The last position, and when it moved there or when the brokers came back.
    moved: (Position, Instant),
    /// When anything was last acknowledged, nothing was waiting, or the brokers came back.
    acknowledged: Instant,
    /// When the positions topic last blocked everything.
    checkpoints_in_the_way: Option<Instant>,
    brokers_down: bool,
}

/// Which records are in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordsInFlight {
    None,
    /// Only parked events that are sent again, outside of a transaction. The position moves past the stream without them.
    Retries,
    /// Records that the position waits for.
    Stream,
}

/// What is waiting for acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unacknowledged {
    /// The topic of the oldest record.
    pub(super) oldest_topic: Option<usize>,
    /// Whether any record is with the brokers.
    pub(super) with_brokers: bool,
}

impl StallDetector {
    pub(super) fn new(start: Position) -> Self {
        let now = Instant::now();
        StallDetector {
            moved: (start, now),
            acknowledged: now,
            checkpoints_in_the_way: None,
            brokers_down: false,
        }
    }

    /// Something was acknowledged, or nothing waits for the brokers.
    pub(super) fn acknowledged(&mut self) {
        self.acknowledged = Instant::now();
    }

    /// Call this in each iteration of the loop, with the resume position. Returns whether it has moved past records.
    pub(super) fn progressed(&mut self, position: Position, in_flight: RecordsInFlight) -> bool {
        let moved = position != self.moved.0 && in_flight != RecordsInFlight::Retries;
        if moved || in_flight == RecordsInFlight::None {
            self.moved.1 = Instant::now();
        }
        self.moved.0 = position;
        if in_flight == RecordsInFlight::None {
            self.acknowledged = self.moved.1;
        }
        moved
    }

    /// Records whether any broker can be reached.
    pub(super) fn reached(&mut self, reached: bool) {
        if self.brokers_down && reached {
            // records that waited for the brokers get the full time to be acknowledged
            self.moved.1 = Instant::now();
            self.acknowledged = self.moved.1;
        }
        self.brokers_down = !reached;
    }

    /// If nothing is acknowledged, asks the brokers why, and reports the reason. Never blocks; called once a second.
    pub(super) fn check(
        &mut self,
        sink: &mut Publisher,
        checkpointer: &mut Checkpointer,
        monitor: &Monitor,
        waiting: Unacknowledged,
    ) {
        sink.check_fatal_error();
        let silence = self.acknowledged.elapsed();
        let silent = silence > STALLED;
        if self.brokers_down || silent {
            sink.check_stale_metadata();
        }
        checkpointer.check_stale_metadata();
        if self.brokers_down {
            sink.probe_brokers();
        } else {
            let silence = silence.max(checkpointer.waits_for());
            let unanswered = silence > UNANSWERED;
            sink.check_open_transaction(silence);
            let blocked = waiting.oldest_topic.filter(|_| self.moved.1.elapsed() > STALLED);
            // a blocked checkpoint blocks everything
            if self.check_positions_topic(sink, checkpointer, monitor) {
                self.checkpoints_in_the_way = Some(Instant::now());
            }
            // once it is unblocked, records that waited for it still take a moment
            let explained = self.checkpoints_in_the_way.is_some_and(|last| last.elapsed() < STALLED);
            let end_is_overdue = !explained && checkpointer.end_is_overdue();
            let slow = checkpointer.slow();
            if end_is_overdue {
                sink.report_late_commit(unanswered);
            } else if !explained
                && checkpointer.is_overdue(waiting.with_brokers)
                && !sink.stall_is_explained()
            {
                sink.report_silence(slow.as_deref(), unanswered);
            }
            let reported = explained || end_is_overdue;
            let silent = (silent && !reported).then_some((slow.as_deref(), unanswered));
            sink.check_topics(blocked.filter(|_| !reported), silent);
        }
        if self.brokers_down || sink.stall_is_explained() {
            checkpointer.delay_is_explained();
        }
    }

    /// Checks the positions topic while a checkpoint waits for its acknowledgement. In exactly-once mode records wait too,
    /// because the transaction before theirs ends only when all its partitions can be written. Returns whether the topic
    /// blocks them.
    fn check_positions_topic(
        &self,
        sink: &mut Publisher,
        checkpointer: &mut Checkpointer,
        monitor: &Monitor,
    ) -> bool {
        let exactly_once = checkpointer.is_transactional();
        let silence = self.acknowledged.elapsed();
        let records = if exactly_once { silence } else { Duration::ZERO };
        let position = checkpointer.position_waits_for();
        if position.max(records) < PROBE_AFTER {
            sink.positions_acknowledged();
            return false;
        }
        let (reason, in_the_way) = match (sink.check_positions_topic(), sink.positions_topic_unanswered()) {
            (Some(Err(reason)), _) => (reason, exactly_once),
            // in exactly-once mode the brokers may merely be slow, which the check of transactions reports
            _ if position <= STALLED || exactly_once => return false,
            // if events wait for the broker too, their topic's check reports it
            (_, Some(_)) if position <= UNANSWERED || silence > STALLED => return false,
            (_, Some(why)) => (why.to_owned(), false),
            (Some(Ok(())), None) => (UNEXPLAINED.to_owned(), false),
            (None, None) => return false,
        };
        if position.max(records) > STALLED {
            checkpointer.not_acknowledged(reason, sink);
            checkpointer.show(monitor);
        }
        in_the_way
    }
}
