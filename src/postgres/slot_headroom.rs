//! How close the slot is to being lost: the server's own figures, and how fast the headroom shrinks.
//!
//! `safe_wal_size` is how much log may be written before the slot may be invalidated. It shrinks as the log grows, and grows
//! as the slot advances; what counts is the sum of both over the last minute. Without a limit the slot retains log until the
//! disk is full, and what counts is how fast that grows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::catalog::Slot;
use super::open_transaction::OpenTransaction;
use crate::quantity::{bytes, time};

/// How far back the rate is measured.
const WINDOW: Duration = Duration::from_secs(60);

/// Over a shorter time, no rate is computed.
const MIN_SPAN: Duration = Duration::from_secs(5);

/// The headroom is short below the first share of the limit, however slowly it shrinks; once it is short, the second share
/// applies.
const SHORT_SHARE: (f64, f64) = (0.2, 0.3);

/// Less than half of the limit is short if it lasts for less than the first time; once it is short, the second time
/// applies.
const SHORT_TIME: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(1200));

/// How much headroom there is, from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Enough.
    #[default]
    Ample,
    /// `wal_status` is extended: the slot retains more than `max_wal_size`, for which the disk must have room.
    Extended,
    /// Less than a fifth of `max_slot_wal_keep_size` is left, or less than half of it and ten minutes.
    Short,
    /// `wal_status` is unreserved: the slot is lost at the next checkpoint.
    Unreserved,
}

impl Level {
    /// The level of a slot whose last level was `before` and whose headroom lasts for `left`, if it shrinks.
    pub fn of(slot: &Slot, left: Option<Duration>, before: Level) -> Self {
        let status = slot.wal_status.as_deref();
        if status == Some("unreserved") {
            return Level::Unreserved;
        }
        // different thresholds once it is short, or the level would flutter
        let (little, soon) = if before >= Level::Short {
            (SHORT_SHARE.1, SHORT_TIME.1)
        } else {
            (SHORT_SHARE.0, SHORT_TIME.0)
        };
        if let Some(part) = part_left(slot)
            && (part < little || part < 0.5 && left.is_some_and(|left| left < soon))
        {
            return Level::Short;
        }
        if status == Some("extended") { Level::Extended } else { Level::Ample }
    }
}

/// The share of the limit that is left; `None`: there is no limit.
fn part_left(slot: &Slot) -> Option<f64> {
    let (safe, retained) = (safe_bytes(slot)?, slot.retained_bytes?);
    Some(safe as f64 / (safe + retained).max(1) as f64)
}

/// Whether the slot retains much, and most of it not because of its reader but of transactions that were open at its position:
/// `restart_lsn` is that far behind the confirmed position.
pub fn may_be_held(slot: &Slot) -> bool {
    let much =
        slot.wal_status.as_deref() != Some("reserved") || part_left(slot).is_some_and(|left| left < 0.5);
    let (Some(restart), Some(confirmed)) = (slot.restart_lsn, slot.confirmed_flush_lsn) else { return false };
    much && confirmed.0.saturating_sub(restart.0) > slot.retained_bytes.unwrap_or(u64::MAX) / 2
}

/// Bytes that may be written before the slot may be lost; `None`: there is no limit.
pub fn safe_bytes(slot: &Slot) -> Option<u64> {
    // negative once the slot is beyond the limit
    slot.safe_wal_size.map(|size| u64::try_from(size).unwrap_or(0))
}

/// The samples of the last minute, and the resulting level.
#[derive(Debug)]
pub struct SlotHeadroom {
    samples: VecDeque<(Instant, i64)>,
    level: Level,
}

impl SlotHeadroom {
    /// Before the first sample of a session; `before` is the level that was last reported.
    pub fn new(before: Level) -> Self {
        SlotHeadroom { samples: VecDeque::new(), level: before }
    }

    /// Adds a sample, and returns the new level if it changed.
    pub fn add_sample(&mut self, at: Instant, slot: &Slot) -> Option<Level> {
        // without a limit, the log uses up the disk
        let retained = || slot.retained_bytes.map(|bytes| -i64::try_from(bytes).unwrap_or(i64::MAX));
        if let Some(room) = slot.safe_wal_size.or_else(retained) {
            // the limit was set or removed, so earlier samples do not count
            if self.samples.back().is_some_and(|(_, last)| (*last < 0) != (room < 0)) {
                self.samples.clear();
            }
            self.samples.push_back((at, room));
        }
        while self.samples.front().is_some_and(|(first, _)| at.duration_since(*first) > WINDOW) {
            self.samples.pop_front();
        }
        let level = Level::of(slot, self.left(), self.level);
        (std::mem::replace(&mut self.level, level) != level).then_some(level)
    }

    /// The current level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Bytes per second by which the headroom shrinks, if it does.
    fn rate(&self) -> Option<f64> {
        let ((first, before), (last, now)) = (self.samples.front()?, self.samples.back()?);
        let span = last.duration_since(*first);
        let gone = before.saturating_sub(*now);
        (span >= MIN_SPAN && gone > 0).then(|| gone as f64 / span.as_secs_f64())
    }

    /// How long the headroom lasts at the current rate; `None`: it does not shrink, or has no limit.
    pub fn left(&self) -> Option<Duration> {
        let (_, now) = self.samples.back()?;
        // a century counts as never
        const LONGEST: f64 = 3e9;
        let seconds = u64::try_from(*now).ok()? as f64 / self.rate()?;
        (seconds < LONGEST).then(|| Duration::from_secs_f64(seconds))
    }

    /// The level in a sentence without a full stop, and what to do about it. `held_by` is the transaction that makes the slot
    /// retain log, if it is one.
    pub fn describe(&self, name: &str, slot: &Slot, held_by: Option<&OpenTransaction>) -> (String, String) {
        let rate = self.rate().map(|rate| format!("{}/s", bytes(rate as u64)));
        describe(self.level, name, slot, held_by, self.left().zip(rate.clone()), rate)
    }
}

/// The level of a single sample, without a rate.
pub fn describe_once(name: &str, slot: &Slot, held_by: Option<&OpenTransaction>) -> (Level, String, String) {
    let level = Level::of(slot, None, Level::Ample);
    let (what, remedy) = describe(level, name, slot, held_by, None, None);
    (level, what, remedy)
}

fn describe(
    level: Level,
    name: &str,
    slot: &Slot,
    held_by: Option<&OpenTransaction>,
    left: Option<(Duration, String)>,
    rate: Option<String>,
) -> (String, String) {
    let retained = bytes(slot.retained_bytes.unwrap_or_default());
    let until = safe_bytes(slot).map(|safe| {
        let left = left.map(|(left, rate)| format!(", about {} at {rate}", time(left)));
        format!("{} more may be written until it is lost{}", bytes(safe), left.unwrap_or_default())
    });
    // neither the router nor Kafka can do anything about a transaction
    let (cause, act) = match held_by {
        Some(transaction) => (format!("; the cause is {transaction}"), transaction.remedy.as_str()),
        None => (
            String::new(),
            "Make sure that the router runs and Kafka accepts its records (outbox-router status)",
        ),
    };
    let (what, remedy) = match (level, until) {
        (Level::Unreserved, _) => (
            format!(
                "the slot {name} holds back {retained} of log, more than max_slot_wal_keep_size allows, and is lost at the \
                 next checkpoint"
            ),
            format!(
                "At once lift the limit: ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf(). {act}. Set the limit \
                 again once the slot has caught up"
            ),
        ),
        (_, Some(until)) => (
            format!("the slot {name} holds back {retained} of log, and {until}"),
            format!("{act}. Or raise max_slot_wal_keep_size, and SELECT pg_reload_conf()"),
        ),
        (_, None) => {
            let rate = rate.map(|rate| format!(", at {rate}")).unwrap_or_default();
            (
                format!(
                    "the slot {name} holds back {retained} of log, and no max_slot_wal_keep_size keeps it from growing until the \
                     disk is full{rate}"
                ),
                format!("{act}. Make sure that the disk has room"),
            )
        }
    };
    (what + &cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::catalog::tests::slot;

    const MIB: i64 = 1 << 20;

    fn sample(retained: i64, safe: Option<i64>, status: &str) -> Slot {
        Slot {
            retained_bytes: Some((retained * MIB) as u64),
            safe_wal_size: safe.map(|safe| safe * MIB),
            wal_status: Some(status.to_owned()),
            ..slot()
        }
    }

    /// Adds one sample a second of a slot that does not move while 2 MiB are written each second.
    fn stuck(room: &mut SlotHeadroom, limit: i64, seconds: std::ops::Range<i64>) -> Vec<(i64, Level)> {
        let begin = Instant::now();
        let sample = |second: i64| sample(2 * second, Some(limit - 2 * second), "reserved");
        seconds
            .filter_map(|second| {
                let at = begin + Duration::from_secs(second as u64);
                room.add_sample(at, &sample(second)).map(|level| (second, level))
            })
            .collect()
    }

    #[test]
    fn shrinking_headroom_is_reported_once_with_the_time_left() {
        let mut room = SlotHeadroom::new(Level::Ample);
        assert_eq!(stuck(&mut room, 1000, 0..300), [(251, Level::Short)]);
        let (what, remedy) = room.describe("s", &sample(598, Some(402), "reserved"), None);
        assert_eq!(
            what,
            "the slot s holds back 598.0 MiB of log, and 402.0 MiB more may be written until it is lost, about 3 minutes at \
             2.0 MiB/s"
        );
        assert!(remedy.contains("max_slot_wal_keep_size"));
        assert_eq!(room.left(), Some(Duration::from_secs(201)));
    }

    #[test]
    fn a_slowly_growing_log_is_short_in_the_last_fifth() {
        let mut room = SlotHeadroom::new(Level::Ample);
        // half of the limit lasts for more than ten minutes
        assert_eq!(stuck(&mut room, 10_000, 0..5_000), [(4_001, Level::Short)]);
    }

    #[test]
    fn an_advancing_slot_is_not_short() {
        let (mut room, begin) = (SlotHeadroom::new(Level::Ample), Instant::now());
        for second in 0..600 {
            // 2 MiB a second, and the slot advances every 15 seconds
            let retained = 2 * (second % 15);
            let sample = sample(retained, Some(100 - retained), "reserved");
            assert_eq!(
                room.add_sample(begin + Duration::from_secs(second as u64), &sample),
                None,
                "{second}"
            );
        }
    }

    #[test]
    fn each_level_is_reported_once_and_does_not_flutter() {
        let (mut room, begin) = (SlotHeadroom::new(Level::Ample), Instant::now());
        let mut add_sample =
            |second, sample: Slot| room.add_sample(begin + Duration::from_secs(second), &sample);
        assert_eq!(add_sample(0, sample(10, Some(90), "reserved")), None);
        assert_eq!(add_sample(1, sample(50, Some(50), "extended")), Some(Level::Extended));
        assert_eq!(add_sample(2, sample(81, Some(19), "extended")), Some(Level::Short));
        assert_eq!(add_sample(3, sample(79, Some(21), "extended")), None);
        assert_eq!(add_sample(4, sample(101, Some(-1), "unreserved")), Some(Level::Unreserved));
        assert_eq!(add_sample(100, sample(69, Some(31), "extended")), Some(Level::Extended));
        assert_eq!(add_sample(101, sample(1, Some(99), "reserved")), Some(Level::Ample));
    }

    #[test]
    fn the_next_session_does_not_report_the_same_level_again() {
        let mut room = SlotHeadroom::new(Level::Short);
        assert_eq!(room.add_sample(Instant::now(), &sample(81, Some(19), "reserved")), None);
    }

    #[test]
    fn without_a_limit_the_disk_fills() {
        let (mut room, begin) = (SlotHeadroom::new(Level::Ample), Instant::now());
        let sample = |second: i64| sample(1000 + second, None, "extended");
        let before: Vec<_> = (0..20)
            .filter_map(|second| room.add_sample(begin + Duration::from_secs(second), &sample(second as i64)))
            .collect();
        assert_eq!(before, [Level::Extended]);
        assert_eq!(room.left(), None);
        let (what, _) = room.describe("s", &sample(19), None);
        assert!(what.ends_with("until the disk is full, at 1.0 MiB/s"), "{what}");
    }

    #[test]
    fn only_a_slot_that_is_confirmed_far_beyond_its_restart_lsn_is_held_by_transactions() {
        for (status, retained, behind, safe, held) in [
            ("extended", 1000, 990, None, true),
            ("extended", 1000, 300, None, false),
            ("unreserved", 1000, 600, Some(-1), true),
            ("reserved", 60, 60, Some(40), true),
            ("reserved", 40, 40, Some(60), false),
            ("reserved", 1000, 1000, None, false),
        ] {
            let position = |mib: i64| Some(pg_logical::Lsn((mib * MIB) as u64));
            let slot = Slot {
                restart_lsn: position(5000),
                confirmed_flush_lsn: position(5000 + behind),
                ..sample(retained, safe, status)
            };
            assert_eq!(may_be_held(&slot), held, "{status} {retained} {behind}");
        }
    }

    #[test]
    fn a_transaction_that_holds_the_log_is_blamed_instead_of_router_and_kafka() {
        let open = crate::postgres::open_transaction::tests::transaction;
        let prepared = open(["", "tx1", "", "billing", "app", "", "10800"]);
        let idle = open(["7", "", "psql", "shop", "app", "idle in transaction", "180"]);
        let hidden = open(["7", "", "", "shop", "app", "", ""]);
        for (transaction, cause, act) in [
            (&prepared, "tx1 (database billing, role app), open for 3 hours", "ROLLBACK PREPARED 'tx1'"),
            (
                &idle,
                "process 7 (application_name psql, database shop, role app, idle in transaction), open for 3 minutes",
                "pg_terminate_backend(7)",
            ),
            (&hidden, "process 7 (database shop, role app)", "pg_terminate_backend(7)"),
        ] {
            for slot in [
                sample(1000, None, "extended"),
                sample(900, Some(100), "extended"),
                sample(1010, Some(-10), "unreserved"),
            ] {
                let (_, what, remedy) = describe_once("s", &slot, Some(transaction));
                assert!(what.starts_with("the slot s holds back") && what.ends_with(cause), "{what}");
                assert!(remedy.contains(act) && !remedy.contains("Kafka"), "{remedy}");
                let (_, what, remedy) = describe_once("s", &slot, None);
                assert!(!what.contains("the cause is") && remedy.contains("Kafka"), "{what} {remedy}");
            }
        }
    }

    #[test]
    fn a_changed_limit_restarts_the_measurement() {
        let (mut room, begin) = (SlotHeadroom::new(Level::Ample), Instant::now());
        room.add_sample(begin, &sample(1000, None, "reserved"));
        room.add_sample(begin + Duration::from_secs(10), &sample(1000, Some(9000), "reserved"));
        assert_eq!(room.left(), None);
    }
}
