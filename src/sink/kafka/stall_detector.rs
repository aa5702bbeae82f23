//! Whether anything is acknowledged; and if not, who is asked for the reason, and when it is told.
//!
//! One reason is told at a time, or they would be logged in turns: no broker can be reached; else the positions topic cannot
//! acknowledge; else what the topic of the oldest record, or a transaction, waits for.

use tokio::time::{Duration, Instant};

use super::checkpointer::Checkpointer;
use super::publisher::Publisher;
use super::{LOOK_AFTER, STALLED};
use crate::monitor::Monitor;
use crate::progress::Position;

/// A broker that does not even answer is given longer: librdkafka may be about to give it up, and says why then.
const UNANSWERED: Duration = Duration::from_secs(8);

/// What is said where a position is not acknowledged, and the metadata of its topic does not explain it.
const UNEXPLAINED: &str = "the brokers answer, but do not acknowledge it; their logs say why";

/// The clocks of one session.
pub(super) struct StallDetector {
    /// The position as it was when it moved last, and when that was, or when the brokers came back.
    moved: (Position, Instant),
    /// When anything at all was acknowledged last, or need not be, or when the brokers came back.
    acknowledged: Instant,
    /// When the positions topic was last in the way of everything.
    checkpoints_in_the_way: Option<Instant>,
    brokers_down: bool,
}

/// What waits for acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unacknowledged {
    /// The topic of the oldest record.
    pub(super) oldest_topic: Option<usize>,
    /// Whether any is with the brokers at all.
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

    /// Something was acknowledged, or nothing waits for it.
    pub(super) fn acknowledged(&mut self) {
        self.acknowledged = Instant::now();
    }

    /// A turn of the loop is over: `position` is certain, or `nothing_waits`. Whether events flow, as far as that says it.
    pub(super) fn turned(&mut self, position: Position, nothing_waits: bool) -> bool {
        let moved = position != self.moved.0;
        if moved || nothing_waits {
            self.moved = (position, Instant::now());
        }
        if nothing_waits {
            self.acknowledged = self.moved.1;
        }
        moved
    }

    /// Whether any broker can be reached now.
    pub(super) fn reached(&mut self, reached: bool) {
        if self.brokers_down && reached {
            // what waited for them has its time to be acknowledged
            self.moved.1 = Instant::now();
            self.acknowledged = self.moved.1;
        }
        self.brokers_down = !reached;
    }

    /// Asks and tells why nothing is acknowledged, if that is so. Never blocks; meant for once a second.
    pub(super) fn look(
        &mut self,
        sink: &mut Publisher,
        checkpointer: &mut Checkpointer,
        monitor: &Monitor,
        waiting: Unacknowledged,
    ) {
        sink.look_for_failure();
        let silence = self.acknowledged.elapsed();
        let silent = silence > STALLED;
        if self.brokers_down || silent {
            sink.look_for_lost_sight();
        }
        checkpointer.look_for_lost_sight();
        if self.brokers_down {
            sink.look_for_brokers();
        } else {
            let silence = silence.max(checkpointer.waits_for());
            let unanswered = silence > UNANSWERED;
            sink.look_into_silence(silence);
            let blocked = waiting.oldest_topic.filter(|_| self.moved.1.elapsed() > STALLED);
            // what holds a position back holds back everything
            if self.look_at_checkpoints(sink, checkpointer, monitor) {
                self.checkpoints_in_the_way = Some(Instant::now());
            }
            // when it is out of the way, what waited for it still takes a moment
            let explained = self.checkpoints_in_the_way.is_some_and(|last| last.elapsed() < STALLED);
            let ends_late = !explained && checkpointer.ends_late();
            let slow = checkpointer.slow();
            if ends_late {
                sink.commit_is_late(unanswered);
            } else if !explained && checkpointer.is_late(waiting.with_brokers) && !sink.obstacle_is_told() {
                sink.silent(slow.as_deref(), unanswered);
            }
            let told = explained || ends_late;
            let silent = (silent && !told).then_some((slow.as_deref(), unanswered));
            sink.look_at_topics(blocked.filter(|_| !told), silent);
        }
        if self.brokers_down || sink.obstacle_is_told() {
            checkpointer.held_up();
        }
    }

    /// Looks at the positions topic while a position waits for its acknowledgement. In exactly-once records wait too: the
    /// transaction before theirs ends only when all of its partitions can be written. Whether that topic is in the way.
    fn look_at_checkpoints(
        &self,
        sink: &mut Publisher,
        checkpointer: &mut Checkpointer,
        monitor: &Monitor,
    ) -> bool {
        let exactly_once = checkpointer.is_transactional();
        let silence = self.acknowledged.elapsed();
        let records = if exactly_once { silence } else { Duration::ZERO };
        let position = checkpointer.position_waits_for();
        if position.max(records) < LOOK_AFTER {
            sink.positions_flow();
            return false;
        }
        let (reason, in_the_way) = match (sink.look_at_positions(), sink.positions_not_seen()) {
            (Some(Err(reason)), _) => (reason, exactly_once),
            // in exactly-once the brokers may merely be slow, which is told where the transactions are
            _ if position <= STALLED || exactly_once => return false,
            // of a broker for which events wait too, they tell
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
