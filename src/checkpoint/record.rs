//! The record of the positions topic: JSON, one per router name.

use pg_logical::{Lsn, PgTimestamp};
use serde::{Deserialize, Serialize};

use super::reading::Reading;
use crate::dead_letters::Key;
use crate::progress::{Landmark, Partial, Position};

/// The form of the record that this version writes.
const VERSION: u32 = 1;

/// What one router remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Grows with each session and each reset. A record of an earlier one that arrives late means nothing.
    pub epoch: u64,
    /// The slot that it was read from.
    pub slot: String,
    /// The cluster's system identifier.
    pub system_identifier: String,
    /// The timeline of the server's log.
    pub timeline: u32,
    /// What is acknowledged.
    pub position: Position,
    /// What the log holds before it.
    pub tail: LogFingerprint,
    /// What the stream was made of.
    pub reading: Reading,
    /// Until when events are sent again, because somebody has reset the position.
    pub replay: Option<Replay>,
    /// The end of the log after the commits of parked events that the position is past, if the stream was not there yet: where
    /// the log does not hold that, their rows are lost.
    pub parked: Option<Lsn>,
    /// Parked events that were sent again, and whose rows may still be in the table: they are not sent once more.
    pub retried: Vec<Key>,
    /// Whether it was committed in one transaction with the events before it.
    pub exactly_once: bool,
}

/// What is known of the stretch of the log before a position, by which that log is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFingerprint {
    /// Nothing: an earlier version wrote the record, or other changes counted then.
    Unknown,
    /// No changes from there on.
    Quiet {
        /// Where.
        from: Lsn,
    },
    /// The last transaction with changes.
    Landmark(Landmark),
}

/// Events that are sent again on purpose, and say so in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// What the header says: when the position was reset.
    pub mark: String,
    /// What had been acknowledged by then.
    pub until: Position,
}

/// The record of the topic is none that this version can go by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReadable {
    /// Written by a later version.
    #[error("it has the form {0}, and this version of the router knows form {VERSION}")]
    Later(u32),
    /// Not what a router writes.
    #[error("it is not what a router writes ({0})")]
    Foreign(String),
}

#[derive(Serialize, Deserialize)]
struct Json {
    version: u32,
    epoch: u64,
    slot: String,
    system_identifier: String,
    timeline: u32,
    flush_lsn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transaction: Option<Transaction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    landmark: Option<JsonLandmark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quiet_from_lsn: Option<String>,
    reading: Reading,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replay: Option<JsonReplay>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parked_lsn: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retried: Vec<Transaction>,
    #[serde(default, skip_serializing_if = "is_false")]
    exactly_once: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Serialize, Deserialize)]
struct JsonReplay {
    mark: String,
    until_lsn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until_transaction: Option<Transaction>,
}

#[derive(Serialize, Deserialize)]
struct JsonLandmark {
    final_lsn: String,
    xid: u32,
    /// As the stream has it: microseconds since 2000-01-01 00:00 UTC.
    commit_time: i64,
}

#[derive(Serialize, Deserialize)]
struct Transaction {
    final_lsn: String,
    changes: u64,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Checkpoint {
    /// The record's value.
    pub fn encode(&self) -> Vec<u8> {
        let transaction = |position: &Position| {
            let Partial { final_lsn, changes } = position.partial?;
            Some(Transaction { final_lsn: final_lsn.to_string(), changes })
        };
        let retried = |key: &Key| Transaction { final_lsn: key.final_lsn.to_string(), changes: key.change };
        let replay = self.replay.as_ref().map(|replay| JsonReplay {
            mark: replay.mark.clone(),
            until_lsn: replay.until.flush.to_string(),
            until_transaction: transaction(&replay.until),
        });
        let (landmark, quiet_from_lsn) = match self.tail {
            LogFingerprint::Unknown => (None, None),
            LogFingerprint::Quiet { from } => (None, Some(from.to_string())),
            LogFingerprint::Landmark(Landmark { final_lsn, xid, commit_time }) => (
                Some(JsonLandmark { final_lsn: final_lsn.to_string(), xid, commit_time: commit_time.0 }),
                None,
            ),
        };
        let json = Json {
            version: VERSION,
            epoch: self.epoch,
            slot: self.slot.clone(),
            system_identifier: self.system_identifier.clone(),
            timeline: self.timeline,
            flush_lsn: self.position.flush.to_string(),
            transaction: transaction(&self.position),
            landmark,
            quiet_from_lsn,
            reading: self.reading.clone(),
            replay,
            parked_lsn: self.parked.map(|parked| parked.to_string()),
            retried: self.retried.iter().map(retried).collect(),
            exactly_once: self.exactly_once,
        };
        // numbers and texts only: there is nothing that JSON could not hold
        serde_json::to_vec(&json).unwrap_or_default()
    }

    /// Reads a record's value.
    pub fn decode(value: &[u8]) -> Result<Self, NotReadable> {
        let foreign = |error: &dyn ToString| NotReadable::Foreign(error.to_string());
        let Version { version } = serde_json::from_slice(value).map_err(|error| foreign(&error))?;
        if version != VERSION {
            return Err(NotReadable::Later(version));
        }
        let json: Json = serde_json::from_slice(value).map_err(|error| foreign(&error))?;
        let lsn = |text: &str| text.parse::<Lsn>().map_err(|error| foreign(&error));
        let position = |flush: &str, transaction: Option<Transaction>| {
            let partial = transaction.map(|Transaction { final_lsn, changes }| {
                Ok(Partial { final_lsn: lsn(&final_lsn)?, changes })
            });
            Ok(Position { flush: lsn(flush)?, partial: partial.transpose()? })
        };
        let tail = match (json.landmark, json.quiet_from_lsn) {
            (Some(JsonLandmark { final_lsn, xid, commit_time }), _) => {
                let commit_time = PgTimestamp(commit_time);
                LogFingerprint::Landmark(Landmark { final_lsn: lsn(&final_lsn)?, xid, commit_time })
            }
            (None, Some(from)) => LogFingerprint::Quiet { from: lsn(&from)? },
            (None, None) => LogFingerprint::Unknown,
        };
        let replay = match json.replay {
            Some(JsonReplay { mark, until_lsn, until_transaction }) => {
                Some(Replay { mark, until: position(&until_lsn, until_transaction)? })
            }
            None => None,
        };
        let retried = json.retried.into_iter().map(|Transaction { final_lsn, changes }| {
            Ok(Key { final_lsn: lsn(&final_lsn)?, change: changes })
        });
        Ok(Checkpoint {
            epoch: json.epoch,
            slot: json.slot,
            system_identifier: json.system_identifier,
            timeline: json.timeline,
            position: position(&json.flush_lsn, json.transaction)?,
            tail,
            reading: json.reading,
            replay,
            parked: json.parked_lsn.map(|parked| lsn(&parked)).transpose()?,
            retried: retried.collect::<Result<_, _>>()?,
            exactly_once: json.exactly_once,
        })
    }

    /// What is left of a replay at `position`. Of another cluster or slot it means nothing.
    pub fn replay_at(&self, position: Position, slot: &str, system_identifier: &str) -> Option<Replay> {
        let same = self.slot == slot && self.system_identifier == system_identifier;
        self.replay.clone().filter(|replay| same && !replay.is_over(position))
    }

    /// Which of two records counts: that of the later epoch. Within one epoch a position only goes forward, so one that lies
    /// before is of a router that had stood still between reading what counts and beginning its epoch, while another began
    /// the same.
    pub fn later(before: Option<Self>, next: Self) -> Option<Self> {
        let order = |known: &Checkpoint| (known.epoch, known.position.flush, known.position.partial);
        match before {
            Some(before) if order(&before) > order(&next) => Some(before),
            _ => Some(next),
        }
    }

    /// The epoch of a session that goes on from here.
    pub fn next_epoch(before: Option<&Self>) -> u64 {
        before.map_or(0, |before| before.epoch).saturating_add(1)
    }

    /// The epoch of a reset: a router that stands still, having read the same, may yet begin the next one.
    pub fn epoch_of_reset(&self) -> u64 {
        self.epoch.saturating_add(2)
    }
}

impl Replay {
    /// Whether everything was sent again by now.
    pub fn is_over(&self, position: Position) -> bool {
        let again = |done: Partial| {
            position.flush > done.final_lsn || position.partial.is_some_and(|partial| partial >= done)
        };
        position.flush >= self.until.flush && self.until.partial.is_none_or(again)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    pub(crate) fn remembered() -> Checkpoint {
        Checkpoint {
            epoch: 3,
            slot: "outbox_router".into(),
            system_identifier: "7423".into(),
            timeline: 1,
            position: Position { flush: Lsn(0x1000), partial: None },
            tail: LogFingerprint::Unknown,
            reading: Reading {
                publication: Some("16400/742".into()),
                tables: BTreeMap::from([("public.outbox".into(), "16385 16401/743; ".into())]),
                message_prefix: None,
                traces: BTreeMap::new(),
            },
            replay: None,
            parked: None,
            retried: Vec::new(),
            exactly_once: false,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            epoch: u64, timeline: u32, flush: u64, partial: Option<(u64, u64)>, slot: String, prefix: Option<String>,
            mark: Option<String>, landmark in prop::option::of((any::<u64>(), prop_oneof![Just(0), any::<u32>()], any::<i64>()))
        ) {
            let mut expected = remembered();
            (expected.epoch, expected.timeline, expected.slot) = (epoch, timeline, slot);
            expected.reading.message_prefix = prefix;
            let partial = partial.map(|(lsn, changes)| Partial { final_lsn: Lsn(lsn), changes });
            expected.position = Position { flush: Lsn(flush), partial };
            expected.tail = match landmark {
                Some((from, 0, _)) => LogFingerprint::Quiet { from: Lsn(from) },
                Some((final_lsn, xid, time)) => {
                    LogFingerprint::Landmark(Landmark { final_lsn: Lsn(final_lsn), xid, commit_time: PgTimestamp(time) })
                }
                None => LogFingerprint::Unknown,
            };
            expected.exactly_once = mark.is_some();
            expected.parked = partial.map(|done| done.final_lsn);
            expected.retried = partial.iter().map(|done| Key { final_lsn: done.final_lsn, change: done.changes }).collect();
            expected.replay = mark.map(|mark| Replay { mark, until: expected.position });
            prop_assert_eq!(Checkpoint::decode(&expected.encode()), Ok(expected));
        }

        #[test]
        fn whatever_is_in_the_topic_is_no_reason_to_panic(value: Vec<u8>) {
            let _ = Checkpoint::decode(&value);
        }
    }

    #[test]
    fn a_replay_covers_what_was_acknowledged_before_and_no_more() {
        let partial = |final_lsn, changes| Some(Partial { final_lsn: Lsn(final_lsn), changes });
        let at = |flush, partial| Position { flush: Lsn(flush), partial };
        let replay = Replay { mark: "then".into(), until: at(0x100, partial(0x140, 3)) };
        for (final_lsn, ordinal, covered) in
            [(0xF0, 9, true), (0x100, 1, false), (0x140, 3, true), (0x140, 4, false), (0x180, 1, false)]
        {
            assert_eq!(replay.until.covers(Lsn(final_lsn), ordinal), covered, "{final_lsn:X} {ordinal}");
        }
        for (position, over) in [
            (at(0xFF, None), false),
            (at(0x100, None), false),
            (at(0x100, partial(0x140, 2)), false),
            (at(0x100, partial(0x140, 3)), true),
            (at(0x148, None), true),
        ] {
            assert_eq!(replay.is_over(position), over, "{position:?}");
        }
    }

    #[test]
    fn a_replay_ends_with_its_slot_and_its_cluster() {
        let until = Position { flush: Lsn(0x2000), partial: None };
        let replay = Some(Replay { mark: "then".into(), until });
        let remembered = Checkpoint { replay: replay.clone(), ..remembered() };
        let at = |position, slot, system| remembered.replay_at(position, slot, system);
        assert_eq!(at(remembered.position, "outbox_router", "7423"), replay);
        assert_eq!(at(until, "outbox_router", "7423"), None);
        assert_eq!(at(remembered.position, "another", "7423"), None);
        assert_eq!(at(remembered.position, "outbox_router", "7424"), None);
    }

    #[test]
    fn a_record_of_a_later_version_is_not_guessed_at() {
        let later =
            String::from_utf8(remembered().encode()).unwrap().replace("\"version\":1", "\"version\":2");
        assert_eq!(Checkpoint::decode(later.as_bytes()), Err(NotReadable::Later(2)));
        assert!(matches!(Checkpoint::decode(b"7"), Err(NotReadable::Foreign(_))));
        assert!(matches!(Checkpoint::decode(br#"{"version":1}"#), Err(NotReadable::Foreign(_))));
    }

    #[test]
    fn a_late_record_of_an_earlier_epoch_does_not_count() {
        let (old, new) = (Checkpoint { epoch: 4, ..remembered() }, Checkpoint { epoch: 5, ..remembered() });
        let mut newer = new.clone();
        newer.position.flush = Lsn(0x2000);
        let counts = [new, old, newer.clone()].into_iter().fold(None, Checkpoint::later);
        assert_eq!(counts, Some(newer.clone()));
        let late = Checkpoint { epoch: 4, ..remembered() };
        assert_eq!(Checkpoint::later(counts, late), Some(newer));
    }

    #[test]
    fn a_late_beginning_of_the_same_epoch_does_not_count() {
        let at = |flush, partial: Option<u64>| {
            let partial = partial.map(|changes| Partial { final_lsn: Lsn(0x3000), changes });
            Checkpoint { position: Position { flush: Lsn(flush), partial }, ..remembered() }
        };
        for (before, next, counts) in [
            (at(0x2000, None), at(0x1000, None), at(0x2000, None)),
            (at(0x2000, Some(5)), at(0x2000, None), at(0x2000, Some(5))),
            (at(0x2000, Some(5)), at(0x2000, Some(4)), at(0x2000, Some(5))),
            (at(0x2000, Some(5)), at(0x2000, Some(6)), at(0x2000, Some(6))),
            (at(0x2000, Some(5)), at(0x3010, None), at(0x3010, None)),
        ] {
            assert_eq!(Checkpoint::later(Some(before), next), Some(counts));
        }
        // at one position, what is written later tells more
        let sent = Checkpoint { retried: vec![Key { final_lsn: Lsn(1), change: 1 }], ..remembered() };
        assert_eq!(Checkpoint::later(Some(remembered()), sent.clone()), Some(sent));
    }
}
